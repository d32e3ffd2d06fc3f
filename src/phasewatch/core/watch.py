"""Pages and failures in, in time order; at any moment the whole Fleet out. The only state is what is kept here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from phasewatch.core.diagnosis.progress import Held
from phasewatch.core.engine import Engine
from phasewatch.core.fleet import ModelKey, merge_models
from phasewatch.core.model import Cause, EngineKey, EngineReport, Fleet, Page, State, TargetReport, Window
from phasewatch.core.settings import Settings


@dataclass(slots=True)
class _Target:
    engines: dict[tuple[str, str], Engine] = field(default_factory=dict)
    page: Page | None = None
    failures: int = 0
    error: str | None = None
    success_at: float | None = None
    restarts: int = 0


class Watcher:
    """Feed it pages and failures of each target in time order, and ask for the Fleet at any later moment.

    Times are seconds on one clock that never runs backwards; nothing here asks what time it is.
    """

    def __init__(self, settings: Settings, roles: Mapping[str, str] | None = None) -> None:
        """roles: prefill or decode by target name, where they are configured."""
        self._settings = settings
        self._roles = roles or {}
        self._models: dict[ModelKey, tuple[Held, Cause | None]] = {}
        self._targets: dict[str, _Target] = {}

    def page(self, target: str, page: Page) -> None:
        """One good page."""
        memory = self._targets.setdefault(target, _Target())
        memory.failures, memory.error, memory.success_at, memory.page = 0, None, page.at, page
        # An engine that is gone from a good page is gone: its series end, a new one starts with a baseline.
        before = next((key[0] for key in memory.engines), None)
        memory.engines = {key: engine for key, engine in memory.engines.items() if key in page.engines}
        anew = False
        for key, snapshot in page.engines.items():
            engine = memory.engines.get(key)
            if engine is None:
                memory.engines[key] = Engine.at_first_sight(EngineKey(target, *key), self._settings, snapshot)
                memory.engines[key].replaced = before if before != key[0] else None
            elif snapshot.at > engine.last.at:
                anew |= engine.page(snapshot)
        memory.restarts += anew  # the engines of a page are one server

    def failure(self, target: str, at: float, reason: str) -> None:
        """One failed scrape: costs this target only, and erases nothing."""
        memory = self._targets.setdefault(target, _Target())
        memory.failures += 1
        memory.error = reason

    def evaluate(self, at: float) -> Fleet:
        """The whole truth at `at`. Call it once per round: two agreeing evaluations make a verdict."""
        engines: list[EngineReport] = []
        targets: list[TargetReport] = []
        windows: dict[EngineKey, dict[float, Window]] = {}
        for name, memory in self._targets.items():
            reports: list[EngineReport] = []
            for _, engine in sorted(memory.engines.items()):
                windows[engine.key] = engine.windows(at)
                reports.append(
                    engine.report(windows[engine.key], at, failures=memory.failures, role=self._roles.get(name))
                )
            engines.extend(reports)
            targets.append(self._target(name, memory, reports, at))
        models = merge_models(engines, windows, self._settings, self._models, at)
        return Fleet(at, self._settings.windows[0], tuple(engines), models, tuple(targets))

    def _target(self, name: str, memory: _Target, reports: Sequence[EngineReport], at: float) -> TargetReport:
        error = memory.error
        if error is None and memory.page is not None and memory.page.kind != "engine":
            error = _NO_ENGINE[memory.page.kind]
        return TargetReport(
            target=name,
            url=None,
            state=self._state(memory, reports),
            last_error=error,
            last_success_age_seconds=None if memory.success_at is None else at - memory.success_at,
            scrape_seconds=None,
            missing_signals=max((len(report.missing) for report in reports), default=0),
            restarts=memory.restarts,
        )

    def _state(self, memory: _Target, reports: Sequence[EngineReport]) -> State:
        """The liveliest of its engines' states, where its last page was good."""
        if memory.failures:
            return "down" if memory.failures >= self._settings.thresholds.down_failures else "stale"
        if memory.page is None or memory.page.kind != "engine":
            return "no_engine_metrics"
        return min((report.state for report in reports), key=_LIVELINESS.index)


_LIVELINESS: tuple[State, ...] = ("serving", "warming_up", "no_engine_metrics", "idle", "asleep")

_NO_ENGINE = {
    "router": "a router's page: it has no latency histograms; scrape the engines behind it directly",
    "declared": "engine metrics are declared but have no samples; check that the engine's stat logger is attached",
    "none": "no vLLM metrics on the page; enable the engine's stat logger (not --disable-log-stats) or check the URL",
}
