"""Reads a PromQL expression without data: which of its series cannot exist, and which comparisons miss the unit.

Labels, matching and functions are left to pint and promtool.
"""

import re
from collections.abc import Collection, Iterable
from itertools import accumulate
from typing import Any

import promql_parser as promql

from phasewatch.rulecheck.series import Known, Series

ERROR, WARNING = "error", "warning"
Problem = tuple[str, str]
# What gives a value that one of its series had, so that the unit and the bounds stay.
_KEEP_VALUE = frozenset({"max", "min", "avg", "topk", "bottomk", "quantile"})
_KEEP_VALUE_OVER_TIME = frozenset({f"{name}_over_time" for name in ("max", "min", "avg", "last", "quantile")})
# A tree grows with brackets and operators; what people write has a few of each, generated rules some dozens.
_DEEPEST, _MOST_OPERATORS = 100, 200
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_OPERATOR = re.compile(r"(?<![=!~])[-+*/%^<>]|[=!]=|\b(?:and|or|unless)\b", re.IGNORECASE)
_COMPARISONS = frozenset({">", ">=", "==", "<", "<="})


def problems(text: str, known: Known, recorded: Collection[str]) -> list[Problem]:
    """(ERROR or WARNING, "what; what to do"). recorded: names that rules of the same files record.

    Raises ValueError where the text is not PromQL.
    """
    reader = _Reader(known, recorded)
    _refuse_depth(text)
    if not reader.may_exist(promql.parse(text)):
        reader.found += [(ERROR, problem) for problem in reader.missing]
    return list(dict.fromkeys(reader.found))


def _refuse_depth(text: str) -> None:
    """Raises ValueError for an expression that nests more than anybody writes: the parser's stack would overflow."""
    if len(_OPERATOR.findall(text)) > _MOST_OPERATORS:
        raise ValueError(f"more than {_MOST_OPERATORS} operators in one expression")
    deepest = max(accumulate(_BRACKETS.get(character, 0) for character in text), default=0)
    if deepest > _DEEPEST:
        raise ValueError(f"brackets more than {_DEEPEST} levels deep")


class _Reader:
    """missing: series of other vLLM versions: no problem as one side of an `or` whose other side exists."""

    def __init__(self, known: Known, recorded: Collection[str]) -> None:
        self.known = known
        self.recorded = recorded
        self.found: list[Problem] = []
        self.missing: list[str] = []

    def may_exist(self, node: Any) -> bool:
        """Whether it can give anything, as far as the names of its series decide."""
        if isinstance(node, promql.VectorSelector):
            return self._selector(node)
        if isinstance(node, promql.BinaryExpr):
            left, right = self.may_exist(node.lhs), self.may_exist(node.rhs)
            op = str(node.op)
            if op in _COMPARISONS:
                self._compared(node, node.lhs, node.rhs)
                self._compared(node, node.rhs, node.lhs)
            return left or right if op == "or" else left if op == "unless" else left and right
        inner = [self.may_exist(one) for one in _children(node)]
        alone = isinstance(node, promql.Call) and node.func.name in ("absent", "absent_over_time", "vector", "scalar")
        return alone or all(inner)

    def _selector(self, node: Any) -> bool:
        matchers = [(m.name, str(m.op).rpartition(".")[2], m.value) for m in node.matchers.matchers]
        name = _name(node)
        if name is None:
            return self._by_pattern(v for label, op, v in matchers if (label, op) == ("__name__", "Re"))
        if name in self.recorded:
            return True
        series = self.known.of(name)
        if series.other_version:
            self.missing.append(series.problem)
        elif series.problem:
            self.found.append((ERROR, series.problem))
        elif wrong := _impossible(name, series, matchers):
            self.found.append((ERROR, wrong))
        else:
            self._remark(name, series)
        return not series.problem

    def _remark(self, name: str, series: Series) -> None:
        live = self.known.live
        if series.foreign:
            self.found.append((
                WARNING,
                f"{name} belongs neither to phasewatch nor to vLLM and is not checked;"
                " name a server that has it with --against",
            ))  # fmt: skip
        elif name not in live and name.startswith("vllm:") and any(one.startswith("vllm:") for one in live):
            more = f"only with {series.condition}" if series.condition else "it may come with its first event"
            self.found.append((WARNING, f"no server of --against has {name}; {more}"))
        elif series.condition and name not in live:
            self.found.append((WARNING, f"{name} exists only with {series.condition}; without it the rule cannot fire"))

    def _by_pattern(self, patterns: Iterable[str]) -> bool:
        for pattern in patterns:
            if not any(_fits(pattern, name) for name in (*self.known.names(), *self.recorded)):
                ours = pattern.startswith(("vllm", "phasewatch"))
                self.found.append((ERROR if ours else WARNING, f'no known series fits "{pattern}"; check the pattern'))
                return not ours
        return True

    def _compared(self, node: Any, side: Any, limit: Any) -> None:
        if not isinstance(limit, promql.NumberLiteral):
            return
        while (inner := _same_value(side)) is not None:
            side = inner
        name = _name(side) if isinstance(side, promql.VectorSelector) else None
        if name is not None and limit.val > 1 and name not in self.recorded and self.known.of(name).ratio:
            self.found.append((
                ERROR, f"{node.lhs} {node.op} {node.rhs}: {name} is a ratio from 0 to 1, not a percentage;"
                f" compare with {limit.val / 100:g}",
            ))  # fmt: skip


def _children(node: Any) -> list[Any]:
    if isinstance(node, promql.Call):
        return list(node.args)
    if isinstance(node, promql.MatrixSelector):
        return [node.vector_selector]
    return [node.expr] if hasattr(node, "expr") else []


def _name(node: Any) -> str | None:
    """The one name that a selector asks for; None where it asks by a pattern or by labels alone."""
    if node.name is not None:
        return str(node.name)
    named = (m.value for m in node.matchers.matchers if m.name == "__name__" and str(m.op).endswith(".Equal"))
    return next(named, None)


def _same_value(node: Any) -> Any | None:
    """What a node takes its values from, where it leaves them as they are."""
    if isinstance(node, promql.ParenExpr | promql.SubqueryExpr):
        return node.expr
    if isinstance(node, promql.AggregateExpr) and str(node.op) in _KEEP_VALUE:
        return node.expr
    if isinstance(node, promql.MatrixSelector):
        return node.vector_selector
    if isinstance(node, promql.Call) and node.func.name in _KEEP_VALUE_OVER_TIME:
        return node.args[-1]
    return None


def _fits(pattern: str, value: str) -> bool:
    try:
        return re.fullmatch(pattern, value) is not None
    except re.error:
        return True


def _impossible(name: str, series: Series, matchers: Iterable[tuple[str, str, str]]) -> str:
    for label, operator, given in matchers:
        values = series.values.get(label, ())
        fitting = {"Equal": given in values, "Re": any(_fits(given, value) for value in values)}
        if values and not fitting.get(operator, True):
            return f'{name} never has {label}="{given}"; {label} is one of {", ".join(sorted(values))}'
    return ""
