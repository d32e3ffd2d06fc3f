"""One engine's window -> an opinion: healthy, a cause, unknown, or none at all. Holding it over time: progress.hold."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from phasewatch.core.diagnosis.causes import admission_stalled, engine_stalled
from phasewatch.core.diagnosis.causes._row import Finding, known
from phasewatch.core.diagnosis.diagnose import diagnose, has
from phasewatch.core.diagnosis.measures_view import Sight, WindowView
from phasewatch.core.diagnosis.objectives import Judged, family_of, judge, other_symptoms, slower_than_past, told
from phasewatch.core.diagnosis.overdue import overdue
from phasewatch.core.diagnosis.progress import Progress, Stall, stepped, work_in_hand
from phasewatch.core.formatting import number
from phasewatch.core.measures.histogram import count_above
from phasewatch.core.measures.window import window
from phasewatch.core.model import Cause, Confidence, Numbers, ObjectiveResult, Snapshot, State, Symptom, Window
from phasewatch.core.settings import Thresholds


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one evaluation says. verdict None: nothing to say (the state says why). surely: taken at once.

    text: of a healthy engine written when it is read: its percentiles may not be fitted before.
    """

    verdict: str | None
    confidence: Confidence | None
    text: str | Callable[[], str]
    causes: tuple[Cause, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    surely: bool = False

    @property
    def summary(self) -> str:
        return self.text if isinstance(self.text, str) else self.text()

    @staticmethod
    def of_state(state: State) -> "Opinion":
        return Opinion(None, None, STATE_TEXTS[state])


# Of an engine, or a target, without a verdict.
STATE_TEXTS: Mapping[State, str] = {
    "serving": "Serving.",
    "idle": "No request in this window.",
    "starting": "The target has never answered yet; it may still be loading its model.",
    "warming_up": "Too few scrapes for a verdict yet.",
    "asleep": "The engine is in sleep mode.",
    "no_engine_metrics": "The server answers, but its /metrics has no engine metrics.",
    "stale": "The last scrape failed; the numbers are from the last successful one.",
    "down": "Three scrapes in a row failed.",
    "internal_error": "phasewatch itself failed.",
}


def judge_engine(
    now: Sight,
    sight_of: Callable[[str], Sight],
    verdicts: Sequence[Judged],
    *,
    figures_of: Callable[[Window], Numbers],
    wait_over_before: bool,
    past_stall: Stall | None,
    past_stall_until: float,
) -> Opinion:
    """An opinion on a serving engine. verdicts: of its objectives. sight_of: what a family was judged over. figures_of:
    the figures of another window. past_stall: the last proven standstill; what it explains is kept apart."""
    view, thresholds = now.view, now.view.thresholds
    missed = {one.symptom: one.ratio for one in verdicts if one.missed}
    symptoms = dict(missed)
    symptoms |= other_symptoms(*view.measured, view.limits, thresholds, wait_over_before=wait_over_before)
    symptoms |= overdue(now.background.ages, view.window, view.limits, thresholds)
    if not any(family_of(one.objective) == "itl" for one in symptoms):
        symptoms |= slower_than_past(view.window, view.numbers, now.background.past, thresholds)
    if not symptoms:
        return _healthy(view, [one.result for one in verdicts])
    seen = {one: sight_of(family_of(one.objective)) for one in missed}

    def without(sight: Sight) -> Sight:
        rest = without_standstill(sight.view.window, past_stall, past_stall_until, thresholds)
        if rest is sight.view.window:
            return sight
        return Sight(replace(sight.view, window=rest, numbers=figures_of(rest)), sight.background)

    remaining = {id(one): without(one) for one in (now, *seen.values())}
    if all(remaining[id(one)] is one for one in (now, *seen.values())):
        return _explained(symptoms, now, seen, symptoms)
    return _after_standstill(
        symptoms, now, seen, lambda one: remaining.get(id(one), one), sight_of, wait_over_before=wait_over_before
    )


def _explained(
    symptoms: Mapping[Symptom, float],
    now: Sight,
    seen: Mapping[Symptom, Sight],
    shown: Iterable[Symptom],
    over: Sequence[Cause] = (),
) -> Opinion:
    """The cause that leads `symptoms` speaks. over: causes of those that are `shown`, but gone from this view."""
    causes = diagnose(symptoms, now, seen)
    leading = causes[0]
    return Opinion(
        leading.verdict,
        leading.confidence,
        leading.summary,
        (*causes, *over),
        tuple(shown),
        surely=next(one.surely for one in symptoms if one.objective == leading.symptom),
    )


def _healthy(view: WindowView, results: Sequence[ObjectiveResult]) -> Opinion:
    """No symptom. Healthy is what meets an objective, unless all that was seen of another lies over its limit."""
    judged, limits, thresholds = view.window, view.limits, view.thresholds
    if not (has(judged, "ttft") or has(judged, "itl")) and not any(one.observations for one in results):
        return Opinion(
            "unknown", "low", "Requests run, but /metrics has neither TTFT nor ITL: no objective can be judged."
        )
    families = dict.fromkeys(name.partition("_")[0] for name in limits)
    met = [one for one in results if one.result == "met"]
    if not met or any(one.result == "too_few" and 2 * one.over > one.observations for one in results):
        return Opinion(None, None, lambda: _nothing_judged(families, results))
    known = {family_of(one.objective) for one in results if one.observations}
    unjudged = [family for family in families if family not in known and not has(judged, family)]
    undecided = any(one.result in ("too_few", "cannot_tell") for one in results)
    fewest = min(one.observations for one in met)
    confidence: Confidence = "high"
    if undecided or fewest < thresholds.enough_observations:
        confidence = "low"
    elif unjudged or not all(one.surely for one in met) or fewest < thresholds.sure_observations:
        confidence = "medium"
    return Opinion("healthy", confidence, lambda: " ".join((_met(results, unjudged), _elsewhere(judged))).strip())


def _met(results: Sequence[ObjectiveResult], unjudged: Sequence[str]) -> str:
    """Each value with its limit; the word "met" only where nothing is over one."""
    met, not_judged = (
        [one for one in results if one.result in kind] for kind in (("met",), ("too_few", "cannot_tell"))
    )
    lead = "Within the limits" if not_judged else "Objectives are met"
    parts = [f"{lead}: {', '.join(map(told, met))}.", *(f"{told(one)}." for one in not_judged)]
    if unjudged:
        parts.append(f"Not judged, signal missing: {', '.join(unjudged)}.")
    return " ".join(parts)


def not_agreed_yet(missed: Iterable[ObjectiveResult]) -> str:
    """Of an engine that is still called healthy."""
    known = "; ".join(map(told, missed))
    return f"Not for long enough for a verdict yet{': ' if known else ''}{known}."


def _elsewhere(judged: Window) -> str:
    """Where to look when users still complain."""
    gauges = judged.gauges
    if "running" not in gauges:
        return ""
    here = gauges["running"].last + (gauges["waiting"].last if "waiting" in gauges else 0.0)
    return (
        f"In flight here (running + waiting): {number(here)}; if clients or the gateway count more open requests, they"
        " wait upstream: gateway, retrieval, network."
    )


def _nothing_judged(families: Iterable[str], results: Sequence[ObjectiveResult]) -> str:
    names = [family if family == "e2e" else family.upper() for family in families]
    if not names:
        return "Nothing to judge: this model has no objective."
    known = [told(one) for one in results if one.result != "no_data"]
    if not known:
        return f"Nothing to judge yet: no observation of {' or '.join(names)} in this window."
    return f"Nothing to judge yet: {'; '.join(known)}."


def without_standstill(judged: Window, stall: Stall | None, until: float, thresholds: Thresholds) -> Window:
    """The window less any stretch of 10 s or more without a step while work was there (or a proven standstill), and
    less the interval in which its victims were booked. The same object where there was none."""
    cut: set[int] = set()
    run: list[int] = []
    for index, one in enumerate(judged.steps):
        if not stepped(one) and work_in_hand(one.before) > 0:
            run.append(index)
            continue
        if run and judged.steps[run[-1]].end - judged.steps[run[0]].start >= thresholds.stall_seconds:
            cut.update((*run, index))
        run = []
    if stall is not None:
        cut.update(index for index, one in enumerate(judged.steps) if one.end > stall.since and one.start < until)
    if not cut:
        return judged
    kept = [one for index, one in enumerate(judged.steps) if index not in cut]
    return window(kept) or replace(judged, histograms={}, increases={})


def _after_standstill(
    symptoms: Mapping[Symptom, float],
    now: Sight,
    seen: Mapping[Symptom, Sight],
    rest_of: Callable[[Sight], Sight],
    sight_of: Callable[[str], Sight],
    *,
    wait_over_before: bool,
) -> Opinion:
    """The standstill, easing, explains the symptoms that go away without it; the rows judge what is left."""
    rest, limits, thresholds = rest_of(now), now.view.limits, now.view.thresholds
    again = judge(rest.view.measured, lambda family: rest_of(sight_of(family)).view.measured, limits, thresholds)
    left = {one.symptom: one.ratio for one in again if one.missed}
    seen_left = {one: rest_of(sight_of(family_of(one.objective))) for one in left}
    left |= other_symptoms(*rest.view.measured, limits, thresholds, wait_over_before=wait_over_before)
    explained = [one for one in symptoms if one.objective not in {other.objective for other in left}]
    causes: list[Cause] = []
    for one in explained:
        whole, part = seen.get(one, now).view.window, rest_of(seen.get(one, now)).view.window
        standing = whole.seconds - part.seconds
        summary, refuted_by = engine_stalled.texts_of_the_past(standing)
        found = Finding(
            _share_gone(one, whole, part), {"standstill_seconds": standing}, summary, refuted_by, easing=True
        )
        causes.append(engine_stalled.CAUSE.cause(one.objective, found, "medium", case=None, missing=()))
    if left:
        return _explained(left, rest, seen_left, symptoms, causes)
    return Opinion(engine_stalled.CAUSE.verdict, "medium", causes[0].summary, tuple(causes), tuple(symptoms))


def _share_gone(symptom: Symptom, judged: Window, remaining: Window) -> float:
    """Share of the observations over the limit that came with the standstill; 1 where they cannot be counted."""
    family = symptom.objective.partition("_")[0]
    whole, rest = judged.histograms.get(family), remaining.histograms.get(family)
    if whole is None or rest is None or symptom.limit_seconds is None:
        return 1.0
    over = count_above(whole, symptom.limit_seconds).interpolated
    return 1.0 if over <= 0 else max(0.0, 1 - count_above(rest, symptom.limit_seconds).interpolated / over)


_STALLED = {module.CAUSE.verdict: module for module in (engine_stalled, admission_stalled)}


def stalled_opinion(stall: Stall, progress: Progress, page: Snapshot) -> Opinion:
    """A proven standstill, whatever the latencies of those who are through say."""
    evidence = known(
        still_seconds=stall.seconds,
        running=page.gauges.get("running", 0.0),
        waiting=page.gauges.get("waiting", 0.0),
        longest_step_seconds=progress.longest_step,
        kv_usage=page.gauges.get("kv_usage"),
    )
    kind = _STALLED[stall.kind]
    summary, refuted_by = kind.texts(stall, progress, page)
    confidence: Confidence = "high" if stall.certain else "low"
    missing = () if progress.http_known else ("http_finishes",)
    finding = Finding(1.0, evidence, summary, refuted_by)
    cause = kind.CAUSE.cause("progress", finding, confidence, case=None, missing=missing)
    cause = replace(cause, remedies=kind.remedies(stall))
    symptom = Symptom("progress", None, None, stall.certain, "critical")
    return Opinion(stall.kind, confidence, summary, (cause,), (symptom,), surely=True)
