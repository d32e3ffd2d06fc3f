"""Diagnosis documents from files (`diagnose --format json`, or the last line of `replay`): back to Numbers by model."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from phasewatch.core.fleet import ModelKey
from phasewatch.core.model import KvCache, Latency, Numbers, Phases, Queue, Speculation, Tokens
from phasewatch.core.report.document import SCHEMA
from phasewatch.core.settings import FAMILIES


class DocumentError(ValueError):
    """A file that is no diagnosis document. The message is one line: what, where, what to do."""


@dataclass(frozen=True, slots=True)
class ModelNumbers:
    """What a document says of one model. engines: how many it holds."""

    numbers: Numbers
    engines: int


class _Row(BaseModel):
    """What engines and models have in common; unknown keys are of no interest here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model_name: str
    role: str | None
    ttft_seconds: Latency
    itl_seconds: Latency
    tpot_seconds: Latency
    e2e_seconds: Latency
    phases: Phases
    queue: Queue

    @property
    def key(self) -> ModelKey:
        return self.model_name, self.role


class _Engine(_Row):
    itl_stalled_ratio: float | None
    kv_cache: KvCache
    tokens: Tokens
    prefill_time_ratio: float | None
    speculation: Speculation


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    window_seconds: float
    engines: tuple[_Engine, ...]
    models: tuple[_Row, ...]


_DOCUMENT = TypeAdapter(_Document)


def read_document(path: Path) -> Mapping[ModelKey, ModelNumbers]:
    """The document in a file of JSON, or in the last line of one that has a document a line. Raises DocumentError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DocumentError(f"{path}: not a text file; give a diagnosis document (JSON)") from None
    except OSError as error:
        raise DocumentError(f"{path}: {error.strerror}") from None
    raw = _json(path, text)
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise DocumentError(f"{path}: not a {SCHEMA} document; make one with `phasewatch diagnose ... --format json`")
    try:
        document = _DOCUMENT.validate_python(_with_counts(raw))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DocumentError(f"{path}: invalid document ({where}: {first['msg']}); make it again") from None
    models = {row.key: row for row in document.models}
    grouped: dict[ModelKey, list[_Engine]] = {}
    for engine in document.engines:
        grouped.setdefault(engine.key, []).append(engine)
    return {
        key: ModelNumbers(_together(engines, models.get(key), document.window_seconds), len(engines))
        for key, engines in grouped.items()
    }


def _json(path: Path, text: str) -> Any:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise DocumentError(f"{path} is empty")
    try:
        return _loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return _loads(lines[-1])
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path}: neither the file nor its last line is JSON ({error})") from None


def _loads(text: str) -> Any:
    return json.loads(text, parse_float=_finite, parse_constant=_finite, parse_int=_finite_int)


def _finite(text: str) -> float:
    """NaN, Infinity and 1e999 are no numbers to compare."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _finite_int(text: str) -> int:
    _finite(text)
    return int(text)


def _with_counts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A count of null says that the page has no such histogram: here that is nothing observed."""
    known = dict(raw)
    for block in ("engines", "models"):
        rows = raw.get(block)
        if isinstance(rows, list):
            known[block] = [_counted(row) if isinstance(row, dict) else row for row in rows]
    return known


def _counted(row: Mapping[str, Any]) -> dict[str, Any]:
    counted = dict(row)
    for name in (f"{family}_seconds" for family in FAMILIES):
        latency = row.get(name)
        if isinstance(latency, dict) and latency.get("count") is None:
            counted[name] = {**latency, "count": 0}
    return counted


def _together(engines: Sequence[_Engine], model: _Row | None, window_seconds: float) -> Numbers:
    """The model's own row has latencies, phases and queue of all engines; the rest is their engines' weighted mean."""
    alone = engines[0]
    row: _Row = alone if len(engines) == 1 or model is None else model
    finished = [float(one.e2e_seconds.count) for one in engines]
    first = [float(one.ttft_seconds.count) for one in engines]
    prefilling = [one.e2e_seconds.count * (one.phases.prefill.mean_seconds or 0.0) for one in engines]
    streaming = [one.itl_seconds.count * (one.itl_seconds.mean or 0.0) for one in engines]
    tokens = [one.tokens for one in engines]
    return Numbers(
        window_seconds=window_seconds,
        ttft_seconds=row.ttft_seconds,
        itl_seconds=row.itl_seconds,
        tpot_seconds=row.tpot_seconds,
        e2e_seconds=row.e2e_seconds,
        itl_stalled_ratio=_mean([one.itl_stalled_ratio for one in engines], streaming),
        phases=row.phases,
        queue=row.queue,
        kv_cache=alone.kv_cache if len(engines) == 1 else KvCache(),
        tokens=alone.tokens
        if len(engines) == 1
        else Tokens(
            prompt_per_second=_sum(one.prompt_per_second for one in tokens),
            computed_prompt_per_second=_sum(one.computed_prompt_per_second for one in tokens),
            generation_per_second=_sum(one.generation_per_second for one in tokens),
            prompt_mean=_mean([one.prompt_mean for one in tokens], finished),
            computed_prompt_mean=_mean([one.computed_prompt_mean for one in tokens], first),
            output_mean=_mean([one.output_mean for one in tokens], finished),
            prefill_speed=_mean([one.prefill_speed for one in tokens], prefilling),
            decode_speed=1 / row.tpot_seconds.mean if row.tpot_seconds.mean else None,
        ),
        prefill_time_ratio=alone.prefill_time_ratio if len(engines) == 1 else None,
        speculation=alone.speculation,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Weighted mean of what is known; an idle engine has no weight."""
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    whole = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / whole if whole > 0 else None
