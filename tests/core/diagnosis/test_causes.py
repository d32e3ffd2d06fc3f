"""Walks the table of causes, and names what was forgotten of one."""

import re

import pytest

from phasewatch.core.diagnosis.causes import CAUSES
from phasewatch.core.diagnosis.causes._row import CauseRow, VerdictRow
from phasewatch.core.diagnosis.objectives import HANDOVERS, family_of
from phasewatch.core.diagnosis.verdicts import DEMAND, EXPECTED, LIVENESS, REMEDIES, VERDICT_TABLE, VERDICTS
from phasewatch.core.pages.catalog import CATALOG
from phasewatch.core.settings import OBJECTIVE_NAMES
from support import ROOT
from tools.dashboards import triage
from tools.dashboards.looks import PHASE_COLOURS, TIMELINE
from tools.dashboards.queries import VERDICT_NUMBERS
from tools.simulator.scenarios import KINDS, scenario

FOLDER = ROOT / "src" / "phasewatch" / "core" / "diagnosis" / "causes"
BOARDS = ROOT / "grafana" / "dashboards"
every_cause = pytest.mark.parametrize("row", CAUSES, ids=lambda row: row.verdict)
# What people feel besides objectives.
FELT = {
    family_of(name)
    for name in (*OBJECTIVE_NAMES, "expected_wait", "gave_up", "own_past", "requests_failing", HANDOVERS)
}
PANELS = {panel.title for row in triage.BOARD.rows for panel in row.panels}


def forgotten(row: CauseRow) -> list[str]:
    """What a cause lacks of all that stands or falls with it."""
    lacking = {
        "a runbook in config/runbooks/verdicts": not (ROOT / f"config/runbooks/verdicts/{row.verdict}.md").is_file(),
        "remedies": not row.remedies,
        "a simulated incident of its name in tools/simulator": row.verdict not in KINDS
        or not any(row.verdict in judge.accept for judge in scenario(row.verdict, 1).judge),
        "a hint (look)": not row.look.endswith("."),
        "a colour of its phase in tools/dashboards/looks.py": row.phase not in PHASE_COLOURS,
        "a rule with families, or neither": (row.rule is None) != (not row.families),
        "its name in the committed dashboards (make dashboards)": any(
            row.verdict not in (BOARDS / f"phasewatch-{board}.json").read_text() for board in ("triage", "engine")
        ),
    }
    return [what for what, is_lacking in lacking.items() if is_lacking]


@every_cause
def test_nothing_that_a_cause_needs_was_forgotten(row: CauseRow) -> None:
    assert forgotten(row) == []


def test_the_walk_names_all_that_a_half_made_cause_lacks() -> None:
    half = CauseRow(verdict="half_made", phase="elsewhere", look="", remedies=(), families=("ttft",))  # type: ignore[arg-type]
    assert len(forgotten(half)) == 7


def test_every_file_of_a_cause_is_in_the_table_under_its_name() -> None:
    files = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    assert files == sorted(row.verdict for row in CAUSES)
    for row in CAUSES:
        assert f'verdict="{row.verdict}"' in (FOLDER / f"{row.verdict}.py").read_text()


def test_the_closed_set_is_healthy_unknown_and_the_causes_in_order_of_precedence() -> None:
    assert ("healthy", "unknown", *(row.verdict for row in CAUSES)) == VERDICTS
    assert len(set(VERDICTS)) == len(VERDICTS)
    assert LIVENESS == ("engine_stalled", "admission_stalled") == VERDICTS[2:4]
    assert {verdict for verdict in VERDICTS if verdict.startswith("queue_")} < set(DEMAND)
    assert list(REMEDIES) == list(VERDICTS[2:])


@every_cause
def test_a_rule_reads_signals_and_explains_symptoms_that_there_are(row: CauseRow) -> None:
    assert set(row.families) <= FELT
    assert {*row.needs, *row.uses, *row.feature} <= {signal.name for signal in CATALOG}
    assert not {*row.needs, *row.uses} & set(row.feature)


def test_what_only_some_deployments_have_is_never_missing() -> None:
    assert not {name for row in CAUSES for name in row.feature} & set(EXPECTED)


@pytest.mark.parametrize("row", VERDICT_TABLE, ids=lambda row: row.verdict)
def test_a_hint_names_panels_that_the_triage_dashboard_has(row: VerdictRow) -> None:
    assert set(re.findall(r"\*\*(.+?)\*\*", row.look)) <= PANELS
    assert TIMELINE[VERDICT_NUMBERS[row.verdict]] == (row.verdict, PHASE_COLOURS[row.phase])


@every_cause
def test_remedies_read_as_clauses_and_none_stands_there_twice(row: CauseRow) -> None:
    for advice in row.remedies:
        for text in (advice.change, advice.why, advice.side_effect):
            assert text == text.strip()
            assert not text.endswith(".")
    changes = [advice.change for advice in row.remedies]
    assert len(set(changes)) == len(changes)
