"""Engines of a model (and role) as one: buckets added, then percentiles; gauges added or their maximum."""

from collections import Counter
from collections.abc import Mapping, Sequence

from phasewatch.core.model import EngineKey, EngineReport, ModelReport, Numbers, Window
from phasewatch.core.numbers import numbers
from phasewatch.core.settings import Settings
from phasewatch.core.verdicts import LIVENESS
from phasewatch.core.window import fleet_window

# Engines whose figures are of now.
_CURRENT = ("serving", "idle", "warming_up")


def merge_models(
    engines: Sequence[EngineReport], windows: Mapping[EngineKey, Mapping[float, Window]], settings: Settings
) -> tuple[ModelReport, ...]:
    """One report for each (model_name, role), in the order first seen."""
    groups: dict[tuple[str, str | None], list[EngineReport]] = {}
    for engine in engines:
        groups.setdefault((engine.key.model_name, engine.role), []).append(engine)
    return tuple(_model(name, role, members, windows, settings) for (name, role), members in groups.items())


def _model(
    name: str,
    role: str | None,
    members: Sequence[EngineReport],
    windows: Mapping[EngineKey, Mapping[float, Window]],
    settings: Settings,
) -> ModelReport:
    current = [engine for engine in members if engine.state in _CURRENT]
    limits = settings.objectives.of(name)
    stall_seconds = limits["itl_stall"].warning if "itl_stall" in limits else 1.0
    figures: dict[float, Numbers] = {}
    for seconds in settings.windows:
        parts = [windows[engine.key][seconds] for engine in current if seconds in windows[engine.key]]
        merged = fleet_window(parts)
        if merged is not None:
            figures[seconds] = numbers(
                merged, settings.thresholds, stall_seconds=stall_seconds, estimator=settings.estimator
            )
    usage = {
        engine.key: engine.numbers.kv_cache.usage_ratio
        for engine in current
        if engine.numbers is not None and engine.numbers.kv_cache.usage_ratio is not None
    }
    worst = max(usage, key=lambda key: usage[key] or 0.0, default=None)
    speaker = _speaker(members)
    return ModelReport(
        model_name=name,
        role=role,
        engines=dict(Counter(engine.state for engine in members)),
        verdict=speaker.verdict if speaker else None,
        confidence=speaker.confidence if speaker else None,
        causes=speaker.causes if speaker else (),
        symptoms=speaker.symptoms if speaker else (),
        windows=figures,
        kv_usage_max=max((value for value in usage.values() if value is not None), default=None),
        kv_usage_mean=sum(value or 0.0 for value in usage.values()) / len(usage) if usage else None,
        worst_engine=None if worst is None else "/".join((worst.target, worst.engine)),
        outliers=(),
    )


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
