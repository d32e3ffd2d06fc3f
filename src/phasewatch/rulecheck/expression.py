"""Reads a PromQL expression as Prometheus would, without data: which labels come out, and why nothing may.

Only what is certain is said: where labels or values are not known, an expression counts as one that may hold.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import promql_parser as promql

from phasewatch.rulecheck.series import Known, Series
from phasewatch.rulecheck.vector import NEVER_HOLDS, Vector, arithmetic, either, labels_of, never_match, range_of

ERROR, WARNING = "error", "warning"
Problem = tuple[str, str]
# Labels whose value a verdict decides.
_VERDICT_LABELS = frozenset({"verdict", "level"})
_KEEP_VALUE = frozenset({"max", "min", "avg", "topk", "bottomk", "limitk", "quantile"})
_KEEP_LABELS = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_OF_COUNTERS = frozenset({"rate", "irate", "increase"})
_OVER_VALUES = frozenset({"max_over_time", "min_over_time", "avg_over_time", "last_over_time", "quantile_over_time"})


_NOTHING_KNOWN = Vector()


def _scalar(value: float | None = None) -> Vector:
    low, high = (-inf, inf) if value is None else (value, value)
    return Vector(scalar=True, only=frozenset(), low=low, high=high)


@dataclass
class Reader:
    """Reads one expression. recorded: what the rules of the same files record. problems: found on the way.

    missing: series of other vLLM versions, which may be one side of an `or`.
    """

    known: Known
    recorded: Mapping[str, Vector]
    problems: list[Problem] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def read(self, text: str) -> Vector:
        """Raises ValueError where the text is no PromQL."""
        return self._visit(promql.parse(text))

    def say(self, severity: str, message: str) -> None:
        if (severity, message) not in self.problems:
            self.problems.append((severity, message))

    def _visit(self, node: Any) -> Vector:
        return _VISITS[type(node)](self, node)

    # --- selectors

    def selector(self, node: Any) -> Vector:
        matchers = [(m.name, str(m.op).rpartition(".")[2], m.value) for m in node.matchers.matchers]
        name = node.name
        for label, operator, value in matchers:
            if label == "__name__" and operator == "Equal":
                name = value
            elif label == "__name__" and operator == "Re" and name is None:
                return self._by_pattern(value)
        if name is None:
            return _NOTHING_KNOWN
        if name in self.recorded:
            vector = self.recorded[name]
        else:
            series = self.known.of(name)
            if series.problem:
                self._missing(series)
                return Vector(empty=series.problem)
            self._remarks(name, series)
            vector = self._of(series)
            if wrong := _impossible(name, series, matchers):
                self.say(ERROR, wrong)
                return replace(vector, empty=wrong)
        fixed = frozenset(label for label, operator, value in matchers if operator == "Equal" and value)
        without = frozenset(label for label, operator, value in matchers if operator == "Equal" and not value)
        present = frozenset(label for label, operator, value in matchers if operator == "Re" and not _fits(value, ""))
        flips = (vector.flips | (_VERDICT_LABELS & vector.sure if "diagnosis" in name else frozenset())) - fixed
        return replace(vector.add(fixed | present, sure=True).drop(without), flips=flips)

    def _missing(self, series: Series) -> None:
        if series.other_version:
            self.missing.append(series.problem)
        else:
            self.say(ERROR, series.problem)

    def _remarks(self, name: str, series: Series) -> None:
        if series.foreign:
            self.say(
                WARNING,
                f"{name} is neither phasewatch's nor vLLM's and not checked; name a server that has it with --against",
            )
        elif self.known.live and name not in self.known.live and name.startswith("vllm:") and self._vllm_is_live():
            more = f"only with {series.condition}" if series.condition else "it may come with its first event"
            self.say(WARNING, f"{name} is on none of the pages of --against; {more}")
        elif series.condition and name not in self.known.live:
            self.say(WARNING, f"{name} is there only with {series.condition}; without it the rule cannot fire")

    def _vllm_is_live(self) -> bool:
        return any(name.startswith("vllm:") for name in self.known.live)

    def _of(self, series: Series) -> Vector:
        return Vector(never=series.never, sure=series.sure, low=series.low, high=series.high, raw=series.kind)

    def _by_pattern(self, pattern: str) -> Vector:
        if any(_fits(pattern, name) for name in (*self.known.names(), *self.recorded)):
            return _NOTHING_KNOWN
        problem = f'no known series has a name like "{pattern}"; check the pattern'
        self.say(WARNING if not pattern.startswith(("vllm", "phasewatch")) else ERROR, problem)
        return Vector(empty=problem if pattern.startswith(("vllm", "phasewatch")) else "")

    # --- functions and aggregations

    def call(self, node: Any) -> Vector:
        name = node.func.name
        given = [self._visit(argument) for argument in node.args if not isinstance(argument, promql.StringLiteral)]
        strings = [argument.val for argument in node.args if isinstance(argument, promql.StringLiteral)]
        return _CALLS.get(name, _other_call)(self, name, given, strings, node)

    def aggregate(self, node: Any) -> Vector:
        inner = self._visit(node.expr)
        if isinstance(node.param, promql.Expr) and not isinstance(node.param, promql.StringLiteral):
            self._visit(node.param)
        op, labels = str(node.op), () if node.modifier is None else node.modifier.labels
        if node.modifier is not None and str(node.modifier.type).endswith("Without"):
            kept = inner.drop(labels)
        elif op in _KEEP_LABELS:
            kept = inner
        else:
            kept = inner.keep(labels)
        low, high = (inner.low, inner.high) if op in _KEEP_VALUE else (0.0, inf) if inner.low >= 0 else (-inf, inf)
        if op == "group":
            low = high = 1.0
        if op == "count_values":
            return replace(kept.add([node.param.val], sure=True), low=-inf, high=inf, raw="", aggregated=True)
        return replace(kept, low=low, high=high, raw="", aggregated=True, unsummed=False)

    # --- operators

    def binary(self, node: Any) -> Vector:
        left, right, op = self._visit(node.lhs), self._visit(node.rhs), str(node.op)
        modifier = node.modifier
        if op in NEVER_HOLDS or op == "!=":
            self._counter_compared(node, left, right)
        if op == "or":
            return either(left, right)
        apart = "" if left.scalar or right.scalar else never_match(left, right, op, modifier)
        if apart and not (left.empty or right.empty):
            self.say(WARNING if op == "unless" else ERROR, apart)
        if op == "unless":
            return replace(left, raw="")
        empty = left.empty or right.empty or apart
        if op == "and":
            return replace(left, empty=empty, raw="")
        result = labels_of(left, right, modifier)
        if op in NEVER_HOLDS or op == "!=":
            side = right if left.scalar and not right.scalar else left
            if modifier is not None and modifier.return_bool:
                return replace(result, empty=empty, low=0.0, high=1.0, raw="")
            if not empty and op in NEVER_HOLDS and NEVER_HOLDS[op](left, right):
                empty = f"{node.lhs} {op} {node.rhs} can never be true: {range_of(left if not left.scalar else right)}"
                self.say(ERROR, empty)
            return replace(result, empty=empty, low=side.low, high=side.high, raw="")
        low, high = arithmetic(op, left, right)
        return replace(result, empty=empty, low=low, high=high, raw="", aggregated=left.aggregated or right.aggregated)

    def _counter_compared(self, node: Any, left: Vector, right: Vector) -> None:
        for side, other, text in ((left, right, node.lhs), (right, left, node.rhs)):
            if side.raw in ("counter", "bucket") and other.scalar and other.high > 0:
                self.say(
                    WARNING,
                    f"{text} counts since the server's start: it fires until a restart; compare increase(...[5m])",
                )


def _fits(pattern: str, value: str) -> bool:
    try:
        return re.fullmatch(pattern, value) is not None
    except re.error:
        return True


_OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "Equal": lambda given, value: given == value,
    "NotEqual": lambda given, value: given != value,
    "Re": _fits,
    "NotRe": lambda given, value: not _fits(given, value),
}


def _impossible(name: str, series: Series, matchers: list[tuple[str, str, str]]) -> str:
    for label, operator, given in matchers:
        values = series.values.get(label)
        if values and not any(_OPERATORS[operator](given, value) for value in values):
            return f'{name} never has {label}="{given}"; {label} is one of {", ".join(sorted(values))}'
        if label in series.never and operator == "Equal" and given:
            return f'{name} has no label {label}, so {label}="{given}" selects nothing; leave it out'
    return ""


# --- functions: (reader, name, vectors given, strings given, node) -> vector


def _other_call(reader: Reader, name: str, given: list[Vector], strings: list[str], node: Any) -> Vector:
    if not given or all(vector.scalar for vector in given):
        return _scalar()
    vector = next(one for one in given if not one.scalar)
    if name in _OF_COUNTERS and vector.raw == "gauge":
        better = "deriv" if name != "increase" else "delta"
        reader.say(WARNING, f"{node}: {name}() of a gauge takes every fall for a restart; use {better}()")
    positive = name in _OF_COUNTERS or (vector.low >= 0 and name in ("sum_over_time", "ceil", "floor", "round", "abs"))
    if name in _OVER_VALUES:
        return replace(vector, raw=vector.raw if name == "last_over_time" else "")
    return replace(vector, low=0.0 if positive else -inf, high=inf, raw="")


def _absent(reader: Reader, name: str, given: list[Vector], strings: list[str], node: Any) -> Vector:
    if given[0].empty:
        reader.say(ERROR, f"{node} always holds, since {given[0].empty}")
    inner = node.args[0].vector_selector if isinstance(node.args[0], promql.MatrixSelector) else node.args[0]
    equal: frozenset[str] = frozenset()
    if isinstance(inner, promql.VectorSelector):
        equal = frozenset(m.name for m in inner.matchers.matchers if str(m.op).endswith(".Equal") and m.value)
    return Vector(only=equal - {"__name__"}, sure=equal - {"__name__"}, low=1.0, high=1.0, aggregated=True)


def _quantile(reader: Reader, name: str, given: list[Vector], strings: list[str], node: Any) -> Vector:
    buckets = given[-1]
    if not buckets.empty and not buckets.may_have("le"):
        lost = f"{name}() gets no `le`, so it gives nothing; write `sum by (le, model_name) (...)` over _bucket series"
        reader.say(ERROR, lost)
        buckets = replace(buckets, empty=lost)
    return replace(buckets.drop({"le"}), low=-inf, high=inf, raw="", unsummed=not buckets.aggregated)


def _relabel(reader: Reader, name: str, given: list[Vector], strings: list[str], node: Any) -> Vector:
    return replace(given[0].add(strings[:1]), raw="")


def _no_labels(reader: Reader, name: str, given: list[Vector], strings: list[str], node: Any) -> Vector:
    empty = given[0].empty if given and name != "scalar" else ""
    return Vector(empty=empty, scalar=name != "vector", only=frozenset(), aggregated=True)


_CALLS: Mapping[str, Callable[[Reader, str, list[Vector], list[str], Any], Vector]] = {
    "absent": _absent,
    "absent_over_time": _absent,
    "histogram_quantile": _quantile,
    "label_replace": _relabel,
    "label_join": _relabel,
    "vector": _no_labels,
    "scalar": _no_labels,
    "time": _no_labels,
}
_VISITS: Mapping[type, Callable[[Reader, Any], Vector]] = {
    promql.VectorSelector: Reader.selector,
    promql.MatrixSelector: lambda reader, node: reader.selector(node.vector_selector),
    promql.Call: Reader.call,
    promql.AggregateExpr: Reader.aggregate,
    promql.BinaryExpr: Reader.binary,
    promql.ParenExpr: lambda reader, node: reader._visit(node.expr),
    promql.SubqueryExpr: lambda reader, node: replace(reader._visit(node.expr), raw=""),
    promql.UnaryExpr: lambda reader, node: replace(reader._visit(node.expr), low=-inf, high=inf, raw=""),
    promql.NumberLiteral: lambda reader, node: _scalar(node.val),
    promql.StringLiteral: lambda reader, node: _scalar(),
}
