"""Pages and failures in, in time order; at any moment the whole Fleet out. The only state is what is kept here."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TypeVar

from phasewatch.core.diagnosis.peers import among, peer
from phasewatch.core.engine import Engine
from phasewatch.core.fleet import COMPARED, ModelKey, Peers, Windows, by_model, judged_together, merge_model, unmerged
from phasewatch.core.measures.quantile import fit_together, settle
from phasewatch.core.measures.window import CORE_COUNTERS
from phasewatch.core.model import (
    Anomaly,
    AnomalyKind,
    EngineKey,
    EngineReport,
    Fault,
    Fleet,
    Latency,
    ModelReport,
    Page,
    Snapshot,
    State,
    TargetReport,
)
from phasewatch.core.settings import Settings

T = TypeVar("T")
EngineId = tuple[str, str]  # model_name, engine
_LONGEST_ERROR = 200
# Reasons of failed scrapes that no server has while it loads its model: something else answers, or is asked wrongly.
_ANSWERED = frozenset(
    {"authentication", "redirect", "not_metrics", "too_large", "truncated", "protocol", "encoding", "tls"}
)
# Percentiles of so many engines cost a third each of what one's alone do; of more, the work would come in bursts.
_MOST_PENDING = 64


@dataclass(slots=True)
class _Target:
    """faults: what went wrong with an engine at its last page, and at which page that began."""

    engines: dict[EngineId, Engine] = field(default_factory=dict)
    faults: dict[EngineId, tuple[Fault, float]] = field(default_factory=dict)
    page: Page | None = None
    failures: int = 0
    error: str | None = None
    success_at: float | None = None
    restarts: int = 0
    first_at: float | None = None  # when it was first asked
    partial: int = 0  # pages in a row that lack the engines
    whole_at: float = 0.0  # the last page that has them
    unseen_answers: float = 0.0  # since any engine moved
    anomalies: dict[AnomalyKind, Anomaly] = field(default_factory=dict)


class Watcher:
    """Feed it pages and failures of each target in time order, and ask for the Fleet at any later moment.

    Times are seconds on one clock that never runs backwards; nothing here asks what time it is. What is remembered
    moves with pages and failures only: asking, however often, changes nothing. An exception (a mistake of ours) costs
    the engine or the model that it was about, and is handed out as its report's `fault`.

    A page is taken in and measured at once. It is judged with those of other engines, whose percentiles are fitted
    together, before anything depends on it: the engine's next page, the comparison of engines, a Fleet.
    """

    def __init__(self, settings: Settings, roles: Mapping[str, str] | None = None) -> None:
        """roles: prefill or decode by target name, where they are configured."""
        self._settings = settings
        self._roles = roles or {}
        self._models: dict[ModelKey, Peers] = {}
        self._targets: dict[str, _Target] = {}
        self._pending: list[EngineKey] = []  # engines whose last page is not judged yet
        self._rounds: list[ModelKey] = []  # models whose round is over, to be compared when these are judged

    def page(self, target: str, page: Page) -> None:
        """One good page."""
        served = self._begin_turn(target)
        memory = self._targets.setdefault(target, _Target())
        odd = [*page.anomalies]
        if memory.success_at is not None and page.at <= memory.success_at:
            odd.append(Anomaly("page_order", 1, f"a scrape of second {page.at:g} after one of {memory.success_at:g}"))
        unseen = self._unseen(memory, page)
        memory.failures, memory.error, memory.success_at, memory.page = 0, None, page.at, page
        memory.partial = memory.partial + 1 if self._is_partial(memory, page) else 0
        if memory.partial:
            self._without_engines(memory, page, odd)
            self._end_turn(target, page.at, served)
            return
        memory.whole_at, memory.unseen_answers = page.at, unseen
        # An engine that is gone from a good page is gone: its series end, a new one starts with a baseline.
        before = next((key[0] for key in memory.engines), None)
        memory.engines = {key: engine for key, engine in memory.engines.items() if key in page.engines}
        memory.faults = {key: fault for key, fault in memory.faults.items() if key in page.engines}
        restarts = []
        for key, snapshot in page.engines.items():
            engine = memory.engines.get(key)
            if engine is not None:
                engine.unseen_answers = unseen
            if engine is None or snapshot.at > engine.last.at:
                restarts.append(self._take(memory, EngineKey(target, *key), snapshot, before))
        # The engines of a page are one server. One that came after the restart may take back what nobody counted.
        memory.restarts = max(0, memory.restarts + max(restarts, key=abs, default=0))
        contradictions = (one for engine in memory.engines.values() for one in engine.contradictions)
        odd += (Anomaly(one.kind, 1, one.summary) for one in contradictions)
        memory.anomalies = _counted(memory.anomalies, odd)
        self._end_turn(target, page.at, served)

    def failure(self, target: str, at: float, reason: str) -> None:
        """One failed scrape: costs this target only, and erases nothing."""
        served = self._begin_turn(target)
        memory = self._targets.setdefault(target, _Target())
        memory.failures += 1
        memory.error = reason
        if memory.first_at is None:
            memory.first_at = at
        if memory.failures == self._settings.thresholds.down_failures:
            for engine in memory.engines.values():
                engine.lost(at)
        self._end_turn(target, at, served)

    def _is_partial(self, memory: _Target, page: Page) -> bool:
        """Whether the page lacks what those before it had of the same server: all its engines, or (three times in a
        row, then it is what the server has) most of each engine's signals."""
        if not memory.engines or page.at - memory.whole_at > max(self._settings.windows):
            return False
        if page.kind != "engine":
            return True
        known = [(memory.engines[key].last, now) for key, now in page.engines.items() if key in memory.engines]
        fewer = memory.partial + 1 < self._settings.thresholds.down_failures and len(known) == len(page.engines)
        return fewer and all(_signals(now) < _signals(before) / 2 for before, now in known)

    def _without_engines(self, memory: _Target, page: Page, odd: list[Anomaly]) -> None:
        """A partial page: it costs what it lacks, and erases nothing."""
        odd.append(Anomaly("partial_page", 1, f"the scrape of second {page.at:g} lacks the engine's metrics"))
        memory.anomalies = _counted(memory.anomalies, odd)
        if memory.partial == self._settings.thresholds.down_failures:
            for engine in memory.engines.values():
                engine.lost(page.at)

    def _unseen(self, memory: _Target, page: Page) -> float:
        """HTTP answers since every engine of the server has stood still for so long that they are of no request that an
        engine finished: a busy front end sends the last words seconds after them."""
        thresholds = self._settings.thresholds
        still = all(
            engine.progress.quiet_scrapes >= thresholds.stall_scrapes
            and engine.last.at - engine.progress.moved_at >= thresholds.stall_seconds
            and not _moved(engine.last, page.engines.get(key))
            for key, engine in memory.engines.items()
        )
        if not still or memory.page is None:
            return 0.0
        answers = page.http.get("http_2xx", 0.0) - memory.page.http.get("http_2xx", inf)
        return memory.unseen_answers + answers if answers >= 0 else 0.0

    def evaluate(self, at: float) -> Fleet:
        """The whole truth at `at`. The percentiles of all engines are fitted at once."""
        self._judge()
        known = [
            _guarded("measuring", engine.windows)[0]
            for memory in self._targets.values()
            for engine in memory.engines.values()
        ]
        fit_together(
            latency for windows in known if windows for _, one in windows.values() for latency in one.latencies
        )
        said = {
            name: [self._report(memory, EngineKey(name, *one), at) for one in sorted({*memory.engines, *memory.faults})]
            for name, memory in self._targets.items()
        }
        said = {name: [self._settled(one) for one in reports] for name, reports in said.items()}
        engines = self._among_peers([one for reports in said.values() for one in reports])
        targets = tuple(self._target(name, self._targets[name], reports, at) for name, reports in said.items())
        groups = by_model(engines)
        merged = {key: self._merged(key, members) for key, members in groups.items()}
        fit_together(latency for one, _ in merged.values() if one is not None for latency in _latencies(one))
        models = tuple(self._model(key, members, *merged[key]) for key, members in groups.items())
        return Fleet(at, self._settings.windows[0], engines, models, targets)

    # --- engines -------------------------------------------------------------------------------------------------

    def _take(self, memory: _Target, key: EngineKey, snapshot: Snapshot, before: str | None) -> int:
        """One page of one engine; before: the model that the target served until now. As Engine.page."""
        one = key[1:]
        engine = memory.engines.pop(one, None)  # half of a page is no memory: only back when it is taken in
        restarts = 0

        def take_in() -> Engine:
            nonlocal restarts
            if engine is not None:
                restarts = engine.page(snapshot)
                return engine
            role, replaced = self._roles.get(key.target), before if before != key.model_name else None
            return Engine.at_first_sight(key, self._settings, snapshot, role=role, replaced=replaced)

        taken, fault = _guarded("taking in a scrape", take_in)
        if taken is not None:
            memory.engines[one] = taken
            _, fault = _guarded("judging a scrape", taken.measure)
        if fault is None:
            self._pending.append(key)
            if len(self._pending) >= _MOST_PENDING:
                self._judge()
        else:
            self._spoilt(memory, one, fault, snapshot.at)
        return 0 if taken is None else restarts

    def _judge(self) -> None:
        """All that is pending, each as of its own page; then the rounds that are over."""
        pending, self._pending = self._pending, []
        engines = {key: self._targets[key.target].engines[key[1:]] for key in pending}
        asked = (_guarded("judging a scrape", one.asked)[0] for one in engines.values())
        fit_together(latency for latencies in asked if latencies for latency in latencies)
        for key, engine in engines.items():
            memory, served = self._targets[key.target], self._served(key.target)
            _, fault = _guarded("judging a scrape", engine.judge)
            if fault is not None:
                self._spoilt(memory, key[1:], fault, engine.last.at)
            elif engine.pages > 1 or engine.restarts:  # at first sight nothing is shown to work again
                memory.faults.pop(key[1:], None)
            for gone in served - self._served(key.target):
                self._leave(key.target, gone)
        rounds, self._rounds = self._rounds, []
        for model in rounds:
            peers = self._models.get(model)
            if peers is not None:  # else its last engine was given up just now
                peers.heard.clear()
                _, peers.fault = _guarded("comparing engines", partial(self._compare, model, peers))

    def _spoilt(self, memory: _Target, one: EngineId, fault: Fault, at: float) -> None:
        """The page of an engine at `at` could not be taken in or judged."""
        since = memory.faults[one][1] if one in memory.faults else at
        memory.faults[one] = fault, since
        # What was remembered may itself be what cannot be judged; no window reaches further back than this.
        if at - since > max(self._settings.windows):
            memory.engines.pop(one, None)
        if one in memory.engines:
            memory.engines[one].lost(at)

    def _report(self, memory: _Target, key: EngineKey, at: float) -> EngineReport:
        role = self._roles.get(key.target)
        fault, _ = memory.faults.get(key[1:], (None, 0.0))
        if fault is None:
            engine = memory.engines[key[1:]]
            report, fault = _guarded(
                "reporting", lambda: engine.report(at, failures=memory.failures, partial=memory.partial, role=role)
            )
            if report is not None:
                return report
        assert fault is not None
        return self._faulty(key, fault)

    def _settled(self, report: EngineReport) -> EngineReport:
        """No reader of it can fail."""
        _, fault = _guarded("fitting percentiles", lambda: _settle(report))
        return report if fault is None else self._faulty(report.key, fault)

    def _faulty(self, key: EngineKey, fault: Fault) -> EngineReport:
        memory, role = self._targets[key.target], self._roles.get(key.target)
        down = memory.failures >= self._settings.thresholds.down_failures
        return EngineReport(
            key=key, role=role, state="down" if down else "internal_error", gauges_stale=False, verdict=None,
            confidence=None, score=None, summary=fault.summary, since=None, previous_verdict=None, causes=(),
            symptoms=(), advisories=(), missing=(), windows={}, restarts=0, fault=fault,
        )  # fmt: skip

    # --- models --------------------------------------------------------------------------------------------------

    def _served(self, target: str) -> set[ModelKey]:
        memory = self._targets.get(target)
        return set() if memory is None else {(name, self._roles.get(target)) for name, _ in memory.engines}

    def _begin_turn(self, target: str) -> set[ModelKey]:
        """The models that it serves so far: where it was heard in this round, it ends the round."""
        if any(key.target == target for key in self._pending) or not self._served(target).isdisjoint(self._rounds):
            self._judge()
        over = [key for key in self._served(target) if target in self._models[key].heard]
        if over:
            self._rounds += over
            self._judge()
        return self._served(target)

    def _end_turn(self, target: str, at: float, served: set[ModelKey]) -> None:
        """served: the models it served before. A round ends when every target of the model has been heard."""
        serves = self._served(target)
        if not (serves ^ served).isdisjoint(self._rounds):
            self._judge()
        for key in served - serves:
            self._leave(target, key)
        for key in serves:
            peers = self._models.setdefault(key, Peers())
            peers.targets.add(target)
            peers.heard.add(target)
            peers.heard_at = max(peers.heard_at, at)
        self._rounds += [key for key in serves if self._models[key].heard == self._models[key].targets]

    def _among_peers(self, engines: Sequence[EngineReport]) -> tuple[EngineReport, ...]:
        """What is said of each, with what its siblings add to it."""
        groups = by_model(engines)
        return tuple(self._beside(one, groups[(one.key.model_name, one.role)]) for one in engines)

    def _beside(self, report: EngineReport, siblings: Sequence[EngineReport]) -> EngineReport:
        peers = self._models.get((report.key.model_name, report.role), Peers())
        if len(siblings) > 1:
            report = among(report, siblings, peers.apart)
        note = peers.notes.get(report.key)
        if report.state not in COMPARED or (note is None and not peers.pooled):
            return report
        # What siblings tell of its connections is better known than what it tells alone.
        own = tuple(one for one in report.advisories if one.kind != "open_connections")
        return replace(report, advisories=own if note is None else (*own, note))

    def _compare(self, key: ModelKey, peers: Peers) -> None:
        compared = [
            peer(engine.key, state, engine.held.verdict, engine.opinion.symptoms, engine.view)
            for target in sorted(peers.targets)
            for one, engine in sorted(self._targets[target].engines.items())
            if one[0] == key[0] and one not in self._targets[target].faults
            if (state := engine.state_at(peers.heard_at, self._targets[target].failures, self._targets[target].partial))
            in COMPARED
            if engine.view is not None
        ]
        peers.form(compared, self._settings.thresholds)

    def _leave(self, target: str, key: ModelKey) -> None:
        peers = self._models.get(key)
        if peers is None:
            return
        peers.targets.discard(target)
        peers.heard.discard(target)
        if not peers.targets:
            del self._models[key]

    def _windows(self, members: Sequence[EngineReport]) -> Windows:
        return {
            one.key: self._targets[one.key.target].engines[one.key[1:]].windows()
            for one in members
            if one.state not in ("down", "internal_error")
        }

    def _merged(self, key: ModelKey, members: Sequence[EngineReport]) -> tuple[ModelReport | None, Fault | None]:
        apart, windows = self._models.get(key, Peers()).apart, self._windows(members)
        return _guarded("merging engines", lambda: merge_model(key, members, windows, self._settings, apart))

    def _model(
        self, key: ModelKey, members: Sequence[EngineReport], merged: ModelReport | None, fault: Fault | None
    ) -> ModelReport:
        """No reader of it can fail."""
        if merged is not None:
            merged, fault = _guarded("merging engines", partial(self._judged, merged, members))
        fault = fault or self._models.get(key, Peers()).fault
        if merged is None or fault is not None:
            assert fault is not None
            return unmerged(key, members, fault)
        return merged

    def _judged(self, merged: ModelReport, members: Sequence[EngineReport]) -> ModelReport:
        """With its objectives, over the engines whose figures are of now."""
        of_now = [one for one in members if one.objectives]
        objectives = of_now[0].objectives if of_now else ()
        if len(of_now) > 1 and merged.numbers is not None:
            engines = [self._targets[one.key.target].engines[one.key[1:]] for one in of_now]
            objectives = judged_together(engines, self._windows(of_now), merged.numbers, self._settings)
        judged = replace(merged, objectives=objectives)
        _settle(judged)
        return judged

    def _target(self, name: str, memory: _Target, reports: Sequence[EngineReport], at: float) -> TargetReport:
        error = memory.error
        if error is None and memory.page is not None and memory.page.kind != "engine":
            error = memory.page.foreign or (_PARTIAL if memory.engines else _NO_ENGINE[memory.page.kind])
        return TargetReport(
            target=name,
            url=None,
            state=self._state(memory, reports, at),
            last_error=error,
            last_success_age_seconds=None if memory.success_at is None else at - memory.success_at,
            scrape_seconds=None,
            missing_signals=max((len(report.missing) for report in reports), default=0),
            restarts=memory.restarts,
            anomalies=tuple(memory.anomalies.values()),
            starting_seconds=self._starting(memory, at),
        )

    def _starting(self, memory: _Target, at: float) -> float | None:
        """For how long a target that has never answered has been asked, while it may still be loading its model."""
        if memory.success_at is not None or memory.first_at is None:
            return None
        answered = (memory.error or "").partition(":")[0] in _ANSWERED
        asked = at - memory.first_at
        return asked if asked < self._settings.startup_grace and not answered else None

    def _state(self, memory: _Target, reports: Sequence[EngineReport], at: float) -> State:
        """The liveliest of its engines' states, where its last page was good."""
        least = self._settings.thresholds.down_failures
        if self._starting(memory, at) is not None:
            return "starting"
        if memory.failures:
            return "down" if memory.failures >= least or memory.success_at is None else "stale"
        if 0 < memory.partial < least:
            return "stale"
        if memory.partial or memory.page is None or memory.page.kind != "engine":
            return "no_engine_metrics"
        return min((report.state for report in reports), key=_LIVELINESS.index)


_LIVELINESS: tuple[State, ...] = (
    "serving", "warming_up", "internal_error", "no_engine_metrics", "idle", "asleep", "stale",
)  # fmt: skip

_PARTIAL = "the last scrape lacks the engine's metrics, which the one before had"
_NO_ENGINE = {
    "router": "a router's /metrics has no latency histograms; scrape the engines behind it directly",
    "declared": "engine metrics are declared but have no samples; check that the engine's stat logger is attached",
    "none": "no vLLM metrics in the scrape; enable the engine's stat logger (not --disable-log-stats) or check the URL",
}


def _moved(before: Snapshot, now: Snapshot | None) -> bool:
    """Whether tokens or finishes were counted between two pages of an engine."""
    return now is not None and any(now.counters.get(name) != before.counters.get(name) for name in CORE_COUNTERS)


def _counted(before: Mapping[AnomalyKind, Anomaly], odd: Iterable[Anomaly]) -> dict[AnomalyKind, Anomaly]:
    """All since the start, with those of one page added."""
    counted = {kind: replace(one, present=False) for kind, one in before.items()}
    for one in odd:
        known = counted.get(one.kind)
        counted[one.kind] = replace(one, count=one.count + (known.count if known else 0))
    return counted


def _signals(snapshot: Snapshot) -> int:
    return len(snapshot.gauges) + len(snapshot.counters) + len(snapshot.histograms)


def _settle(report: EngineReport | ModelReport) -> None:
    settle(_latencies(report))
    for one in report.objectives:
        if one.value is not None:
            _ = one.value.value


def _latencies(report: EngineReport | ModelReport) -> list[Latency]:
    return [latency for figures in report.windows.values() for latency in figures.latencies]


def _guarded(doing: str, work: Callable[[], T]) -> tuple[T | None, Fault | None]:
    """What the work returns, or what went wrong with it: our own mistake, whatever it is."""
    try:
        return work(), None
    except Exception as error:
        frames = tuple(_frames(error))
        said = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR]
        where = "{}:{}".format(*frames[-1][:2])
        lines = (f"  {file}:{line} in {function}" for file, line, function in frames)
        return None, Fault(doing, said, where, "\n".join(("Traceback (most recent call last):", *lines, said)))


def _frames(error: Exception) -> Iterator[tuple[str, int, str]]:
    """File, line and function, from the outermost on; the standard library's way would read source files."""
    frame = error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        yield code.co_filename.replace("\\", "/").rpartition("/")[2], frame.tb_lineno, code.co_name
        frame = frame.tb_next
