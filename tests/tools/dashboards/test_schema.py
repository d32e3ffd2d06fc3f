"""Step 1 of conventions 3.6: the strict schema made from the types that Grafana publishes (`make grafana-schema`)."""

import copy
import json

import jsonschema
import pytest

from boards import BOARDS, Json, panels
from support import ROOT

FOLDER = ROOT / ".cache" / "grafana-schema"
every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
# Grafana's types describe only annotations of its own data source; those of Prometheus have these keys instead.
PROMETHEUS_ANNOTATION = {"target", "expr", "step", "tagKeys", "titleFormat"}


@pytest.fixture(scope="module")
def definitions() -> Json:
    if not (FOLDER / "schema.json").exists():
        why = FOLDER / "unavailable"
        reason = why.read_text().strip() if why.exists() else "not made yet"
        pytest.skip(f"NOT TESTED against Grafana's schema: {reason}; `make grafana-schema` makes it")
    found: Json = json.loads((FOLDER / "schema.json").read_text())["definitions"]
    return found


def faults(definitions: Json, kind: str, value: Json) -> list[str]:
    schema = {"$ref": f"#/definitions/{kind}", "definitions": definitions}
    return [
        f"{value.get('title')}: {list(error.absolute_path)} {error.message[:200]}"
        for error in jsonschema.Draft7Validator(schema).iter_errors(value)
    ]


def whole(definitions: Json, board: Json) -> list[str]:
    """Panel by panel, since what a choice of kinds says about a fault is of no use."""
    top = copy.deepcopy({**board, "panels": []})
    for annotation in (top.get("annotations") or {}).get("list") or ():
        for key in PROMETHEUS_ANNOTATION:
            annotation.pop(key, None)
    found = faults(definitions, "Dashboard", top)
    for panel in panels(board):
        row = panel["type"] == "row"
        found += faults(definitions, "RowPanel" if row else "Panel", {**panel, "panels": []} if row else panel)
    return found


@every_board
def test_grafanas_own_schema_has_nothing_to_say(definitions: Json, board: Json) -> None:
    assert whole(definitions, board) == []


def test_the_schema_is_strict(definitions: Json) -> None:
    board = copy.deepcopy(BOARDS["phasewatch-fleet"])
    board["panels"][1]["descripton"] = "misspelt"
    board["panels"][1]["gridPos"].pop("w")
    board["refresh"] = 30
    assert len(whole(definitions, board)) == 3
