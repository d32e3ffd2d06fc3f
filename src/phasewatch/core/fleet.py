"""Engines of a model (and role) as one: their numbers joined as measure_table says, and one verdict."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from phasewatch.core.diagnosis.objectives import judge
from phasewatch.core.diagnosis.peers import Peer, compare
from phasewatch.core.diagnosis.progress import Held, hold
from phasewatch.core.diagnosis.verdicts import LIVENESS
from phasewatch.core.engine import Engine
from phasewatch.core.measures.history import reach
from phasewatch.core.measures.numbers import pooled_numbers
from phasewatch.core.measures.sanity import consistent
from phasewatch.core.measures.window import fleet_window
from phasewatch.core.model import (
    Advisory,
    Cause,
    EngineKey,
    EngineReport,
    Fault,
    ModelReport,
    Numbers,
    ObjectiveResult,
    Window,
)
from phasewatch.core.report.measure_table import merged
from phasewatch.core.settings import Settings, Thresholds

# Engines whose figures are of now.
_CURRENT = ("serving", "idle", "warming_up")
# Engines that are peers: an idle one has room, or something is wrong with it.
COMPARED = ("serving", "idle")

Windows = Mapping[EngineKey, Mapping[float, tuple[Window, Numbers]]]
ModelKey = tuple[str, str | None]  # model_name, role


@dataclass(slots=True)
class Peers:
    """What is remembered of a model: which engine is apart from the others, and since when opinions agree on it;
    and what is worth a note about single engines because of the others.

    An opinion is formed once a round: when each target of the model has been heard (a page or a failed scrape), or one
    of them a second time. So it moves with the pages, however often anybody looks, and costs one comparison a round.
    """

    targets: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)
    heard_at: float = 0.0
    held: Held = field(default_factory=lambda: Held("together"))
    cause: Cause | None = None
    notes: Mapping[EngineKey, Advisory] = field(default_factory=dict)
    pooled: bool = False
    fault: Fault | None = None

    def form(self, peers: Sequence[Peer], thresholds: Thresholds) -> None:
        """One more opinion, at the time of the round's last page."""
        compared = compare(peers, thresholds)
        found, self.notes, self.pooled = compared.apart, compared.notes, compared.pooled
        verdict = found.verdict if found else "together"
        self.held = hold(self.held, verdict, self.heard_at, at_once=False, seconds=thresholds.agree_seconds)
        if found is not None and found.verdict == self.held.verdict:
            self.cause = found

    @property
    def apart(self) -> Cause | None:
        """The engine apart from its peers, once opinions agreed on it."""
        return None if self.held.verdict == "together" else self.cause


def by_model(engines: Iterable[EngineReport]) -> dict[ModelKey, list[EngineReport]]:
    """In the order first seen."""
    groups: dict[ModelKey, list[EngineReport]] = {}
    for engine in engines:
        groups.setdefault((engine.key.model_name, engine.role), []).append(engine)
    return groups


def unmerged(key: ModelKey, members: Sequence[EngineReport], fault: Fault) -> ModelReport:
    """The row of a model whose engines could not be merged: their states, and nothing that would stand still."""
    states = dict(Counter[str](engine.state for engine in members))
    return ModelReport(*key, states, None, None, (), (), {}, None, None, None, (), fault)


def merge_model(
    key: ModelKey, members: Sequence[EngineReport], windows: Windows, settings: Settings, apart: Cause | None
) -> ModelReport:
    """windows: of the engines whose figures are of now, at least. apart: see Peers."""
    current = [engine for engine in members if engine.state in _CURRENT]
    usage = {
        engine.key: engine.numbers.kv_cache.usage_ratio
        for engine in current
        if engine.numbers is not None and engine.numbers.kv_cache.usage_ratio is not None and not engine.gauges_stale
    }
    known = [value for value in usage.values() if value is not None]
    worst = max(usage, key=lambda one: usage[one] or 0.0, default=None)
    speaker = _speaker(members)
    if sum(engine.state in COMPARED for engine in members) < 2:
        apart = None
    verdict, confidence = (speaker.verdict, speaker.confidence) if speaker else (None, None)
    causes = speaker.causes if speaker else ()
    if apart is not None and verdict not in LIVENESS:
        verdict, confidence, causes = apart.verdict, apart.confidence, (apart, *causes)
    return ModelReport(
        model_name=key[0],
        role=key[1],
        engines=dict(Counter(engine.state for engine in members)),
        verdict=verdict,
        confidence=confidence,
        causes=causes,
        symptoms=speaker.symptoms if speaker else (),
        windows=_numbers(key[0], current, windows, settings),
        kv_usage_max=max(known, default=None),
        kv_usage_mean=sum(known) / len(known) if known else None,
        worst_engine=None if worst is None else f"{worst.target}/{worst.engine}",
        outliers=_named(apart),
    )


def _numbers(
    model_name: str, current: Sequence[EngineReport], windows: Windows, settings: Settings
) -> Mapping[float, Numbers]:
    if len(current) == 1:
        return current[0].windows
    figures: dict[float, Numbers] = {}
    for seconds in settings.windows:
        engines = [engine for engine in current if seconds in engine.windows]
        parts = [windows[engine.key][seconds][0] for engine in engines]
        together = joined([engine.windows[seconds] for engine in engines], parts, settings, model_name)
        if together is not None:
            figures[seconds] = together
    return figures


def joined(own: Sequence[Numbers], parts: Sequence[Window], settings: Settings, model_name: str) -> Numbers | None:
    """A model's numbers over one window, of its engines' own and the windows these are of; None without an engine."""
    whole = fleet_window(parts)
    if whole is None:
        return None
    return merged(_pooled(whole, settings, model_name), own, parts)


def _pooled(whole: Window, settings: Settings, model_name: str) -> Numbers:
    stall_seconds = settings.stall_seconds(model_name)
    return pooled_numbers(whole, settings.thresholds, stall_seconds=stall_seconds, estimator=settings.estimator)


def judged_together(
    engines: Sequence[Engine], windows: Windows, figures: Numbers, settings: Settings
) -> tuple[ObjectiveResult, ...]:
    """The objectives of a model over all of its engines, with their figures over the window that verdicts use; or as
    far back as it takes to have enough observations, the same for all."""
    thresholds, first, limits = settings.thresholds, settings.windows[0], engines[0].limits
    now = [windows[one.key][first][0] for one in engines]
    serving = any(one.state == "serving" for one in engines)
    oldest = max(one.last.at for one in engines) - thresholds.longest_span_seconds
    begin = min(one.steps[0].start for one in now)
    whole = fleet_window(now)
    assert whole is not None  # there is an engine
    together = {begin: (whole, figures)}

    def seen(family: str) -> tuple[Window, Numbers]:
        known = [one.histograms[family].count for one in now if family in one.histograms]
        wanted, start = thresholds.enough_observations - sum(known), begin
        if known and wanted > 0 and serving:
            steps = heapq.merge(*(one.newest_first() for one in engines), key=lambda step: -step.start)
            start = reach(steps, family, begin, wanted=wanted, oldest=oldest)
        if start not in together:
            parts = [part for one in engines if (part := one.window(start)) is not None]
            wider = fleet_window([consistent(part, thresholds)[0] for part in parts])
            assert wider is not None  # it holds the windows of now
            together[start] = wider, _pooled(wider, settings, engines[0].key.model_name)
        return together[start]

    return tuple(one.result for one in judge((whole, figures), seen, limits, thresholds))


def _speaker(members: Sequence[EngineReport]) -> EngineReport | None:
    """The engine whose verdict stands for the model: a standstill, else the trouble most engines share, the surest
    first; healthy only where no engine is in trouble."""
    judged = [engine for engine in members if engine.verdict is not None]
    troubled = [engine for engine in judged if engine.verdict != "healthy"]
    shared = Counter(engine.verdict for engine in troubled)
    return max(
        troubled or judged,
        key=lambda engine: (engine.verdict in LIVENESS, shared[engine.verdict], engine.score or 0.0),
        default=None,
    )


def _named(cause: Cause | None) -> tuple[str, ...]:
    named = None if cause is None else cause.evidence.get("outliers", cause.evidence.get("engines"))
    return tuple(named.split(", ")) if isinstance(named, str) else ()
