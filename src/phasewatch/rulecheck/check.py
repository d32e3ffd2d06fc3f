"""Rule files -> findings. Files as Prometheus reads them, and PrometheusRule objects of Kubernetes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phasewatch.rulecheck.expression import ERROR, WARNING, Reader
from phasewatch.rulecheck.series import Known
from phasewatch.rulecheck.vector import Vector
from phasewatch.service.yamlfile import FileError, Loc, YamlFile, kind, read_yaml

_REQUIRED = (
    (("labels", "severity"), "has no severity, by which it would be routed; add it to its labels"),
    (
        ("annotations", "runbook_url"),
        "has no runbook_url, so a page does not say where to read on; add it to its annotations",
    ),
    (("annotations", "summary"), "has no summary; add one sentence to its annotations"),
)
_VALUE = re.compile(r"\{\{[^}]*(\$value|\.Value|\bquery\b)")
_PRINTED = re.compile(r"\$labels\.([a-zA-Z_]\w*)|index\s+\$labels\s+\"([^\"]+)\"")
_DOT_PRINTED = re.compile(r"\{\{-?\s*\.Labels\.([a-zA-Z_]\w*)")
_ACTION = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"|`([^`]*)`')
_FILLED_IN = re.compile(r"""\w+\s*=~?\s*(%q|"%[svq]")\s*,?|,?\s*%[svq](?=\s*[,}])""")


@dataclass(frozen=True, slots=True)
class Finding:
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

    def texts(self, key: str) -> dict[str, str]:
        return {str(name): str(text) for name, text in (self.body.get(key) or {}).items()}

    def finding(self, severity: str, message: str, *key: str) -> Finding:
        line, _ = self.file.place((*self.loc, *key))
        return Finding(self.file.name, line, self.group, self.name, severity, " ".join(message.split()))


def check(paths: Sequence[Path], known: Known) -> list[Finding]:
    """All findings, file by file from top to bottom. Raises FileError where a file holds no rules at all."""
    rules = [rule for path in paths for rule in _rules(read_yaml(path))]
    recorded = _Recorded(rules, known)
    found = [finding for rule in rules for finding in _of_rule(rule, known, recorded)]
    order = {str(path): index for index, path in enumerate(paths)}
    return sorted(found, key=lambda finding: (order[finding.file], finding.line, finding.severity, finding.message))


def _rules(file: YamlFile) -> Iterator[_Rule]:
    spec = file.data.get("spec")
    data, loc = (spec, ("spec", "groups")) if isinstance(spec, dict) else (file.data, ("groups",))
    groups = data.get("groups")
    if not isinstance(groups, list):
        raise FileError(f"{file.name}:1: has no list `groups`; name a file of Prometheus rules")
    for g, group in enumerate(groups):
        rules = group.get("rules") if isinstance(group, dict) else None
        if not isinstance(rules, list):
            raise _wrong(file, (*loc, g), "is no group with a list `rules`; promtool check rules says more")
        for r, body in enumerate(rules):
            at = (*loc, g, "rules", r)
            if not isinstance(body, dict) or "expr" not in body or ("alert" in body) == ("record" in body):
                raise _wrong(file, at, "is no rule: it needs `expr` and one of `alert` and `record`")
            for key in ("labels", "annotations"):
                if not isinstance(body.get(key) or {}, dict):
                    raise _wrong(
                        file, (*at, key), f"must be a mapping (key: value), not {kind(body[key])}; indent its keys"
                    )
            yield _Rule(file, at, str(group.get("name", g)), body)


def _wrong(file: YamlFile, loc: Loc, message: str) -> FileError:
    line, path = file.place(loc)
    return FileError(f"{file.name}:{line}: {path}: {message}")


class _Recorded(Mapping[str, Vector]):
    """What the rules record, read when first asked for: rules may use one another in any order."""

    def __init__(self, rules: Sequence[_Rule], known: Known) -> None:
        self._rules = [rule for rule in rules if not rule.is_alert]
        self._known = known
        self._read: dict[str, Vector] = {}

    def __getitem__(self, name: str) -> Vector:
        if name not in self._read:
            rules = [rule for rule in self._rules if rule.name == name]
            if not rules:
                raise KeyError(name)
            self._read[name] = Vector()  # a rule that reads itself
            vectors = [self._vector(rule) for rule in rules]
            # Several rules of one name: only what is so for all of them is known.
            self._read[name] = vectors[0] if len(vectors) == 1 else Vector(empty=_first_where_all(vectors))
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return any(rule.name == name for rule in self._rules)

    def __iter__(self) -> Iterator[str]:
        return iter({rule.name for rule in self._rules})

    def __len__(self) -> int:
        return len({rule.name for rule in self._rules})

    def _vector(self, rule: _Rule) -> Vector:
        try:
            vector = Reader(self._known, self).read(str(rule.body["expr"]))
        except ValueError:
            return Vector()
        empty = f"{rule.name} records nothing ({vector.empty.partition(';')[0]})" if vector.empty else ""
        return replace(vector.add(rule.texts("labels"), sure=True), empty=empty, raw="", scalar=False)


def _first_where_all(vectors: Sequence[Vector]) -> str:
    return vectors[0].empty if all(vector.empty for vector in vectors) else ""


def _of_rule(rule: _Rule, known: Known, recorded: Mapping[str, Vector]) -> Iterator[Finding]:
    reader = Reader(known, recorded)
    try:
        vector = reader.read(str(rule.body["expr"]))
    except ValueError as error:
        yield rule.finding(ERROR, f"expr is no PromQL ({error}); correct it", "expr")
        vector = None
    if vector is not None:
        yield from _of_expression(rule, reader, vector)
    if rule.is_alert:
        for key, message in _REQUIRED:
            if not rule.texts(key[0]).get(key[1], "").strip():
                yield rule.finding(ERROR, message)
        yield from _of_labels(rule, vector)
        yield from _of_texts(rule, vector, known, recorded)


def _of_expression(rule: _Rule, reader: Reader, vector: Vector) -> Iterator[Finding]:
    so = "the rule can never fire" if rule.is_alert else "the rule records nothing"
    problems = list(reader.problems)
    if vector.empty:
        problems += [(ERROR, text) for text in dict.fromkeys(reader.missing) if (ERROR, text) not in problems]
        if not any(severity == ERROR for severity, _ in problems):
            problems.append((ERROR, f"{vector.empty}; look at that rule"))
    for severity, text in problems:
        what, _, to_do = text.partition("; ")
        ends = f" ({so})" if vector.empty and severity == ERROR else ""
        yield rule.finding(severity, f"{what}{ends}; {to_do}" if to_do else f"{what}{ends}", "expr")
    if rule.is_alert and vector.unsummed and not vector.empty:
        yield rule.finding(
            WARNING, "the buckets are not added up, so that every label of a series, such as a tenant's, makes an alert"
            " of its own; write sum by (le, model_name) (...)", "expr")  # fmt: skip
    if rule.is_alert and "for" in rule.body and vector.flips:
        yield rule.finding(
            WARNING, f"its label {', '.join(sorted(vector.flips))} follows the verdict, so that a change of it starts"
            " `for` anew and pages again; aggregate it away and look it up in the description, or select one verdict",
            "expr")  # fmt: skip


def _of_labels(rule: _Rule, vector: Vector | None) -> Iterator[Finding]:
    for name, text in rule.texts("labels").items():
        if _VALUE.search(text):
            yield rule.finding(
                ERROR, f"label {name} holds a value, so that every change of it is another alert;"
                " put the value in an annotation, and use one rule a severity", "labels", name)  # fmt: skip
        yield from _of_printed(rule, vector, text, "labels", name)


def _of_texts(rule: _Rule, vector: Vector | None, known: Known, recorded: Mapping[str, Vector]) -> Iterator[Finding]:
    for name, text in rule.texts("annotations").items():
        yield from _of_printed(rule, vector, text, "annotations", name)
        for query in _queries(text):
            reader = Reader(known, recorded)
            try:
                looked_up = reader.read(query)
            except ValueError:
                continue  # put together when it is rendered
            wrong = [text for severity, text in reader.problems if severity == ERROR]
            for problem in wrong or (list(dict.fromkeys(reader.missing)) if looked_up.empty else []):
                yield rule.finding(ERROR, f"{name} looks up what does not exist: {problem}", "annotations", name)


def _of_printed(rule: _Rule, vector: Vector | None, text: str, *key: str) -> Iterator[Finding]:
    if vector is None or vector.empty:
        return
    actions = _ACTION.findall(text)
    printed = {a or b for action in actions for a, b in _PRINTED.findall(action)}
    if not any(word in action for action in actions for word in ("with", "range", "query")):
        printed |= set(_DOT_PRINTED.findall(text))
    for label in sorted(label for label in printed if not vector.may_have(label)):
        yield rule.finding(
            ERROR, f"{key[-1]} prints $labels.{label}, which the expression does not keep;"
            f" add {label} to its `by (...)`, or leave it out of the text", *key)  # fmt: skip


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
