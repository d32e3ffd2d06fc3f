"""What is carried from page to document is also read there."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from phasewatch.core import model
from support import ROOT

# Read by the paths of measure_table or an objective's statistic.
BY_PATH = {
    model.Latency,
    model.Phase,
    model.Phases,
    model.Numbers,
    model.Queue,
    model.KvCache,
    model.Tokens,
    model.Anomaly,
}


def carried() -> Iterator[tuple[str, str]]:
    for name, value in vars(model).items():
        if isinstance(value, type) and is_dataclass(value) and value not in BY_PATH:
            for field in fields(value):
                yield name, field.name


def test_every_field_is_read_by_somebody() -> None:
    text = "".join(path.read_text() for path in (ROOT / "src" / "phasewatch").rglob("*.py"))
    read = set(re.findall(r"\.([a-z_][a-z0-9_]*)", text))
    assert [pair for pair in carried() if pair[1] not in read] == []
