"""Rule files -> findings. Files as Prometheus reads them, and PrometheusRule objects of Kubernetes."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasewatch.rulecheck.expression import ERROR, problems
from phasewatch.rulecheck.series import Known
from phasewatch.service.yamlfile import FileError, Loc, YamlFile, kind, read_yaml

_ACTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|`([^`]*)`')
_FILLED_IN = re.compile(r"""\w+\s*=~?\s*(%q|"%[svq]")\s*,?|,?\s*%[svq](?=\s*[,}])""")


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
    recorded = {rule.name for rule in rules if not rule.is_alert}
    found = [finding for rule in rules for finding in _of_rule(rule, known, recorded)]
    order = {str(path): index for index, path in enumerate(paths)}
    return sorted(found, key=lambda finding: (order[finding.file], finding.line, finding.severity, finding.message))


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


def _of_rule(rule: _Rule, known: Known, recorded: Collection[str]) -> Iterator[RuleFinding]:
    try:
        for severity, text in problems(str(rule.body["expr"]), known, recorded):
            yield rule.finding(severity, text, "expr")
    except ValueError as error:
        yield rule.finding(ERROR, f"invalid PromQL ({error}); correct it", "expr")
    for name, text in rule.annotations.items() if rule.is_alert else ():
        for query in _queries(text):
            try:
                wrong = [said for severity, said in problems(query, known, recorded) if severity == ERROR]
            except ValueError:
                continue  # put together when it is rendered
            for problem in wrong:
                yield rule.finding(ERROR, f"{name} queries what does not exist: {problem}", "annotations", name)


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
