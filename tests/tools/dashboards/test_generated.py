"""Steps 1, 2 and 5 of conventions 3.6: what is committed is what the rows say, and Grafana's types know all of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from boards import BOARDS, FOLDER, Json, panels, shown, variables
from phasewatch.core.diagnosis.verdicts import VERDICTS
from support import ROOT
from tools.dashboards.looks import TIMELINE
from tools.dashboards.queries import STATE_NUMBERS, VERDICT_NUMBERS

every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def test_the_committed_files_are_what_the_rows_make(tmp_path: Path) -> None:
    """`make dashboards` rewrites them."""
    subprocess.run([sys.executable, "-m", "tools.dashboards", tmp_path], check=True, cwd=ROOT)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert len(made) == 6
    assert made == {path.name: path.read_text() for path in FOLDER.iterdir()}


def lost(before: object, after: object, path: str = "") -> list[str]:
    """Where `after` lacks or changes something of `before`."""
    if isinstance(before, dict):
        if not isinstance(after, dict):
            return [path]
        return [one for key, value in before.items() for one in lost(value, after.get(key), f"{path}.{key}")]
    if isinstance(before, list):
        if not isinstance(after, list) or len(before) != len(after):
            return [path]
        return [one for n, (x, y) in enumerate(zip(before, after, strict=True)) for one in lost(x, y, f"{path}[{n}]")]
    return [] if before == after else [path]


def round_trip(board: Json) -> object:
    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(json.dumps(board)))))


@every_board
def test_grafanas_types_read_a_board_and_write_the_same(board: Json) -> None:
    assert lost(board, round_trip(board)) == []


def test_the_round_trip_sees_a_misspelt_option() -> None:
    """F03: `spanNulls` in the wrong object is ignored by Grafana; here it is lost."""
    board = json.loads(json.dumps(BOARDS["phasewatch-fleet"]))
    graph = next(panel for panel in shown(board) if panel["type"] == "timeseries")
    graph["options"]["spanNulls"] = True
    assert [path.rpartition(".")[2] for path in lost(board, round_trip(board))] == ["spanNulls"]


# --- layout


@every_board
def test_panels_lie_in_the_grid_and_on_no_other(board: Json) -> None:
    for group in (board["panels"], *(panel["panels"] for panel in board["panels"] if panel.get("panels"))):
        taken: set[tuple[int, int]] = set()
        for panel in group:
            at = panel["gridPos"]
            assert at["x"] + at["w"] <= 24
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, panel["title"]
            taken |= cells


@every_board
def test_identifiers_titles_and_references_are_unique(board: Json) -> None:
    every = list(panels(board))
    assert len({panel["id"] for panel in every}) == len(every)
    titles = [panel["title"] for panel in every]
    assert len(set(titles)) == len(titles)
    for panel in shown(board):
        refs = [target["refId"] for target in panel.get("targets") or ()]
        assert len(set(refs)) == len(refs)


def test_boards_have_different_titles_and_uids() -> None:
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)
    assert {board["uid"] for board in BOARDS.values()} == set(BOARDS)
    assert all(len(name) <= 40 for name in BOARDS)


@every_board
def test_a_board_can_be_provisioned_and_leads_to_the_others(board: Json) -> None:
    assert board.get("id") is None
    assert board["editable"] is False
    assert board["graphTooltip"] == 1
    assert board["schemaVersion"] <= 42
    assert "phasewatch" in board["tags"]
    (link,) = board["links"]
    assert (link["keepTime"], link["includeVars"], link["tags"]) == (True, True, ["phasewatch"])
    assert "placement" not in link  # it would hide the links in a menu


@every_board
def test_links_of_tables_lead_to_a_board_and_keep_time_and_variables(board: Json) -> None:
    urls = re.findall(r'"url": "(.*?)"', json.dumps([panel.get("fieldConfig") for panel in shown(board)]))
    for url in urls:
        path, _, query = url.partition("?")
        assert path.removeprefix("/d/") in BOARDS
        for kept in ("__url_time_range", "datasource:queryparam", "namespace:queryparam", "window:queryparam"):
            assert f"${{{kept}}}" in query
        there = {variable["name"] for variable in variables(BOARDS[path.removeprefix("/d/")])}
        here = {variable["name"] for variable in variables(board)}
        assert set(re.findall(r"\$\{(\w+):queryparam\}", query)) <= here & there
        assert set(re.findall(r"&var-(\w+)=", query)) <= there


def test_some_table_leads_to_triage_and_to_an_engine() -> None:
    urls = re.findall(r"/d/([\w-]+)\?", json.dumps(BOARDS["phasewatch-fleet"]))
    assert set(urls) == {"phasewatch-triage", "phasewatch-engine"}


# --- verdicts


def test_triage_has_a_text_a_verdict_that_names_what_to_look_at_and_its_runbook() -> None:
    triage = BOARDS["phasewatch-triage"]
    texts = {panel["title"]: panel["options"]["content"] for panel in shown(triage) if panel["type"] == "text"}
    assert set(texts) == set(VERDICTS)
    named = {panel["title"] for board in BOARDS.values() for panel in shown(board)}
    for verdict, text in texts.items():
        assert text.startswith("Look at: "), verdict
        assert f"config/runbooks/verdicts/{verdict}.md" in text
        assert (ROOT / "config" / "runbooks" / "verdicts" / f"{verdict}.md").is_file()
        pointed = re.findall(r"\*\*(.+?)\*\*", text)
        assert set(pointed) <= named, verdict


def test_every_verdict_and_state_has_its_word_and_number_in_timelines() -> None:
    words = {name: number for number, (name, _) in TIMELINE.items()}
    assert words == {**STATE_NUMBERS, **VERDICT_NUMBERS}
    shown_words = [
        {
            option["text"]: int(value)
            for mapping in panel["fieldConfig"]["defaults"]["mappings"]
            for value, option in mapping["options"].items()
        }
        for name in ("phasewatch-triage", "phasewatch-engine")
        for panel in shown(BOARDS[name])
        if panel["type"] == "state-timeline"
    ]
    assert shown_words == [words, words]
