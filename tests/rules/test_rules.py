"""The rules read as text: names, labels, style, runbooks. That they fire is test_promtool's part."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from phasewatch.core.diagnosis.verdicts import REMEDIES, VERDICTS
from phasewatch.core.model import CONFIDENCES, SEVERITIES, STATES, Phases
from phasewatch.core.report.families import window_label
from phasewatch.core.settings import OBJECTIVE_NAMES, Settings
from rulefiles import RUNBOOKS, Rule, alerts, exported, rules, selectors, unknown_series, vllm_names
from support import ROOT

ALL = rules()
ALERTS = alerts()
RECORDED = {rule.name for rule in ALL if "record" in rule.body}
VALUES = {
    "verdict": set(VERDICTS),
    "state": set(STATES),
    "level": set(CONFIDENCES),
    "severity": set(SEVERITIES),
    "phase": {field.name for field in fields(Phases)},
    "objective": set(OBJECTIVE_NAMES),
    "window": {window_label(seconds) for seconds in Settings().windows},
}
REQUIRED = (
    "TTFTHigh", "ITLHigh", "ITLStalls", "ObjectiveMissed", "QueueGrowing", "TTFTBudgetBurn", "ITLBudgetBurn",
    "EngineStalled", "AdmissionStalled", "KVCacheExhausted", "PreemptionStorm", "ReplicaOutlier",
    "FrontendSlow", "RequestsFailing", "ClientsGivingUp", "TargetsDown", "TargetFlapping", "SignalsLost",
    "NoEngineMetrics", "RestartLoop", "Down", "NotEvaluating", "Watchdog", "RequestsUnanswered", "CauseUnknown",
    "TrafficStopped", "ModelGone", "ScrapesSlow",
)  # fmt: skip


def _expressions(rule: Rule) -> list[str]:
    return [rule.expr, *rule.queries()]


def test_every_alert_that_was_asked_for_is_there() -> None:
    assert {f"Phasewatch{name}" for name in REQUIRED} <= {rule.name for rule in ALERTS}
    assert len(ALL) > len(ALERTS) > 30


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_every_series_a_rule_or_its_text_names_is_exported(rule: Rule) -> None:
    assert [name for text in _expressions(rule) for name in unknown_series(text, RECORDED)] == []


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_every_label_a_rule_selects_by_exists_and_can_have_that_value(rule: Rule) -> None:
    labels = exported()
    wrong = []
    for expression in _expressions(rule):
        for name, matchers in selectors(expression):
            for label, operator, value in matchers:
                possible = VALUES.get(label, {value})
                hits = {one for one in possible if (one == value if "Re" not in operator else re.fullmatch(value, one))}
                if name in labels and (label not in labels[name] or (not hits and value != "x")):
                    wrong.append(f'{name}{{{label} {operator} "{value}"}}')
    assert wrong == []


def test_the_walk_over_names_and_labels_sees_what_it_should() -> None:
    assert ("phasewatch_remedy_info", [("verdict", "Equal", "x")]) in [
        one for rule in ALERTS for query in rule.queries() for one in selectors(query)
    ]
    assert unknown_series("rate(phasewatch_ttft_p98_seconds[5m]) > model:nothing", RECORDED) == [
        "phasewatch_ttft_p98_seconds",
        "model:nothing",
    ]


def test_p12_a_counter_without_its_total_is_found_before_it_never_fires() -> None:
    assert unknown_series("increase(vllm:num_preemptions[5m]) > 0", set()) == ["vllm:num_preemptions"]
    assert unknown_series("increase(vllm:num_preemptions_total[5m]) > 0", set()) == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.id)
def test_every_alert_has_the_house_style(rule: Rule) -> None:
    body, texts = rule.body, rule.texts
    assert re.fullmatch(r"Phasewatch([A-Z][A-Za-z0-9]*)", rule.name)
    assert set(texts) == {"summary", "description", "runbook_url"}
    assert re.fullmatch(r"[^{}]+\.", texts["summary"]), "one static sentence"
    assert rule.severity in ("critical", "warning", "info", "none")
    assert set(body["labels"]) == {"severity", "kind", "area"}
    if rule.severity != "none":
        assert "for" in body, "flapping"
        assert "keep_firing_for" in body or "absent" in rule.expr


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.id)
def test_no_label_of_an_alert_depends_on_a_value_or_a_verdict(rule: Rule) -> None:
    assert not any("{{" in str(value) for value in rule.body["labels"].values())
    # What an expression keeps of a verdict's series must not be the verdict: it is aggregated away.
    kept = re.findall(r"(\w+) without \(([^)]*)\) \(\w+\(phasewatch_(?:model_)?diagnosis(?:_score)?\{", rule.expr)
    assert all("verdict" in labels for _, labels in kept)
    assert rule.expr.count("_diagnosis{") + rule.expr.count("_diagnosis_score{") <= len(kept) + rule.expr.count(
        "max by (target, engine, model_name)"
    )


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.id)
def test_a_gauge_is_never_read_without_a_range_that_rides_over_missed_scrapes(rule: Rule) -> None:
    without = re.sub(r"#.*", "", rule.expr)
    bare = re.findall(r"phasewatch_\w+(?:\{[^}]*\})?(?!\w|\[|\{)", without)
    assert [name for name in bare if "model:" not in name and f"model:{name.partition('{')[0]}" not in without] == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.id)
def test_a_limit_that_phasewatch_exports_is_no_literal(rule: Rule) -> None:
    """Latencies in seconds are compared with a series, never with a number."""
    latency = r"phasewatch_(?:ttft|itl|tpot|e2e|expected_wait)\w*_seconds\{[^}]*\}\[2m\]\)\)\s*[<>]=?\s*(\d)"
    assert re.findall(latency, rule.expr) == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.id)
def test_every_alert_has_a_runbook_of_its_own_that_says_what_to_do(rule: Rule) -> None:
    assert rule.texts["runbook_url"].endswith(f"/alerts/{rule.name}.md")
    text = (RUNBOOKS / "alerts" / f"{rule.name}.md").read_text()
    assert text.startswith(f"# {rule.name}\n")
    assert re.findall(r"^## (\w+)", text, re.MULTILINE) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    assert min(len(part.strip()) for part in re.split(r"^## \w+$", text, flags=re.MULTILINE)[1:]) > 30
    assert len(text) > 400


def test_no_runbook_is_left_of_an_alert_that_is_gone() -> None:
    assert {path.stem for path in (RUNBOOKS / "alerts").glob("*.md")} == {rule.name for rule in ALERTS}


def _links(path: Path) -> list[Path]:
    return [path.parent / link for link in re.findall(r"\]\(([^):#]+\.md)\)", path.read_text())]


def test_links_of_the_alert_runbooks_lead_to_a_verdict_or_another_file_here() -> None:
    links = {link.resolve() for path in (RUNBOOKS / "alerts").glob("*.md") for link in _links(path)}
    assert links, "no runbook links to a verdict"
    verdicts = (RUNBOOKS / "verdicts").resolve()
    unknown = [link for link in links if link.parent == verdicts and link.stem not in VERDICTS]
    assert unknown == []
    assert [link for link in links if link.parent != verdicts and not link.exists()] == []


def test_every_verdict_in_a_text_has_a_remedy_to_show() -> None:
    named = {
        value
        for rule in ALERTS
        for query in rule.queries()
        for name, matchers in selectors(query)
        for label, _, value in matchers
        if name == "phasewatch_remedy_info" and label == "verdict" and value != "x"
    }
    assert named <= set(REMEDIES)


def test_the_cause_is_looked_up_in_the_same_words_everywhere() -> None:
    lookups = {
        text[text.index('{{- with printf "topk(1, max by (verdict)') :]
        for rule in ALERTS
        if '{{- with printf "topk(1, max by (verdict)' in (text := rule.texts["description"])
    }
    assert len(lookups) == 1


def test_raw_rules_know_the_current_and_the_older_name_of_every_latency() -> None:
    read = {name for rule in ALL if rule.file.stem == "vllm" for name, _ in selectors(rule.expr)}
    assert read <= vllm_names()
    assert {"vllm:inter_token_latency_seconds_bucket", "vllm:time_per_output_token_seconds_bucket"} <= read


def test_nothing_that_is_shipped_names_the_label_of_the_runbooks_but_where_it_is_set() -> None:
    used = [path.name for path in (ROOT / "config").rglob("*.yml") if "externalLabels.runbooks" in path.read_text()]
    assert set(used) == {rule.file.name for rule in ALERTS}
    assert "regex: runbooks" in (ROOT / "config" / "prometheus" / "prometheus.yml").read_text()
