"""Engines of a model (and role) as one: their numbers joined as measure_table says, and one verdict."""

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence

from phasewatch.core.diagnosis.peers import compare, peer
from phasewatch.core.diagnosis.progress import Held, hold
from phasewatch.core.diagnosis.verdicts import LIVENESS
from phasewatch.core.measures.numbers import numbers
from phasewatch.core.measures.window import fleet_window
from phasewatch.core.model import Cause, EngineKey, EngineReport, ModelReport, Numbers, Window
from phasewatch.core.report.measure_table import merged
from phasewatch.core.settings import Settings

# Engines whose figures are of now.
_CURRENT = ("serving", "idle", "warming_up")

Windows = Mapping[EngineKey, Mapping[float, Window]]
ModelKey = tuple[str, str | None]


def merge_models(
    engines: Sequence[EngineReport],
    windows: Windows,
    settings: Settings,
    held: MutableMapping[ModelKey, tuple[Held, Cause | None]],
    at: float,
) -> tuple[ModelReport, ...]:
    """One report for each (model_name, role), in the order first seen. held: what is remembered of each, updated."""
    groups: dict[ModelKey, list[EngineReport]] = {}
    for engine in engines:
        groups.setdefault((engine.key.model_name, engine.role), []).append(engine)
    for key in set(held) - set(groups):
        del held[key]
    return tuple(_model(key, members, windows, settings, held, at) for key, members in groups.items())


def _model(
    key: ModelKey,
    members: Sequence[EngineReport],
    windows: Windows,
    settings: Settings,
    held: MutableMapping[ModelKey, tuple[Held, Cause | None]],
    at: float,
) -> ModelReport:
    current = [engine for engine in members if engine.state in _CURRENT]
    usage = {
        engine.key: engine.numbers.kv_cache.usage_ratio
        for engine in current
        if engine.numbers is not None and engine.numbers.kv_cache.usage_ratio is not None and not engine.gauges_stale
    }
    known = [value for value in usage.values() if value is not None]
    worst = max(usage, key=lambda one: usage[one] or 0.0, default=None)
    speaker = _speaker(members)
    apart = _apart(key, members, windows, settings, held, at)
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
    stall_seconds = settings.stall_seconds(model_name)
    figures: dict[float, Numbers] = {}
    for seconds in settings.windows:
        engines = [engine for engine in current if seconds in engine.windows]
        parts = [windows[engine.key][seconds] for engine in engines]
        whole = fleet_window(parts)
        if whole is not None:
            pooled = numbers(whole, settings.thresholds, stall_seconds=stall_seconds, estimator=settings.estimator)
            figures[seconds] = merged(pooled, [engine.windows[seconds] for engine in engines], parts)
    return figures


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


def _apart(
    key: ModelKey,
    members: Sequence[EngineReport],
    windows: Windows,
    settings: Settings,
    held: MutableMapping[ModelKey, tuple[Held, Cause | None]],
    at: float,
) -> Cause | None:
    """An engine apart from its peers, once two evaluations in a row agree on it."""
    first = settings.windows[0]
    peers = [
        peer(engine, windows[engine.key][first], engine.windows[first])
        for engine in members
        if engine.state == "serving" and first in engine.windows and first in windows[engine.key]
    ]
    found = compare(peers, settings.thresholds)
    before, remembered = held.get(key, (Held("together"), None))
    now = hold(before, found.verdict if found else "together", at, at_once=False)
    cause = found if found is not None and found.verdict == now.verdict else remembered
    held[key] = (now, cause)
    return None if now.verdict == "together" else cause


def _named(cause: Cause | None) -> tuple[str, ...]:
    named = None if cause is None else cause.evidence.get("outliers", cause.evidence.get("engines"))
    return tuple(named.split(", ")) if isinstance(named, str) else ()
