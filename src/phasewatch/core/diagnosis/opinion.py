"""One engine's window -> an opinion: healthy, a cause, unknown, or none at all. Holding it over time: progress.hold."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from phasewatch.core.diagnosis.causes import admission_stalled, engine_stalled
from phasewatch.core.diagnosis.causes._row import Finding, known
from phasewatch.core.diagnosis.diagnose import diagnose, has
from phasewatch.core.diagnosis.measures_view import Background, WindowView
from phasewatch.core.diagnosis.objectives import JudgedObjective, family_of, judge, other_symptoms, slower_than_past
from phasewatch.core.diagnosis.overdue import overdue
from phasewatch.core.diagnosis.progress import Progress, Stall, stepped, work_in_hand
from phasewatch.core.formatting import seconds
from phasewatch.core.measures.histogram import count_above
from phasewatch.core.measures.numbers import numbers
from phasewatch.core.measures.window import window
from phasewatch.core.model import Cause, Confidence, Numbers, Snapshot, State, Symptom, Window
from phasewatch.core.settings import Limits, Thresholds, stall_seconds


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
    "warming_up": "Too few scrapes for a verdict yet.",
    "asleep": "The engine is in sleep mode.",
    "no_engine_metrics": "The server answers, but its /metrics has no engine metrics.",
    "stale": "The last scrape failed; the numbers are from the last successful one.",
    "down": "Three scrapes in a row failed.",
    "internal_error": "phasewatch itself failed.",
}


def judge_engine(
    view: WindowView,
    background: Background,
    *,
    wait_over_before: bool,
    past_stall: Stall | None,
    past_stall_until: float,
) -> Opinion:
    """An opinion on a serving engine. past_stall: the last proven standstill; what it explains is kept apart."""
    judged, figures, limits, thresholds = view.window, view.numbers, view.limits, view.thresholds
    verdicts = judge(judged, figures, limits, thresholds)
    symptoms = {one.symptom: one.ratio for one in verdicts if one.missed}
    symptoms |= other_symptoms(judged, figures, limits, thresholds, wait_over_before=wait_over_before)
    symptoms |= overdue(background.ages, judged, limits, thresholds)
    if not any(family_of(one.objective) == "itl" for one in symptoms):
        symptoms |= slower_than_past(judged, figures, background.past, thresholds)
    if not symptoms:
        return _healthy(judged, figures, verdicts, limits)
    remaining = without_standstill(judged, past_stall, past_stall_until, thresholds)
    if remaining is not judged:
        return _after_standstill(view, remaining, symptoms, background, wait_over_before=wait_over_before)
    return _explained(symptoms, view, background, symptoms)


def _explained(
    symptoms: Mapping[Symptom, float],
    view: WindowView,
    background: Background,
    shown: Iterable[Symptom],
    over: Sequence[Cause] = (),
) -> Opinion:
    """The cause that leads `symptoms` speaks. over: causes of those that are `shown`, but gone from this view."""
    causes = diagnose(symptoms, view, background)
    leading = causes[0]
    return Opinion(
        leading.verdict,
        leading.confidence,
        leading.summary,
        (*causes, *over),
        tuple(shown),
        surely=next(one.surely for one in symptoms if one.objective == leading.symptom),
    )


def _healthy(judged: Window, figures: Numbers, verdicts: tuple[JudgedObjective, ...], limits: Limits) -> Opinion:
    if not verdicts and not (has(judged, "ttft") or has(judged, "itl")):
        return Opinion(
            "unknown", "low", "Requests run, but /metrics has neither TTFT nor ITL: no objective can be judged."
        )
    families = dict.fromkeys(name.partition("_")[0] for name in limits)
    if not verdicts:
        return Opinion(None, None, _nothing_judged(families))
    known = {family_of(one.objective) for one in verdicts}
    unjudged = [family for family in families if family not in known and not has(judged, family)]
    sure = all(one.surely_met for one in verdicts) and not unjudged
    return Opinion("healthy", "high" if sure else "medium", lambda: _met(figures, unjudged))


def _met(figures: Numbers, unjudged: Sequence[str]) -> str:
    parts = [
        f"{name} p99 {seconds(latency.p99.value)}"
        for name, latency in (("TTFT", figures.ttft_seconds), ("ITL", figures.itl_seconds))
        if latency.p99 is not None
    ]
    summary = f"Objectives are met{': ' if parts else '.'}{', '.join(parts)}{'.' if parts else ''}"
    return summary + (f" Not judged, signal missing: {', '.join(unjudged)}." if unjudged else "")


def _nothing_judged(families: Iterable[str]) -> str:
    names = [family if family == "e2e" else family.upper() for family in families]
    if not names:
        return "Nothing to judge: this model has no objective."
    return f"Nothing to judge yet: no observation of {' or '.join(names)} in this window."


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
    view: WindowView,
    remaining: Window,
    symptoms: Mapping[Symptom, float],
    background: Background,
    *,
    wait_over_before: bool,
) -> Opinion:
    """The standstill, easing, explains the symptoms that go away without it; the rows judge what is left."""
    judged, limits, thresholds = view.window, view.limits, view.thresholds
    figures = numbers(remaining, thresholds, stall_seconds=stall_seconds(limits))
    left = {one.symptom: one.ratio for one in judge(remaining, figures, limits, thresholds) if one.missed}
    left |= other_symptoms(remaining, figures, limits, thresholds, wait_over_before=wait_over_before)
    explained = [one for one in symptoms if one.objective not in {other.objective for other in left}]
    standing = judged.seconds - remaining.seconds
    evidence = {"standstill_seconds": standing}
    summary, refuted_by = engine_stalled.texts_of_the_past(standing)
    causes = tuple(
        engine_stalled.CAUSE.cause(
            one.objective,
            Finding(_share_gone(one, judged, remaining), evidence, summary, refuted_by, easing=True),
            "medium",
            view=None,
            missing=(),
        )
        for one in explained
    )
    if left:
        rest = replace(view, window=remaining, numbers=figures)
        return _explained(left, rest, background, symptoms, causes)
    return Opinion(engine_stalled.CAUSE.verdict, "medium", causes[0].summary, causes, tuple(symptoms))


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
    cause = kind.CAUSE.cause("progress", finding, confidence, view=None, missing=missing)
    symptom = Symptom("progress", None, None, stall.certain, "critical")
    return Opinion(stall.kind, confidence, summary, (cause,), (symptom,), surely=True)
