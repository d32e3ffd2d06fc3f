"""Rule files -> findings. Files as Prometheus reads them, and PrometheusRule objects of Kubernetes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasewatch.rulecheck.expression import ERROR, problems, value_of
from phasewatch.rulecheck.series import Known
from phasewatch.service.yamlfile import FileError, Loc, YamlFile, kind, read_yaml

_ACTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|`([^`]*)`')
_FILLED_IN = re.compile(r"""\w+\s*=~?\s*(%q|"%[svq]")\s*,?|,?\s*%[svq](?=\s*[,}])""")
# $value in a template, what is done with it, and the unit behind it; the same unit in a printf.
_UNIT = r"(milliseconds?|msecs?|ms|seconds?|secs?|s|percent|%)(?!\w)"
_VALUE = re.compile(
    rf"\{{\{{((?:(?!\}}\}}).)*(?:\$value|\.Value)\b(?:(?!\}}\}}).)*)\}}\}}(?:\s*{_UNIT})?", re.DOTALL | re.IGNORECASE
)
_PRINTED = re.compile(rf"%[-+ 0-9.]*[efgv]\s*(?:%?{_UNIT})", re.IGNORECASE)
# Actions that write it in its own unit, or decide by it and write nothing.
_NO_NUMBER = re.compile(r"\bhumanize(?:Duration|Percentage)\b|^-?\s*(?:if|else|with|range)\b")
_WRITTEN = {
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("%", "percent"), "%"),
}


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """message: what; what to do."""

    file: str
    line: int
    group: str
    rule: str
    severity: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.group}/{self.rule}: {self.severity}: {self.message}"


@dataclass(frozen=True, slots=True)
class _Rule:
    file: YamlFile
    loc: Loc
    group: str
    body: Mapping[str, Any]

    @property
    def is_alert(self) -> bool:
        return "alert" in self.body

    @property
    def name(self) -> str:
        return str(self.body["alert"] if self.is_alert else self.body.get("record"))

    @property
    def annotations(self) -> dict[str, str]:
        return {str(name): str(text) for name, text in (self.body.get("annotations") or {}).items()}

    def finding(self, severity: str, message: str, *key: str) -> RuleFinding:
        line, _ = self.file.place((*self.loc, *key))
        return RuleFinding(self.file.name, line, self.group, self.name, severity, " ".join(message.split()))


def check(paths: Sequence[Path], known: Known) -> list[RuleFinding]:
    """All findings, file by file from top to bottom. Raises FileError where a file holds no rules at all."""
    rules = [rule for path in paths for rule in _rules(read_yaml(path))]
    recorded = {rule.name: str(rule.body["expr"]) for rule in rules if not rule.is_alert}
    found = [finding for rule in rules for finding in _of_rule(rule, known, recorded)]
    order = {str(path): index for index, path in enumerate(paths)}
    return sorted(found, key=lambda finding: (order[finding.file], finding.line, finding.severity, finding.message))


def without_runbook(paths: Sequence[Path]) -> int:
    """How many alerts lack a runbook_url. Raises FileError as `check`."""
    rules = [rule for path in paths for rule in _rules(read_yaml(path))]
    return sum(rule.is_alert and not rule.annotations.get("runbook_url") for rule in rules)


def _rules(file: YamlFile) -> Iterator[_Rule]:
    spec = file.data.get("spec")
    data, loc = (spec, ("spec", "groups")) if isinstance(spec, dict) else (file.data, ("groups",))
    groups = data.get("groups")
    if not isinstance(groups, list):
        raise FileError(f"{file.name}:1: has no list `groups`; give a file of Prometheus rules")
    for g, group in enumerate(groups):
        rules = group.get("rules") if isinstance(group, dict) else None
        if not isinstance(rules, list):
            raise _wrong(file, (*loc, g), "has no list `rules`; `promtool check rules` says more")
        for r, body in enumerate(rules):
            at = (*loc, g, "rules", r)
            if not isinstance(body, dict) or "expr" not in body or ("alert" in body) == ("record" in body):
                raise _wrong(file, at, "invalid rule; give it `expr` and either `alert` or `record`")
            for key in ("labels", "annotations"):
                if not isinstance(body.get(key) or {}, dict):
                    raise _wrong(
                        file, (*at, key), f"must be a mapping (key: value), not {kind(body[key])}; indent its keys"
                    )
            yield _Rule(file, at, str(group.get("name", g)), body)


def _wrong(file: YamlFile, loc: Loc, message: str) -> FileError:
    line, path = file.place(loc)
    return FileError(f"{file.name}:{line}: {path}: {message}")


def _of_rule(rule: _Rule, known: Known, recorded: Mapping[str, str]) -> Iterator[RuleFinding]:
    try:
        for severity, text in problems(str(rule.body["expr"]), known, recorded):
            yield rule.finding(severity, text, "expr")
    except ValueError as error:
        yield rule.finding(ERROR, f"invalid PromQL ({error}); correct it", "expr")
    yield from _units_written(rule, known, recorded)
    for name, text in rule.annotations.items() if rule.is_alert else ():
        for query in _queries(text):
            try:
                wrong = [said for severity, said in problems(query, known, recorded) if severity == ERROR]
            except ValueError:
                continue  # put together when it is rendered
            for problem in wrong:
                yield rule.finding(ERROR, f"{name} queries what does not exist: {problem}", "annotations", name)


def _units_written(rule: _Rule, known: Known, recorded: Mapping[str, str]) -> Iterator[RuleFinding]:
    """$value with a unit that the expression's values do not have."""
    try:
        value = value_of(str(rule.body["expr"]), known, recorded)
    except ValueError:  # told with the expression
        return
    if value is None or value.symbol is None or not rule.is_alert:
        return
    helper = "humanizeDuration" if value.unit == "seconds" else "humanizePercentage"
    for name, text in rule.annotations.items():
        for action, after in _VALUE.findall(text):
            inside = _PRINTED.search(action)
            written = _WRITTEN.get((inside[1] if inside else after).lower())
            if written and written != value.symbol and not _NO_NUMBER.search(action.strip()):
                yield rule.finding(
                    ERROR,
                    f"{name} writes $value in {written}, and {value.source} is {value.told};"
                    f" write {{{{ $value | {helper} }}}}, or scale it in the expression",
                    "annotations",
                    name,
                )


def _queries(text: str) -> Iterator[str]:
    """The PromQL in a template's string literals, without the matchers that it fills in."""
    for action in _ACTION.findall(text):
        if "query" not in action:
            continue
        for quoted, raw in _LITERAL.findall(action):
            try:
                query = json.loads(f'"{quoted}"') if quoted else raw
            except ValueError:
                continue
            if re.search(r"[({:_]", query):
                yield _FILLED_IN.sub("", query)
