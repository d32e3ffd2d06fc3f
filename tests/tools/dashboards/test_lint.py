"""The rules of grafana/dashboard-linter (4d0844b), which cannot be had here as a binary, in words of our own.

Logs' two rules (target-logql, target-logql-auto) have nothing to look at: no board reads logs, which is checked.
"""

import copy
import re
from collections.abc import Callable, Iterator

import promql_parser
import pytest
import yaml

from boards import BOARDS, Json, expand, shown, variable_query, variables
from support import ROOT

EXCEPTIONS = yaml.safe_load((ROOT / "grafana" / "lint.yml").read_text())
# Panels of these kinds need title and description.
DESCRIBED = {"timeseries", "stat", "bargauge", "table", "state-timeline", "heatmap", "gauge", "text"}
UNITS = {"s", "percentunit", "reqps", "cps", "short"}
# (panel's title or "", what is wrong)
Findings = Iterator[tuple[str, str]]


def queries(board: Json) -> Iterator[tuple[str, str]]:
    return ((panel["title"], t["expr"]) for panel in shown(board) for t in panel.get("targets") or ())


def template_datasource(board: Json) -> Findings:
    found = [v for v in variables(board) if v["type"] == "datasource"]
    if [(v["name"], v["label"], v["query"]) for v in found] != [("datasource", "Data source", "prometheus")]:
        yield "", "no variable `datasource`, labelled Data source, for Prometheus"


def _variable(name: str) -> Callable[[Json], Findings]:
    def rule(board: Json) -> Findings:
        if not any(v["name"] == name for v in variables(board)):
            yield "", f"no variable {name}"

    return rule


def template_label_promql(board: Json) -> Findings:
    for variable in variables(board):
        if variable["type"] == "query":
            promql_parser.parse(expand(variable_query(variable)[0]))
            if variable["datasource"]["uid"] != "${datasource}":
                yield "", f"{variable['name']} does not use the variable datasource"


def template_on_time_change_reload(board: Json) -> Findings:
    for variable in variables(board):
        if variable["type"] == "query" and variable["refresh"] != 2:
            yield "", f"{variable['name']} is not asked again when the time range changes"


def panel_datasource(board: Json) -> Findings:
    for panel in shown(board):
        if panel["type"] != "text" and (panel.get("datasource") or {}).get("uid") != "${datasource}":
            yield panel["title"], "does not use the variable datasource"


def panel_title_description(board: Json) -> Findings:
    for panel in shown(board):
        if panel["type"] in DESCRIBED and not (panel.get("title") and len(panel.get("description") or "") > 20):
            yield panel["title"], "has no title or description"


def panel_units(board: Json) -> Findings:
    for panel in shown(board):
        defaults = (panel.get("fieldConfig") or {}).get("defaults") or {}
        if panel["type"] != "text" and not defaults.get("mappings") and defaults.get("unit") not in UNITS:
            yield panel["title"], "has no known unit"


def panel_no_targets(board: Json) -> Findings:
    for panel in shown(board):
        if panel["type"] != "text" and not panel.get("targets"):
            yield panel["title"], "asks nothing"


def target_logql(board: Json) -> Findings:
    for panel in shown(board):
        for target in panel.get("targets") or ():
            if target["datasource"]["type"] != "prometheus":
                yield panel["title"], "asks something other than Prometheus"


def target_promql(board: Json) -> Findings:
    for title, expr in queries(board):
        try:
            promql_parser.parse(expand(expr))
        except ValueError as error:
            yield title, str(error)


def target_rate_interval(board: Json) -> Findings:
    for title, expr in queries(board):
        for function, span in re.findall(r"\b(rate|irate|increase) ?\([^\[\]]*\[([^\]]*)\]", expr):
            if span != "$__rate_interval":
                yield title, f"{function} over [{span}]"


def _matcher(name: str) -> Callable[[Json], Findings]:
    def rule(board: Json) -> Findings:
        for title, expr in queries(board):
            if f'{name}=~"${name}"' not in expr:
                yield title, f"selects no {name}"

    return rule


def target_counter_agg(board: Json) -> Findings:
    for title, expr in queries(board):
        bare = re.sub(r"\b(?:rate|irate|increase) ?\([^\[\]]*\[[^\]]*\]", "", expr)
        for name in re.findall(r"\w+_total\b", bare):
            yield title, f"{name} without rate or increase"


def uneditable_dashboard(board: Json) -> Findings:
    if board["editable"]:
        yield "", "can be edited"


RULES: dict[str, Callable[[Json], Findings]] = {
    "template-datasource": template_datasource,
    "template-job": _variable("job"),
    "template-instance": _variable("instance"),
    "template-label-promql": template_label_promql,
    "template-on-time-change-reload": template_on_time_change_reload,
    "panel-datasource": panel_datasource,
    "panel-title-description": panel_title_description,
    "panel-units": panel_units,
    "panel-no-targets": panel_no_targets,
    "target-logql": target_logql,
    "target-logql-auto": target_logql,
    "target-promql": target_promql,
    "target-rate-interval": target_rate_interval,
    "target-job": _matcher("job"),
    "target-instance": _matcher("instance"),
    "target-counter-agg": target_counter_agg,
    "uneditable-dashboard": uneditable_dashboard,
}


def excused(rule: str, board: str, panel: str) -> bool:
    return any(
        entry.get("board", board) == board and entry.get("panel", panel) == panel for entry in EXCEPTIONS.get(rule, ())
    )


@pytest.mark.parametrize("rule", RULES)
def test_every_board_keeps_the_rule_but_for_what_is_excused(rule: str) -> None:
    found = [(name, panel, what) for name, board in BOARDS.items() for panel, what in RULES[rule](board)]
    assert [one for one in found if not excused(rule, one[0], one[1])] == []


def test_every_exception_has_a_reason_and_is_still_needed() -> None:
    assert set(EXCEPTIONS) <= set(RULES)
    for rule, entries in EXCEPTIONS.items():
        found = [(name, panel) for name, board in BOARDS.items() for panel, _ in RULES[rule](board)]
        for entry in entries:
            assert len(entry["reason"]) > 15
            assert any(
                entry.get("board", name) == name and entry.get("panel", panel) == panel for name, panel in found
            ), (rule, entry)


# One fault a rule, in a board that is right otherwise.
FAULTS: dict[str, Callable[[Json], object]] = {
    "template-datasource": lambda board: board["templating"]["list"].pop(0),
    "template-on-time-change-reload": lambda board: variables(board)[1].update(refresh=1),
    "template-label-promql": lambda board: variables(board)[1]["datasource"].update(uid="abc"),
    "panel-datasource": lambda board: board["panels"][1]["datasource"].update(uid="abc"),
    "panel-title-description": lambda board: board["panels"][1].update(description=""),
    "panel-units": lambda board: board["panels"][1]["fieldConfig"]["defaults"].update(unit="seconds"),
    "panel-no-targets": lambda board: board["panels"][1].update(targets=[]),
    "target-promql": lambda board: board["panels"][1]["targets"][0].update(expr="sum("),
    "target-rate-interval": lambda board: board["panels"][1]["targets"][0].update(expr="rate(a_total[5m])"),
    "target-counter-agg": lambda board: board["panels"][1]["targets"][0].update(expr="sum(a_total)"),
    "target-logql": lambda board: board["panels"][1]["targets"][0]["datasource"].update(type="loki"),
    "uneditable-dashboard": lambda board: board.update(editable=True),
}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_rule_finds_its_fault(rule: str) -> None:
    board = copy.deepcopy(BOARDS["phasewatch-fleet"])
    assert list(RULES[rule](board)) == []
    FAULTS[rule](board)
    assert list(RULES[rule](board))
