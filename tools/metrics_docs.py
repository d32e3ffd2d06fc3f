"""`python -m tools.metrics_docs [FILE]`: writes docs/metrics.md, the list of all exported series, from their tables."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from phasewatch.core.report.families import MODEL_PREFIX, PREFIX
from phasewatch.core.report.measure_table import ESTIMATORS, NOW_ROWS, WINDOW_ROWS, SeriesRow, Unit, with_estimator
from phasewatch.core.report.status_table import (
    ENGINE_ROWS,
    LIMIT_ROWS,
    MODEL_STATE_ROWS,
    SERVICE_ROWS,
    STATE_ROWS,
    TARGET_ROWS,
    VERDICT_ROWS,
)

FILE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
_UNITS: Mapping[Unit, str] = {
    "seconds": "seconds",
    "unix_seconds": "Unix time",
    "ratio": "0 to 1",
    "requests": "requests",
    "tokens": "tokens",
    "per_second": "per second",
    "count": "count",
    "flag": "0 or 1",
}
_ENGINE = "`target`, `model_name`, `engine`, and `role` where it is configured"
_MODEL = "`model_name`, and `role` where it is configured"

_OPENING = f"""# Exported metrics

Made by `make docs` from the tables in `src/phasewatch/core/report`; do not edit. Unknown is not zero: what cannot be
told has no series. A target brings its own labels (namespace, pod, ...); they stand on its series and its engines'.

Percentiles are read as the setting `estimator` says, and HELP names it. `sums` (the default): {ESTIMATORS["sums"]}.
`interpolation`: {ESTIMATORS["interpolation"]}.
"""


def text() -> str:
    """The whole page."""
    return "\n".join((_OPENING, *_sections()))


def _sections() -> Iterator[str]:
    yield "## Numbers of an engine, and of a model\n"
    yield f"`{PREFIX}NAME` of an engine has the labels {_ENGINE}. `{MODEL_PREFIX}NAME` is the same of"
    yield f"all engines of a model, with the labels {_MODEL}."
    yield "\n### Over each window (label `window`)\n"
    yield from _measures(WINDOW_ROWS)
    yield "\n### At the last scrape\n"
    yield "Not there while an engine's gauges are frozen (`gauges_stale` in the diagnosis document).\n"
    yield from _measures(NOW_ROWS)
    groups: tuple[tuple[str, str, tuple[str, ...], tuple[SeriesRow[Any], ...]], ...] = (
        ("Verdicts and objectives of an engine, and of a model", f"{_ENGINE}; of a model {_MODEL}",
         (PREFIX, MODEL_PREFIX), VERDICT_ROWS),
        ("Of an engine only", _ENGINE, (PREFIX,), (*STATE_ROWS, *ENGINE_ROWS)),
        ("Of a model only", _MODEL, (MODEL_PREFIX,), MODEL_STATE_ROWS),
        ("Limits", "`model_name`", (PREFIX,), LIMIT_ROWS),
        ("Targets", "`target`", (PREFIX,), TARGET_ROWS),
        ("phasewatch itself", "none", (PREFIX,), SERVICE_ROWS),
    )  # fmt: skip
    for title, labels, prefixes, rows in groups:
        yield f"\n## {title}\n\nLabels of all: {labels}.\n"
        yield from _table(
            ("Name", "More labels", "Unit", "What"),
            ((_names(prefixes, row), _code(row.labels), _UNITS[row.unit], row.help) for row in rows),
        )
    yield ""


def _measures(rows: Iterable[SeriesRow[Any]]) -> Iterator[str]:
    measured = [(row, row.measure) for row in rows if row.measure is not None]
    return _table(
        ("Name", "More labels", "Unit", "What", "From", "A model's engines"),
        (
            (
                _code((row.name,)),
                _code(row.labels),
                _UNITS[row.unit],
                with_estimator(measure.help, "sums"),
                _code(measure.vllm),
                measure.merge.text,
            )
            for row, measure in measured
        ),
    )


def _names(prefixes: Iterable[str], row: SeriesRow[Any]) -> str:
    return _code(f"{prefix}{row.name}" for prefix in prefixes)


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for cells in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else FILE).write_text(text())
