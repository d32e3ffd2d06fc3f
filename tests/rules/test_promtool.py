"""The rules by promtool, of both Debian suites: they load, every alert fires and stays silent, and mistakes show."""

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulefiles import PROMETHEUS, RULE_FILES, TEST_FILES, Rule, alerts, promtool_cases, rules, selectors
from support import ROOT

ALERTS = alerts()


def _run(promtool: Path, *arguments: str | Path) -> tuple[int, str]:
    ran = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False, cwd=PROMETHEUS)
    return ran.returncode, ran.stdout + ran.stderr


def test_the_configuration_loads_with_all_rules(promtool: Path) -> None:
    code, said = _run(promtool, "check", "config", "prometheus.yml")
    assert code == 0, said
    assert "FAILED" not in said
    assert f"{len(RULE_FILES)} rule files found" in said


def test_the_scrape_keeps_phasewatchs_own_labels_and_the_runbook_label_stays_off_alerts() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert [job["honor_labels"] for job in config["scrape_configs"] if job["job_name"] == "phasewatch"] == [True]
    assert config["alerting"]["alert_relabel_configs"] == [{"action": "labeldrop", "regex": "runbooks"}]


@pytest.mark.parametrize("file", TEST_FILES, ids=lambda file: file.name.removesuffix(".test.yml"))
def test_the_rules_do_what_their_unit_tests_say(promtool: Path, file: Path) -> None:
    code, said = _run(promtool, "test", "rules", file)
    assert code == 0, said


def test_every_file_of_unit_tests_is_found() -> None:
    assert {file.name.partition(".")[0].removesuffix("-slow") for file in TEST_FILES} == {
        *(file.stem for file in RULE_FILES if file.stem != "vllm"),
        "cases",
    }


def _checks(case: dict[str, Any], alert: str) -> list[bool]:
    """Whether it fires, check by check."""
    return [bool(check["exp_alerts"]) for check in case["alert_rule_test"] if check["alertname"] == alert]


def _flips(series: dict[str, str]) -> bool:
    return bool(re.search(r"_diagnosis\{verdict=", series["series"]) and re.search(r"1 0 1 0", series["values"]))


@pytest.mark.parametrize("alert", sorted({rule.name for rule in ALERTS} - {"PhasewatchWatchdog", "PhasewatchDown"}))
def test_every_alert_is_shown_firing_silent_through_missed_scrapes_and_flips_and_ending(alert: str) -> None:
    cases = [case for _, case in promtool_cases() if _checks(case, alert)]
    assert any(not any(_checks(case, alert)) for case in cases), "a case that stays silent"
    stories = []
    for case in cases:
        values = [series["values"] for series in case["input_series"]]
        missed = all("stale _" in text or "stale" in text.split()[:-1] for text in values) and any(
            "_x2" in text or text.split().count("_") > 1 for text in values
        )
        ended = all(text.endswith("stale") for text in values)
        fires = _checks(case, alert)
        if missed and ended and any(map(_flips, case["input_series"])) and fires[-1] is False and sum(fires) >= 3:
            stories.append(case)
    assert stories, "a case with missed scrapes, a flipping verdict and data that end"
    severities = {
        one["exp_labels"]["severity"]
        for case in cases
        for check in case["alert_rule_test"]
        if check["alertname"] == alert
        for one in check["exp_alerts"]
    }
    assert severities == {rule.severity for rule in ALERTS if rule.name == alert}, "both severities fire somewhere"


def test_the_monitors_own_absence_is_shown_through_missed_scrapes() -> None:
    cases = [case for _, case in promtool_cases() if any(_checks(case, "PhasewatchDown"))]
    assert any(_checks(case, "PhasewatchDown") == [False, False, False, True, True] for case in cases)


def test_every_alert_case_of_the_field_is_there_by_name() -> None:
    names = [case["name"].partition(":")[0] for _, case in promtool_cases()]
    assert {"E01", "E02", "E03", "E05", "E07a", "E07b", "E07c", "E17", "P13"} <= set(names)


def test_e13_no_alert_is_only_ever_silent() -> None:
    fires = {
        check["alertname"] for _, case in promtool_cases() for check in case["alert_rule_test"] if check["exp_alerts"]
    }
    assert {rule.name for rule in ALERTS} - fires == set()


def test_e15_numbers_are_printed_with_their_unit() -> None:
    texts = [
        one["exp_annotations"]["description"]
        for _, case in promtool_cases()
        for check in case["alert_rule_test"]
        for one in check["exp_alerts"]
    ]
    text = next(text for text in texts if "KV cache 97% full" in text)
    assert "118 requests waiting" in text
    assert not [text for text in texts if re.search(r"\de[+-]\d", text)], "1.177e+04%"


def test_a_model_name_with_quotes_and_slashes_is_looked_up(promtool: Path, tmp_path: Path) -> None:
    name = 'a/"b"\\c{d}'
    of = f'model_name={json.dumps(name)},target="t",engine="0"'
    series = {
        f'phasewatch_diagnosis{{verdict="engine_stalled",{of}}}': "1x20",
        f'phasewatch_diagnosis_confidence{{level="low",{of}}}': "0x20",
        f"phasewatch_waiting_requests{{{of}}}": "3x20",
    }
    labels = {"severity": "critical", "kind": "cause", "area": "all", "model_name": name, "target": "t", "engine": "0"}
    texts = {
        "summary": "An engine has stalled with requests in flight.",
        "description": f"Engine 0 on t ({name}) has stalled, 100% of the last 10 minutes. 3 requests waiting.\n"
        "Read on: config/runbooks/verdicts/engine_stalled.md",
        "runbook_url": "config/runbooks/alerts/PhasewatchEngineStalled.md",
    }
    check = {
        "eval_time": "5m20s",
        "alertname": "PhasewatchEngineStalled",
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": texts}],
    }
    case = {
        "name": "quotes",
        "interval": "30s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [check],
    }
    code, said = _promtool_on(promtool, tmp_path, [PROMETHEUS / "rules" / "causes.yml"], "40s", [case])
    assert code == 0, said


def test_e11_a_hidden_label_makes_no_series_of_its_own(promtool: Path, tmp_path: Path) -> None:
    tenants = [
        {
            "series": f'vllm:time_to_first_token_seconds_bucket{{model_name="m",tenant="{n}",instance="i",le="{le}"}}',
            "values": f"0+{rate}x10",
        }
        for n in range(300)
        for le, rate in (("2.5", 0), ("5", 10), ("+Inf", 10))
    ]
    case = {
        "name": "tenants",
        "interval": "1m",
        "input_series": tenants,
        "promql_expr_test": [
            {
                "expr": "round(model:vllm_time_to_first_token_seconds:p50_rate5m, 0.001)",
                "eval_time": "8m20s",
                "exp_samples": [{"labels": '{model_name="m"}', "value": 3.75}],
            }
        ],
    }
    code, said = _promtool_on(promtool, tmp_path, [PROMETHEUS / "rules" / "vllm.yml"], "20s", [case])
    assert code == 0, said


def _promtool_on(
    promtool: Path, folder: Path, files: list[Path], evaluation: str, cases: list[dict[str, Any]]
) -> tuple[int, str]:
    path = folder / "cases.test.yml"
    whole = {"rule_files": [str(file) for file in files], "evaluation_interval": evaluation, "tests": cases}
    path.write_text(yaml.safe_dump(whole))
    return _run(promtool, "test", "rules", path)


# --- mistakes in the rules must show


def _mutants(rule: Rule) -> list[tuple[str, str]]:
    """(what was broken, the expression): every series misnamed, every number of a comparison made unreachable."""
    expression = re.sub(r"#.*", "", rule.expr)
    broken = [
        (name, re.sub(rf"(?<![\w:]){re.escape(name)}(?![\w:])", f"{name}_x", expression))
        for name in dict.fromkeys(name for name, _ in selectors(expression))
    ]
    for found in re.finditer(r"(>=|>|==) (\d[\d.]*)(?!\d*\s*\*)(?=\s|$)", expression):
        far = f"{found[1]} 1e9"
        broken.append((f"{found[0]} -> {far}", expression[: found.start()] + far + expression[found.end() :]))
    return broken


def _survives(promtool: Path, folder: Path, rule: Rule, expression: str) -> bool:
    """Whether no unit test of the rule's alert notices."""
    kept = [
        {**body, "expr": expression} if body == rule.body else body
        for body in (one.body for one in rules(rule.file) if one.name == rule.name or one.name in rule.expr)
    ]
    folder.mkdir()
    broken = folder / "rules.yml"
    broken.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": kept}]}))
    documents = [yaml.safe_load(file.read_text()) for file in TEST_FILES if file.name.startswith(rule.file.stem)]
    # What fires first tells most mistakes, and soonest; the silent cases tell those in what is excepted.
    for cut in (_until_it_fires, _whole):
        for document in documents:
            cases = [less for case in document["tests"] if (less := cut(case, rule))]
            evaluation = document["evaluation_interval"]
            if cases and _promtool_on(promtool, folder, [broken], evaluation, cases)[0] != 0:
                return False
    return True


def _until_it_fires(case: dict[str, Any], rule: Rule) -> dict[str, Any] | None:
    for check in case["alert_rule_test"]:
        if any(one["exp_labels"]["severity"] == rule.severity for one in check["exp_alerts"]):
            return {**case, "alert_rule_test": [check]} if check["alertname"] == rule.name else None
    return None


def _whole(case: dict[str, Any], rule: Rule) -> dict[str, Any] | None:
    return case if _checks(case, rule.name) else None


@pytest.mark.parametrize("tools", ["bookworm"], indirect=True)
@pytest.mark.parametrize(
    "name", sorted({rule.name for rule in ALERTS} - {"PhasewatchWatchdog", "PhasewatchITLBudgetBurn"})
)
def test_a_misspelt_series_or_a_threshold_out_of_reach_turns_the_unit_tests_red(
    promtool: Path, tmp_path: Path, name: str
) -> None:
    mutants = [(rule, what, expression) for rule in ALERTS if rule.name == name for what, expression in _mutants(rule)]
    assert mutants
    with ThreadPoolExecutor(2) as pool:
        survived = pool.map(
            lambda numbered: _survives(promtool, tmp_path / str(numbered[0]), numbered[1][0], numbered[1][2]),
            enumerate(mutants),
        )
        found = {(rule.id, what) for (rule, what, _), alive in zip(mutants, survived, strict=True) if alive}
    assert found == set()


def test_the_burn_rates_of_itl_are_those_of_ttft_by_another_name() -> None:
    ttft, itl = (
        [rule.expr for rule in ALERTS if rule.name == name]
        for name in ("PhasewatchTTFTBudgetBurn", "PhasewatchITLBudgetBurn")
    )
    assert [expr.replace("ttft_p.+", "(itl|tpot)_p.+") for expr in ttft] == itl


def test_the_repository_has_the_rules_where_the_readme_says() -> None:
    text = (ROOT / "config" / "prometheus" / "README.md").read_text()
    assert set(re.findall(r"`rules/(\w+\.yml)`", text)) == {file.name for file in RULE_FILES}
