"""The committed dashboards as tests read them: panels, targets, and what Grafana makes of a query before it is sent."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from support import ROOT

FOLDER = ROOT / "grafana" / "dashboards"
BOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
Json = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A query of a panel, an annotation or a variable. kind: range, instant or values."""

    board: str
    panel: str
    ref: str
    kind: str
    expr: str
    no_value: str = ""

    def __str__(self) -> str:
        return f"{self.board}: {self.panel} {self.ref}"


def panels(board: Json) -> Iterator[Json]:
    """Rows and panels, those of collapsed rows too."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def shown(board: Json) -> Iterator[Json]:
    """Panels that show something: no rows."""
    return (panel for panel in panels(board) if panel["type"] != "row")


def targets() -> list[Target]:
    """Every query of every panel."""
    return [
        Target(
            name,
            panel["title"],
            target["refId"],
            "instant" if target["instant"] else "range",
            target["expr"],
            panel["fieldConfig"]["defaults"].get("noValue", ""),
        )
        for name, board in BOARDS.items()
        for panel in shown(board)
        for target in panel.get("targets") or ()
    ]


def annotations() -> list[Target]:
    return [
        Target(name, annotation["name"], "", "range", annotation["target"]["expr"])
        for name, board in BOARDS.items()
        for annotation in (board.get("annotations") or {}).get("list") or ()
    ]


_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


def variables(board: Json) -> list[Json]:
    return list(board["templating"]["list"])


def variable_query(variable: Json) -> tuple[str, str]:
    """(selector, label) of label_values(selector, label)."""
    found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
    assert found, variable["query"]
    return found[1], found[2]


def expand(expr: str, values: Mapping[str, str] | None = None, *, scrape: float = 15, span: float = 3600) -> str:
    """What Grafana sends: its own variables, then those of the dashboard; those not given are All.

    scrape: the data source's scrape interval in seconds; span: of the range shown.
    """
    interval = max(1, round(span / 1000))
    rate = max(interval + scrape, 4 * scrape)
    known = {
        "__rate_interval": f"{rate:g}s",
        "__interval": f"{interval:g}s",
        "__range": f"{span:g}s",
        "namespace": ".*",
        "model_name": ".+",
        "target": ".+",
        "engine": ".+",
        "window": "60s",
        **(values or {}),
    }
    expanded = re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda found: known[found[1] or found[2]], expr)
    assert "$" not in expanded, expanded
    return expanded
