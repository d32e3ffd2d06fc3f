"""The rules are written from tools/alerts, byte for byte; what is committed is what the rows say."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support import ROOT
from tools.alerts.pieces import FACTS
from tools.alerts.rows import FILES, PREFIX, Alert

RULES = ROOT / "config" / "prometheus" / "rules"
ALERTS = [rule for file in FILES.values() for rule in file.rules if isinstance(rule, Alert)]
# Written by hand: recordings of vLLM's own series have no boilerplate.
BY_HAND = {"vllm.yml"}


def test_the_committed_rules_are_what_the_rows_say(tmp_path: Path) -> None:
    """`make rules` rewrites them."""
    subprocess.run([sys.executable, "-m", "tools.alerts", tmp_path], check=True, cwd=ROOT)
    made = {path.name: path.read_text() for path in tmp_path.glob("*.yml")}
    assert {path.name: path.read_text() for path in RULES.glob("*.yml") if path.name not in BY_HAND} == made


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_an_alert_has_its_runbook_and_its_promtool_case(alert: Alert) -> None:
    name = f"{PREFIX}{alert.name}"
    assert (ROOT / "config" / "runbooks" / "alerts" / f"{name}.md").is_file(), "write its runbook"
    cases = "".join(path.read_text() for path in (ROOT / "config" / "prometheus" / "tests").glob("*.yml"))
    assert f"alertname: {name}" in cases, "write a case for promtool"


def test_an_alert_has_one_row_a_severity() -> None:
    assert [key for key, rows in Counter((alert.name, alert.severity) for alert in ALERTS).items() if rows > 1] == []


def test_every_fact_is_told_by_an_alert() -> None:
    assert {fact for alert in ALERTS for fact in alert.facts} == set(FACTS)
