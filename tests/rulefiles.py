"""The shipped Prometheus rules, their promtool tests and Alertmanager's configuration, as tests see them."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from phasewatch.core.pages.catalog import CATALOG
from phasewatch.core.report.families import ENGINE_TABLES, MODEL_PREFIX, MODEL_TABLES, PREFIX
from phasewatch.core.report.measure_table import WINDOW_ROWS
from phasewatch.core.report.status_table import LIMIT_ROWS, SERVICE_ROWS, TARGET_ROWS
from support import ROOT

PROMETHEUS = ROOT / "config" / "prometheus"
RULES = PROMETHEUS / "rules"
TESTS = PROMETHEUS / "tests"
RUNBOOKS = ROOT / "config" / "runbooks"
RULE_FILES = sorted(RULES.glob("*.yml"))
TEST_FILES = sorted(TESTS.glob("*.test.yml"))

_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
# What a target brings along, and what Prometheus adds to every scrape.
FREE_LABELS = frozenset({"namespace", "pod", "role", "instance", "job"})


@dataclass(frozen=True)
class Rule:
    """One rule of one file. body: as in the YAML."""

    file: Path
    group: str
    body: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.body.get("alert") or self.body["record"])

    @property
    def severity(self) -> str:
        return str(self.body.get("labels", {}).get("severity", ""))

    @property
    def id(self) -> str:
        return f"{self.name}-{self.severity}"

    @property
    def expr(self) -> str:
        return str(self.body["expr"])

    @property
    def texts(self) -> Mapping[str, str]:
        return dict(self.body.get("annotations", {}))

    def queries(self) -> list[str]:
        """The PromQL that its annotations look up, with an "x" for every label value they fill in."""
        found = []
        for text in self.texts.values():
            for literal in _STRING.findall(text):
                query = json.loads(f'"{literal}"')
                if "(" in query or "{" in query:
                    found.append(query.replace("%q", '"x"').replace("%s", 'model_name="x",target="x",engine="x"'))
        return found


def rules(*files: Path) -> list[Rule]:
    return [
        Rule(file, group["name"], body)
        for file in files or RULE_FILES
        for group in yaml.safe_load(file.read_text())["groups"]
        for body in group["rules"]
    ]


def alerts() -> list[Rule]:
    return [rule for rule in rules() if "alert" in rule.body]


def selectors(expression: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """(name, [(label, operator, value)]) of every selector in a PromQL expression."""
    found: list[tuple[str, list[tuple[str, str, str]]]] = []

    def visit(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name, [(m.name, str(m.op).split(".")[-1], m.value) for m in node.matchers.matchers]))
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def exported() -> dict[str, frozenset[str]]:
    """Every series phasewatch can export -> its labels."""
    labels: dict[str, frozenset[str]] = {}
    windowed = {row.name for row in WINDOW_ROWS}
    for prefix, table, own in (
        (PREFIX, ENGINE_TABLES, ("target", "model_name", "engine")),
        (MODEL_PREFIX, MODEL_TABLES, ("model_name",)),
        (PREFIX, TARGET_ROWS, ("target",)),
        (PREFIX, LIMIT_ROWS, ("model_name",)),
        (PREFIX, SERVICE_ROWS, ()),
    ):
        for row in table:
            window = {"window"} if row.name in windowed else set()
            labels[f"{prefix}{row.name}"] = frozenset(own) | set(row.labels) | window | FREE_LABELS
    return labels


def vllm_names() -> set[str]:
    """Every engine series of vLLM that the catalogue knows, by all the names it ever had."""
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    return {
        f"vllm:{name}{suffix}"
        for row in CATALOG
        for name in row.names
        for suffix in parts.get(row.kind, ("",))
        if row.prefixed
    }


def unknown_series(expression: str, recorded: set[str]) -> list[str]:
    """Names in an expression that nothing exports: a rule with one of them can never fire."""
    known = set(exported()) | vllm_names() | recorded | {"up"}  # Prometheus' own, of every scrape
    return [name for name, _ in selectors(expression) if name not in known]


def promtool_cases() -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in TEST_FILES:
        for case in yaml.safe_load(file.read_text())["tests"]:
            yield file, case


def fired() -> dict[tuple[str, str], list[tuple[dict[str, str], dict[str, str]]]]:
    """(alert, severity) -> the labels and annotations that promtool proves; alertname is added, as Prometheus does."""
    found: dict[tuple[str, str], list[tuple[dict[str, str], dict[str, str]]]] = {}
    for _, case in promtool_cases():
        for check in case["alert_rule_test"]:
            for one in check["exp_alerts"]:
                labels = {"alertname": check["alertname"], **one["exp_labels"]}
                found.setdefault((check["alertname"], labels["severity"]), []).append((labels, one["exp_annotations"]))
    return found
