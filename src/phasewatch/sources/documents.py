"""Diagnosis documents from files (`diagnose --format json`, or the last line of `replay`): back to Numbers by model."""

import json
from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from phasewatch.core.fleet import ModelKey
from phasewatch.core.model import Numbers
from phasewatch.core.report.compare import ModelNumbers
from phasewatch.core.report.document import SCHEMA


class DocumentError(ValueError):
    """A file that is no diagnosis document. The message is one line: what, where, what to do."""


class _Model(BaseModel):
    """What the document says of a model's engines together; unknown keys are of no interest here."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model_name: str
    role: str | None
    engines: Mapping[str, int]
    numbers: Numbers


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    models: tuple[_Model, ...]


_DOCUMENT = TypeAdapter(_Document)
_BLOCKS = {block.name for block in fields(Numbers)} - {"window_seconds"}  # that one is the whole document's


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
        document = _DOCUMENT.validate_python(_with_numbers(raw))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DocumentError(f"{path}: invalid document ({where}: {first['msg']}); make it again") from None
    return {
        (model.model_name, model.role): ModelNumbers(model.numbers, sum(model.engines.values()))
        for model in document.models
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
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise DocumentError(f"{path}: neither the file nor its last line is JSON ({why})") from None


_LONGEST_SHOWN = 24


def _loads(text: str) -> Any:
    return json.loads(text, parse_float=_finite, parse_constant=_finite, parse_int=_finite_int)


def _finite(text: str) -> float:
    """NaN, Infinity and 1e999 are no numbers to compare."""
    value = float(text)
    if not isfinite(value):
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..., {len(text)} characters,"
        raise ValueError(f"{shown} is not a finite number")
    return value


def _finite_int(text: str) -> int:
    _finite(text)
    return int(text)


def _with_numbers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The document with each model's blocks gathered as its `numbers`, left out where one of them lacks."""
    models = raw.get("models")
    if not isinstance(models, list):
        return dict(raw)
    window = {"window_seconds": raw.get("window_seconds")}
    return {
        "models": [
            {**row, "numbers": {name: _counted(row[name]) for name in _BLOCKS} | window}
            if isinstance(row, dict) and row.keys() >= _BLOCKS
            else row
            for row in models
        ]
    }


def _counted(block: Any) -> Any:
    """A count of null says that the page has no such histogram: here that is nothing observed."""
    return {**block, "count": 0} if isinstance(block, dict) and "count" in block and block["count"] is None else block
