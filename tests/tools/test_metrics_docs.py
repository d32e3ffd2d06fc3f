"""docs/metrics.md is written from the tables of core/report; what is committed is what they say."""

import re

from phasewatch.core.report.families import ENGINE_TABLES, MODEL_TABLES, OTHER_TABLES
from tools.metrics_docs import FILE, text


def test_the_committed_list_of_metrics_is_what_the_tables_say() -> None:
    """`make docs` rewrites it."""
    assert FILE.read_text() == text()


def test_every_exported_name_is_in_the_list_of_metrics_once() -> None:
    listed = re.findall(r"^\| `(?:phasewatch_(?:model_)?)?(\w+)`", FILE.read_text(), re.M)
    assert sorted(listed) == sorted({row.name for row in (*ENGINE_TABLES, *MODEL_TABLES, *OTHER_TABLES)})
