"""The F cases of cases.md over every dashboard."""

import json
import re

import promql_parser
import pytest
import yaml

import fleets
from boards import BOARDS, Json, annotations, expand, panels, shown, variable_query, variables
from exported import series
from support import ROOT

every_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
PROVISIONING = ROOT / "grafana" / "provisioning"


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    """Every selector in a query."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: object) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        for name in ("expr", "lhs", "rhs", "param"):
            if (child := getattr(node, name, None)) is not None:
                visit(child)
        for child in getattr(node, "args", None) or ():
            visit(child)

    visit(promql_parser.parse(expr))
    return found


@every_board
def test_f01_no_import_placeholders_and_every_panel_uses_the_variable(board: Json) -> None:
    text = json.dumps(board)
    assert "__inputs" not in board
    assert "__requires" not in board
    assert "${DS_" not in text
    for node in (*shown(board), *(t for p in shown(board) for t in p.get("targets") or ())):
        if node.get("type") != "text":
            assert node["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@every_board
def test_f03_no_numeric_id_a_stable_uid_and_line_options_where_grafana_reads_them(board: Json) -> None:
    assert board.get("id") is None
    assert re.fullmatch(r"phasewatch-[a-z]+", board["uid"])
    for panel in shown(board):
        if panel["type"] == "timeseries":
            assert panel["fieldConfig"]["defaults"]["custom"]["spanNulls"] is False
            assert "spanNulls" not in panel["options"]


def test_f05_the_data_source_knows_the_scrape_interval_of_our_prometheus() -> None:
    (source,) = [
        one
        for file in (PROVISIONING / "datasources").iterdir()
        for one in yaml.safe_load(file.read_text())["datasources"]
        if one["type"] == "prometheus"
    ]
    prometheus = yaml.safe_load((ROOT / "config" / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]


@every_board
def test_f06_a_variable_has_values_though_an_engine_shows_no_figure_at_all(board: Json) -> None:
    """Without traffic, without TTFT, and before the first evaluation has a figure: the filters stay filled."""
    bare = fleets.fleet((fleets.engine(windows={}, verdict=None, objectives=()),), (), (fleets.target(),))
    found = series(bare)
    assert not [name for name, _ in found if name.startswith("ttft_")]
    for variable in variables(board):
        if variable["type"] == "query":
            selector, label = variable_query(variable)
            (name,) = {one.name for one in selectors(expand(selector))}
            offered = {dict(labels).get(label) for shown, labels in found if f"phasewatch_{shown}" == name}
            assert offered - {None}, (variable["name"], name)


@every_board
def test_f07_no_literal_name_of_a_deployment_in_any_query(board: Json) -> None:
    ours = {"window", "phase", "state", "verdict", "objective", "severity", "alertname", "alertstate"}
    for query in (t["expr"] for p in shown(board) for t in p.get("targets") or ()):
        for selector in selectors(expand(query)):
            for matcher in selector.matchers.matchers:
                if matcher.name not in ours:
                    assert matcher.value in (".+", ".*"), (query, matcher.name)


def test_f07_would_see_a_literal() -> None:
    (found,) = selectors('max(x{pool="gaie-inference"})')
    assert [(m.name, m.value) for m in found.matchers.matchers] == [("pool", "gaie-inference")]


@every_board
def test_f09_ratios_and_percentiles_are_never_added_over_engines(board: Json) -> None:
    for panel in shown(board):
        for target in panel.get("targets") or ():
            tree = promql_parser.parse(expand(target["expr"]))
            for selector in added(tree):
                assert not re.search(r"_ratio$|_p\d\d_|_low_|_high_|_wait_seconds$", selector.name or ""), panel[
                    "title"
                ]


def added(node: object, under_sum: bool = False) -> list[promql_parser.VectorSelector]:
    """Selectors whose values reach a sum as they are. A mean that is multiplied by its count becomes a total first."""
    if isinstance(node, promql_parser.VectorSelector):
        return [node] if under_sum else []
    if isinstance(node, promql_parser.AggregateExpr):
        name = str(node.op)
        return added(node.expr, "sum" in name or (under_sum and name in ("max", "min")))
    if isinstance(node, promql_parser.BinaryExpr):
        return [*added(node.lhs, False), *added(node.rhs, False)]
    return [one for child in (getattr(node, "expr", None), *(getattr(node, "args", None) or ())) if child
            for one in added(child, under_sum)]  # fmt: skip


def test_f09_would_see_a_sum_of_shares() -> None:
    assert [s.name for s in added(promql_parser.parse("sum(max by (a) (x_usage_ratio))"))] == ["x_usage_ratio"]
    assert added(promql_parser.parse("max(x_usage_ratio)")) == []


def test_f11_heatmaps_are_increases_by_le_in_seconds_and_nothing_else_is_heatmap_data() -> None:
    heatmaps = 0
    for board in BOARDS.values():
        for panel in shown(board):
            for target in panel.get("targets") or ():
                assert (target["format"] == "heatmap" if "format" in target else False) == (panel["type"] == "heatmap")
                assert panel["type"] == "heatmap" or "_bucket" not in target["expr"]
                if panel["type"] == "heatmap":
                    heatmaps += 1
                    assert all(part.startswith("sum by (le) (increase(") for part in target["expr"].split(" or "))
                    assert target["legendFormat"] == "{{le}}"
                    assert panel["options"]["calculate"] is False
                    assert panel["options"]["yAxis"]["unit"] == "s"
    assert heatmaps == 4


# Grafana's ids (packages/grafana-data/src/valueFormats/categories.ts) of those that are used.
UNITS = {"s", "percentunit", "reqps", "cps", "short"}


@every_board
def test_f13_units_exist_and_seconds_are_shown_as_seconds(board: Json) -> None:
    for panel in shown(board):
        if panel["type"] == "text":
            continue
        units = [panel["fieldConfig"]["defaults"].get("unit")]
        for override in panel["fieldConfig"]["overrides"]:
            units += [p["value"] for p in override["properties"] if p["id"] == "unit"]
        assert {unit for unit in units if unit} <= UNITS, panel["title"]
        drawn = " ".join(target["expr"] for target in panel.get("targets") or ())
        assert not re.search(r"\* *1000|/ *1024|\* *100\b", drawn)


# What a series' name says its unit is.
UNIT_OF = {"_seconds": "s", "_ratio": "percentunit", "_tokens_per_second": "cps", "_requests": "short"}
NOT_DRAWN = {"phasewatch_engine_state", "phasewatch_diagnosis"}  # they only choose engines


@every_board
def test_f13_a_query_of_one_family_is_drawn_in_the_unit_of_its_name(board: Json) -> None:
    checked = 0
    for panel in shown(board):
        overrides = {
            override["matcher"]["options"]: next(
                (p["value"] for p in override["properties"] if p["id"] == "unit"), None
            )
            for override in (panel.get("fieldConfig") or {"overrides": ()})["overrides"]
        }
        for target in panel.get("targets") or ():
            names = {selector.name for selector in selectors(expand(target["expr"]))} - NOT_DRAWN
            if len(names) != 1 or re.search(r" / |topk\(20, \(|\^ 0|time\(\)", target["expr"]):
                continue
            [(name,)] = [names]
            unit = overrides.get(target["legendFormat"]) or panel["fieldConfig"]["defaults"].get("unit", "short")
            for suffix, right in UNIT_OF.items():
                if name.endswith(suffix):
                    assert unit == right, (panel["title"], name)
                    checked += 1
                    break
    assert checked or board["uid"] == "phasewatch-objectives"


def test_variables_and_annotations_are_queries_too() -> None:
    asked = [variable_query(v) for board in BOARDS.values() for v in variables(board) if v["type"] == "query"]
    assert len(asked) > 15
    for selector, label in asked:
        promql_parser.parse(expand(selector))
        assert re.fullmatch("[a-z_]+", label)
    assert len(annotations()) == 12
    for one in annotations():
        promql_parser.parse(expand(one.expr))
    assert sum(1 for board in BOARDS.values() for _ in panels(board)) > 100
