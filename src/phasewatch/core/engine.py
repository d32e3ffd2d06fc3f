"""What is remembered of one engine, and what it says of it at any moment."""

from collections import deque
from dataclasses import dataclass, field

from phasewatch.core.diagnosis.advisories import advisories
from phasewatch.core.diagnosis.diagnose import missing_signals
from phasewatch.core.diagnosis.measures_view import Background, WindowView
from phasewatch.core.diagnosis.objectives import expected_wait_over
from phasewatch.core.diagnosis.opinion import Opinion, judge_engine, stalled_opinion
from phasewatch.core.diagnosis.progress import (
    Held,
    Progress,
    Stall,
    admission_stall,
    advance,
    begin,
    clients_left,
    engine_stall,
    hold,
    work_in_hand,
)
from phasewatch.core.diagnosis.verdicts import LIVENESS
from phasewatch.core.measures.histogram import count_above
from phasewatch.core.measures.numbers import numbers
from phasewatch.core.measures.past import Past, moment
from phasewatch.core.measures.sanity import Contradiction, consistent
from phasewatch.core.measures.window import since, step, window
from phasewatch.core.model import Advisory, Cause, EngineKey, EngineReport, Numbers, Snapshot, State, Step, Window
from phasewatch.core.settings import Limits, Settings

_ACTIVITY_COUNTERS = ("generation_tokens", "prompt_tokens", "finished", "http_finishes")
_ACTIVITY_HISTOGRAMS = ("ttft", "itl", "e2e")


@dataclass(slots=True)
class Engine:
    """Feed it snapshots in time order. stall: the last standstill proven, and until when it lasted."""

    key: EngineKey
    settings: Settings
    last: Snapshot
    progress: Progress
    born_at: float
    past: Past
    steps: deque[Step] = field(default_factory=deque)
    pages: int = 1
    restarts: int = 0
    held: Held = field(default_factory=Held)
    agreed: Opinion = field(default_factory=lambda: Opinion.of_state("warming_up"))  # the held verdict's own
    wait_over: bool = False
    stall: Stall | None = None
    stall_until: float = 0.0
    counts: dict[tuple[str, str, str], float] = field(default_factory=dict)
    first_request_at: float | None = None  # since its start; None where that was not seen
    contradictions: tuple[Contradiction, ...] = ()
    replaced: str | None = None  # the model that this target served before

    @classmethod
    def at_first_sight(cls, key: EngineKey, settings: Settings, snapshot: Snapshot) -> "Engine":
        return cls(key, settings, snapshot, begin(snapshot), snapshot.at, Past(settings.thresholds))

    @property
    def limits(self) -> Limits:
        return self.settings.objectives.of(self.key.model_name)

    def page(self, snapshot: Snapshot) -> bool:
        """One more page. Whether the engine had begun anew."""
        change = step(self.last, snapshot)
        stall = engine_stall(self.progress, self.settings.thresholds)
        if stall is not None:
            self.stall, self.stall_until = stall, snapshot.at
        self.progress = advance(self.progress, change, snapshot, self.settings.thresholds)
        self.last = snapshot
        self.steps.append(change)
        oldest = snapshot.at - max(self.settings.windows)
        while self.steps and self.steps[0].start < oldest:
            self.steps.popleft()
        self.pages += 1
        if change.restarted:
            self.restarts, self.born_at, self.pages = self.restarts + 1, snapshot.at, 1
            self.stall, self.first_request_at = None, None
        if self.first_request_at is None and _first_request(change, snapshot):
            self.first_request_at = change.start
        self.past.remember_step(change)
        alone = window((change,))
        if alone is not None:
            _count(self.counts, consistent(alone, self.settings.thresholds)[0], self.limits)
        return change.restarted

    def windows(self, at: float) -> dict[float, Window]:
        """By window length; lengths of which no two pages are there yet are left out."""
        built = ((seconds, window(since(self.steps, at - seconds))) for seconds in self.settings.windows)
        checked = {seconds: consistent(one, self.settings.thresholds) for seconds, one in built if one is not None}
        self.contradictions = checked[self.settings.windows[0]][1] if self.settings.windows[0] in checked else ()
        return {seconds: one for seconds, (one, _) in checked.items()}

    def report(
        self, windows: dict[float, Window], at: float, *, failures: int = 0, role: str | None = None
    ) -> EngineReport:
        """What is to be said at `at`; it is remembered: two agreeing evaluations make a verdict.

        failures: scrapes of its target that failed in a row.
        """
        judged = windows.get(self.settings.windows[0])
        figures = self._figures(windows)
        state = self._state(failures, judged)
        figure = figures.get(self.settings.windows[0])
        view = None if judged is None or figure is None else self._view(judged, figure)
        opinion = self._opinion(state, view, at)
        if state != "stale":  # one failed scrape neither confirms nor ends a verdict
            at_once = opinion.verdict in LIVENESS or (self.held.verdict == "healthy" and opinion.surely)
            self.held = hold(self.held, opinion.verdict, at, at_once=at_once)
        verdict = self.held.verdict if state != "stale" else None
        causes = self._causes(opinion) if verdict else ()
        leading = causes[0] if causes else None
        shown = self.agreed if verdict else opinion
        return EngineReport(
            key=self.key,
            role=role,
            state=state,
            gauges_stale=clients_left(self.progress) and self.progress.quiet_scrapes > 0,
            verdict=verdict,
            confidence=None if verdict is None else leading.confidence if leading else shown.confidence,
            score=leading.score if leading else None,
            summary=leading.summary if leading else shown.summary,
            since=self.held.since if verdict else None,
            previous_verdict=self.held.previous,
            causes=causes,
            symptoms=opinion.symptoms,
            advisories=self._advisories(state, view, at),
            missing=() if judged is None else missing_signals(judged),
            windows={} if state == "down" else figures,
            restarts=self.restarts,
            version=None,
            objective_counts=dict(self.counts),
        )

    def _figures(self, windows: dict[float, Window]) -> dict[float, Numbers]:
        return {
            seconds: numbers(
                one,
                self.settings.thresholds,
                stall_seconds=self.settings.stall_seconds(self.key.model_name),
                estimator=self.settings.estimator,
                seconds_per_prompt_token=self.past.seconds_per_prompt_token(one.steps[0].start),
                step_seconds=self.past.step_seconds(),
            )
            for seconds, one in windows.items()
        }

    def _state(self, failures: int, judged: Window | None) -> State:
        thresholds = self.settings.thresholds
        if failures >= thresholds.down_failures:
            return "down"
        if failures:
            return "stale"
        if self.last.gauges.get("awake") == 0:
            return "asleep"
        young = self.pages < thresholds.warm_pages or self.last.at - self.born_at < thresholds.warm_seconds
        if judged is None or young:
            return "warming_up"
        if clients_left(self.progress) and self.progress.quiet_scrapes >= thresholds.stall_scrapes:
            return "idle"
        if _finishes_without_tokens(judged) and not self.last.counters.get("generation_tokens"):
            return "no_engine_metrics"
        return "serving" if _busy(judged) else "idle"

    def _opinion(self, state: State, view: WindowView | None, at: float) -> Opinion:
        thresholds = self.settings.thresholds
        if state in ("down", "stale", "no_engine_metrics", "asleep"):
            return Opinion.of_state(state)
        stall = engine_stall(self.progress, thresholds)
        if stall is None and view is not None:
            stall = admission_stall(self.progress, thresholds, kv_short=view.kv_short_now)
        if stall is not None:
            return stalled_opinion(stall, self.progress, self.last)
        if state != "serving" or view is None:
            return Opinion.of_state(state)
        now = moment(at, view.window, view.numbers)
        self.past.remember(now)
        background = Background(self.past.view(now, view.window.steps), self.first_request_at)
        opinion = judge_engine(
            view,
            self.settings,
            background,
            wait_over_before=self.wait_over,
            past_stall=self.stall,
            past_stall_until=self.stall_until,
        )
        self.wait_over = expected_wait_over(view.numbers, self.limits)
        return opinion

    def _view(self, judged: Window, figures: Numbers) -> WindowView:
        return WindowView(judged, figures, self.limits, self.settings.thresholds)

    def _advisories(self, state: State, view: WindowView | None, at: float) -> tuple[Advisory, ...]:
        own = [Advisory("contradiction", {}, one.summary, "Check the vLLM version.") for one in self.contradictions]
        if self.replaced is not None and at - self.born_at <= self.settings.windows[0]:
            own.append(
                Advisory(
                    "model_changed",
                    {"before": self.replaced},
                    f"This target served {self.replaced} before: its history ends here, a new one begins.",
                    "Check that no two servers share the port.",
                )
            )
        if state != "serving" or view is None:
            return tuple(own)
        return (*own, *advisories(view))

    def _causes(self, opinion: Opinion) -> tuple[Cause, ...]:
        """The held verdict's cause first; while a challenger has been seen only once, as it was remembered, unless it
        is among the causes of now."""
        if self.held.verdict == opinion.verdict:
            self.agreed = opinion
            return opinion.causes
        if self.held.verdict == "healthy":
            return ()
        same = [
            cause
            for held in self.agreed.causes[:1]
            for cause in opinion.causes
            if (cause.verdict, cause.symptom) == (held.verdict, held.symptom)
        ]
        return (*(same or self.agreed.causes[:1]), *(cause for cause in opinion.causes if cause not in same))


def _busy(one: Window) -> bool:
    """Whether any request was there: idle means that nothing happened in the whole window."""
    return (
        any(one.increases.get(name, 0.0) > 0 for name in _ACTIVITY_COUNTERS)
        or any(one.histograms[name].count > 0 for name in _ACTIVITY_HISTOGRAMS if name in one.histograms)
        or any(one.gauges[name].max > 0 for name in ("running", "waiting") if name in one.gauges)
    )


def _finishes_without_tokens(one: Window) -> bool:
    """Generating handlers answer, yet the engine families stand still with nobody in hand: they are not attached."""
    return (
        one.increases.get("http_2xx", 0.0) >= 2
        and one.increases.get("generation_tokens", 0.0) == 0
        and not any(name in one.histograms and one.histograms[name].count > 0 for name in _ACTIVITY_HISTOGRAMS)
        and max(work_in_hand(gauges) for gauges in (one.steps[0].before, *(s.after for s in one.steps))) == 0
    )


def _first_request(change: Step, snapshot: Snapshot) -> bool:
    """Whether the first tokens of this interval are the first since the process began."""
    first, ever = change.histograms.get("ttft"), snapshot.histograms.get("ttft")
    return first is not None and ever is not None and first.count > 0 and first.count == ever.count


def _count(counts: dict[tuple[str, str, str], float], change: Window, limits: Limits) -> None:
    """Observations, and those over each limit, since the process began: what burn rates are made of."""
    for objective, limit in limits.items():
        family, _, statistic = objective.partition("_")
        histogram = change.histograms.get(family)
        if histogram is None or statistic == "mean":
            continue
        _add(counts, ("observations", objective, ""), histogram.count)
        for severity, seconds in (("warning", limit.warning), ("critical", limit.critical)):
            above = count_above(histogram, seconds)
            _add(counts, ("over", objective, severity), above.interpolated)
            _add(counts, ("over_surely", objective, severity), above.sure)


def _add(counts: dict[tuple[str, str, str], float], key: tuple[str, str, str], amount: float) -> None:
    counts[key] = counts.get(key, 0.0) + amount
