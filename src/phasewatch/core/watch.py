"""Pages and failures in, in time order; at any moment the whole Fleet out. The only state is what is kept here."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from phasewatch.core.diagnose import Background, missing_signals
from phasewatch.core.histogram import count_above
from phasewatch.core.model import (
    Cause,
    EngineKey,
    EngineReport,
    Fleet,
    Numbers,
    Page,
    Snapshot,
    State,
    Step,
    TargetReport,
    Window,
)
from phasewatch.core.models import merge_models
from phasewatch.core.numbers import numbers
from phasewatch.core.past import Past, moment
from phasewatch.core.settings import Limits, Settings
from phasewatch.core.states import (
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
from phasewatch.core.symptoms import expected_wait_over
from phasewatch.core.verdict import Opinion, judge_engine, stalled_opinion
from phasewatch.core.verdicts import LIVENESS
from phasewatch.core.window import since, step, window

_ACTIVITY_COUNTERS = ("generation_tokens", "prompt_tokens", "finished", "http_finishes")
_ACTIVITY_HISTOGRAMS = ("ttft", "itl", "e2e")


@dataclass(slots=True)
class _Engine:
    """What is remembered of one engine."""

    last: Snapshot
    progress: Progress
    steps: deque[Step] = field(default_factory=deque)
    born_at: float = 0.0
    pages: int = 1
    restarts: int = 0
    held: Held = field(default_factory=Held)
    causes: tuple[Cause, ...] = ()
    wait_over: bool = False
    stall: Stall | None = None  # the last one proven, and until when
    stall_until: float = 0.0
    counts: dict[tuple[str, str, str], float] = field(default_factory=dict)
    past: Past = field(default_factory=Past)
    first_request_at: float | None = None  # since its start; None where that was not seen


@dataclass(slots=True)
class _Target:
    engines: dict[tuple[str, str], _Engine] = field(default_factory=dict)
    page: Page | None = None
    failures: int = 0
    error: str | None = None
    success_at: float | None = None


class Watcher:
    """Feed it pages and failures of each target in time order, and ask for the Fleet at any later moment.

    Times are seconds on one clock that never runs backwards; nothing here asks what time it is.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._targets: dict[str, _Target] = {}

    def page(self, target: str, page: Page) -> None:
        """One good page."""
        memory = self._targets.setdefault(target, _Target())
        memory.failures, memory.error, memory.success_at, memory.page = 0, None, page.at, page
        # An engine that is gone from a good page is gone: its series end, a new one starts with a baseline.
        memory.engines = {key: engine for key, engine in memory.engines.items() if key in page.engines}
        for key, snapshot in page.engines.items():
            engine = memory.engines.get(key)
            if engine is None:
                memory.engines[key] = _Engine(snapshot, begin(snapshot), born_at=page.at)
            elif snapshot.at > engine.last.at:
                self._step(engine, snapshot, self._settings.objectives.of(key[0]))

    def failure(self, target: str, at: float, reason: str) -> None:
        """One failed scrape: costs this target only, and erases nothing until a whole window has passed."""
        memory = self._targets.setdefault(target, _Target())
        memory.failures += 1
        memory.error = reason

    def forget(self, target: str) -> None:
        """A target that is no longer watched: everything of it ends."""
        self._targets.pop(target, None)

    def evaluate(self, at: float) -> Fleet:
        """The whole truth at `at`. Call it once per round: two agreeing evaluations make a verdict."""
        engines: list[EngineReport] = []
        targets: list[TargetReport] = []
        windows: dict[EngineKey, dict[float, Window]] = {}
        for name, memory in self._targets.items():
            reports: list[EngineReport] = []
            for (model_name, engine_label), engine in sorted(memory.engines.items()):
                key = EngineKey(name, model_name, engine_label)
                windows[key] = self._windows(engine, at)
                reports.append(self._report(key, engine, memory, windows[key], at))
            engines.extend(reports)
            targets.append(self._target(name, memory, reports, at))
        models = merge_models(engines, windows, self._settings)
        return Fleet(at, self._settings.windows[0], tuple(engines), models, tuple(targets))

    def _step(self, engine: _Engine, snapshot: Snapshot, limits: Limits) -> None:
        change = step(engine.last, snapshot)
        stall = engine_stall(engine.progress, self._settings.thresholds)
        if stall is not None:
            engine.stall, engine.stall_until = stall, snapshot.at
        engine.progress = advance(engine.progress, change, snapshot, self._settings.thresholds)
        engine.last = snapshot
        engine.steps.append(change)
        oldest = snapshot.at - max(self._settings.windows)
        while engine.steps and engine.steps[0].start < oldest:
            engine.steps.popleft()
        engine.pages += 1
        if change.restarted:
            engine.restarts, engine.born_at, engine.pages, engine.stall = engine.restarts + 1, snapshot.at, 1, None
            engine.first_request_at = None
        if engine.first_request_at is None and _first_request(change, snapshot):
            engine.first_request_at = change.start
        _count(engine.counts, change, limits)

    def _windows(self, engine: _Engine, at: float) -> dict[float, Window]:
        built = ((seconds, window(since(engine.steps, at - seconds))) for seconds in self._settings.windows)
        return {seconds: one for seconds, one in built if one is not None}

    def _report(
        self, key: EngineKey, engine: _Engine, target: _Target, windows: dict[float, Window], at: float
    ) -> EngineReport:
        settings = self._settings
        limits = settings.objectives.of(key.model_name)
        stall_limit = limits["itl_stall"].warning if "itl_stall" in limits else 1.0
        judged = windows.get(settings.windows[0])
        figures: dict[float, Numbers] = {
            seconds: numbers(
                one,
                settings.thresholds,
                stall_seconds=stall_limit,
                estimator=settings.estimator,
                seconds_per_prompt_token=engine.past.seconds_per_prompt_token(one.steps[0].start),
            )
            for seconds, one in windows.items()
        }
        state = self._state(engine, target, judged)
        opinion = self._opinion(engine, state, judged, figures.get(settings.windows[0]), limits, at)
        if state != "stale":  # one failed scrape neither confirms nor ends a verdict
            self._hold(engine, opinion, at)
        verdict = engine.held.verdict if state != "stale" else None
        causes = self._causes(engine, opinion) if verdict else ()
        leading = causes[0] if causes else None
        return EngineReport(
            key=key,
            role=None,
            state=state,
            gauges_stale=clients_left(engine.progress) and engine.progress.quiet_scrapes > 0,
            verdict=verdict,
            confidence=None if verdict is None else leading.confidence if leading else opinion.confidence,
            score=leading.score if leading else None,
            summary=leading.summary if leading else opinion.summary,
            since=engine.held.since if verdict else None,
            previous_verdict=engine.held.previous,
            causes=causes,
            symptoms=opinion.symptoms,
            advisories=opinion.advisories,
            missing=() if judged is None else missing_signals(judged),
            windows={} if state == "down" else figures,
            restarts=engine.restarts,
            version=None,
            objective_counts=dict(engine.counts),
        )

    def _opinion(
        self,
        engine: _Engine,
        state: State,
        judged: Window | None,
        figures: Numbers | None,
        limits: Limits,
        at: float,
    ) -> Opinion:
        thresholds = self._settings.thresholds
        if state in ("down", "stale", "no_engine_metrics", "asleep"):
            return Opinion.of_state(state)
        stall = engine_stall(engine.progress, thresholds)
        if stall is None and judged is not None and figures is not None:
            stall = admission_stall(engine.progress, thresholds, kv_short=_kv_short(figures))
        if stall is not None:
            return stalled_opinion(stall, engine.progress, engine.last)
        if state != "serving" or judged is None or figures is None:
            return Opinion.of_state(state)
        now = moment(at, judged, figures)
        engine.past.remember(now)
        opinion = judge_engine(
            judged,
            figures,
            limits,
            self._settings,
            Background(engine.past.view(now, judged.steps[0].start, thresholds), engine.first_request_at),
            wait_over_before=engine.wait_over,
            past_stall=engine.stall,
            past_stall_until=engine.stall_until,
        )
        engine.wait_over = expected_wait_over(figures, limits)
        return opinion

    def _hold(self, engine: _Engine, opinion: Opinion, at: float) -> None:
        at_once = opinion.verdict in LIVENESS or (engine.held.verdict == "healthy" and opinion.surely)
        engine.held = hold(engine.held, opinion.verdict, at, at_once=at_once)

    def _causes(self, engine: _Engine, opinion: Opinion) -> tuple[Cause, ...]:
        """The held verdict's cause first; while a challenger has been seen only once, as it was remembered."""
        if engine.held.verdict == opinion.verdict:
            engine.causes = opinion.causes
            return opinion.causes
        if engine.held.verdict == "healthy":
            return ()
        return (*engine.causes[:1], *opinion.causes)

    def _state(self, engine: _Engine, target: _Target, judged: Window | None) -> State:
        thresholds = self._settings.thresholds
        if target.failures >= thresholds.down_failures:
            return "down"
        if target.failures:
            return "stale"
        if engine.last.gauges.get("awake") == 0:
            return "asleep"
        if (
            judged is None
            or engine.pages < thresholds.warm_pages
            or (engine.last.at - engine.born_at < thresholds.warm_seconds)
        ):
            return "warming_up"
        if clients_left(engine.progress) and engine.progress.quiet_scrapes >= thresholds.stall_scrapes:
            return "idle"
        if _finishes_without_tokens(judged):
            return "no_engine_metrics"
        return "serving" if _busy(judged) else "idle"

    def _target(self, name: str, memory: _Target, reports: Sequence[EngineReport], at: float) -> TargetReport:
        state: State
        if memory.failures:
            state = "down" if memory.failures >= self._settings.thresholds.down_failures else "stale"
        elif memory.page is None or memory.page.kind != "engine":
            state = "no_engine_metrics"
        else:
            order: tuple[State, ...] = ("serving", "warming_up", "no_engine_metrics", "idle", "asleep")
            state = min((report.state for report in reports), key=order.index)
        error = memory.error
        if error is None and memory.page is not None and memory.page.kind != "engine":
            error = _NO_ENGINE[memory.page.kind]
        return TargetReport(
            target=name,
            url=None,
            state=state,
            last_error=error,
            last_success_age_seconds=None if memory.success_at is None else at - memory.success_at,
            scrape_seconds=None,
            missing_signals=max((len(report.missing) for report in reports), default=0),
            restarts=sum(engine.restarts for engine in memory.engines.values()),
        )


_NO_ENGINE = {
    "router": "a router's page: it has no latency histograms; scrape the engines behind it directly",
    "declared": "engine metrics are declared but have no samples; check that the engine's stat logger is attached",
    "none": "no vLLM metrics on the page; enable the engine's stat logger (not --disable-log-stats) or check the URL",
}


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


def _kv_short(figures: Numbers) -> bool:
    """Whether the pool has no room for a mean prompt now."""
    usage, capacity = figures.kv_cache.usage_ratio, figures.kv_cache.capacity_tokens
    prompt = figures.tokens.prompt_mean
    if usage is None:
        return False
    if capacity is None or prompt is None:
        return usage >= 0.95
    return (1 - usage) * capacity < prompt


def _count(counts: dict[tuple[str, str, str], float], change: Step, limits: Limits) -> None:
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
