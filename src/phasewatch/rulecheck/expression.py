"""Reads a PromQL expression without data: which of its series cannot exist, and which comparisons miss the unit.

Labels, matching and functions are left to pint and promtool.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import promql_parser as promql

from phasewatch.core.durations import format_duration
from phasewatch.rulecheck.series import Known, Series
from phasewatch.rulecheck.units import COMPARISONS, Units, Value, children, name_of, number_of, since_start

ERROR, WARNING = "error", "warning"
Problem = tuple[str, str]
# A tree grows with brackets and operators; what people write has a few of each, generated rules some dozens.
_DEEPEST, _MOST_OPERATORS = 100, 200
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_OPERATOR = re.compile(r"(?<![=!~])[-+*/%^<>]|[=!]=|\b(?:and|or|unless)\b", re.IGNORECASE)
# A comparison as it reads with its sides exchanged.
_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def problems(text: str, known: Known, recorded: Mapping[str, str]) -> list[Problem]:
    """(ERROR or WARNING, "what; what to do"). recorded: what rules of the same files record, expressions by name.

    Raises ValueError where the text is not PromQL.
    """
    reader = _Reader(known, recorded)
    _refuse_depth(text)
    if not reader.may_exist(promql.parse(text)):
        reader.found += [(ERROR, problem) for problem in reader.missing]
    return list(dict.fromkeys(reader.found))


def value_of(text: str, known: Known, recorded: Mapping[str, str]) -> Value | None:
    """What the expression's values are; None where nothing is known of them. Raises ValueError like `problems`."""
    _refuse_depth(text)
    return Units(known, recorded).of(promql.parse(text))


def _refuse_depth(text: str) -> None:
    """Raises ValueError for an expression that nests more than anybody writes: the parser's stack would overflow."""
    if len(_OPERATOR.findall(text)) > _MOST_OPERATORS:
        raise ValueError(f"more than {_MOST_OPERATORS} operators in one expression")
    deepest = max(accumulate(_BRACKETS.get(character, 0) for character in text), default=0)
    if deepest > _DEEPEST:
        raise ValueError(f"brackets more than {_DEEPEST} levels deep")


class _Reader:
    """missing: series of other vLLM versions: no problem as one side of an `or` whose other side exists."""

    def __init__(self, known: Known, recorded: Mapping[str, str]) -> None:
        self.known = known
        self.recorded = recorded
        self.units = Units(known, recorded)
        self.found: list[Problem] = []
        self.missing: list[str] = []

    def may_exist(self, node: Any) -> bool:
        """Whether it can give anything, as far as the names of its series decide."""
        if isinstance(node, promql.VectorSelector):
            return self._selector(node)
        if isinstance(node, promql.BinaryExpr):
            left, right = self.may_exist(node.lhs), self.may_exist(node.rhs)
            op = str(node.op)
            if op in COMPARISONS:
                self._compared(node, node.lhs, op, number_of(node.rhs))
                self._compared(node, node.rhs, _TURNED.get(op, op), number_of(node.lhs))
            family = since_start(node)
            if family is not None and not self.recorded.keys() & {f"{family}_sum", f"{family}_count"}:
                self.found.append((
                    ERROR, f"{node} is the mean since the server's start, which hardly moves;"
                    f" use rate({family}_sum[5m]) / rate({family}_count[5m])",
                ))  # fmt: skip
            return left or right if op == "or" else left if op == "unless" else left and right
        inner = [self.may_exist(one) for one in children(node)]
        alone = isinstance(node, promql.Call) and node.func.name in ("absent", "absent_over_time", "vector", "scalar")
        return alone or all(inner)

    def _selector(self, node: Any) -> bool:
        matchers = [(m.name, str(m.op).rpartition(".")[2], m.value) for m in node.matchers.matchers]
        name = name_of(node)
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

    def _compared(self, node: Any, side: Any, op: str, limit: float | None) -> None:
        """op: as it reads with the side before it."""
        value = None if limit is None else self.units.of(side)
        if value is None or limit is None:
            return
        said = f"{node.lhs} {node.op} {node.rhs}"
        seconds = limit / value.scale
        if value.top is not None and _beyond(op, limit, value.top * value.scale, value.unit):
            said += f" is {'always' if op in ('<', '<=', '!=') else 'never'} true: {value.source} "
            if value.unit == "seconds":
                said += f"ends at {value.top:g} s, its last finite edge; {_meant(limit, value)}"
            elif value.scale == 1:
                said += f"is a ratio from 0 to 1, not a percentage; compare with {limit / 100:g}"
            else:
                said += f"is a ratio from 0 to 1, here times {value.scale:g}; compare with less"
            self.found.append((ERROR, said))
        elif value.meant is not None and seconds >= value.meant:
            said += f": {value.source} is in seconds, and this is {format_duration(seconds)}; {_meant(limit, value)}"
            self.found.append((WARNING, said))


def _beyond(op: str, limit: float, top: float, unit: str) -> bool:
    return limit > top or (limit == top and op == ">" and unit == "seconds")


def _meant(limit: float, value: Value) -> str:
    if value.scale != 1:
        return f"the expression is in seconds times {value.scale:g}"
    return f"if milliseconds were meant, compare with {limit / 1000:g}"


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
