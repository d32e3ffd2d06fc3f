"""What unit an expression's values have, as far as its series and operators decide, and how large they can be."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import promql_parser as promql

from phasewatch.core.pages.catalog import PREFIXES
from phasewatch.core.report.families import MODEL_PREFIX, PREFIX
from phasewatch.rulecheck.series import Known
from phasewatch.service.config import DEFAULT_EDGES

# vLLM's histograms of seconds and whose edges they have.
_LATENCIES: Mapping[str, str] = {
    "time_to_first_token_seconds": "ttft",
    "inter_token_latency_seconds": "itl",
    "time_per_output_token_seconds": "itl",
    "request_time_per_output_token_seconds": "tpot",
    "e2e_request_latency_seconds": "e2e",
    "request_queue_time_seconds": "e2e",
    "request_prefill_time_seconds": "e2e",
    "request_decode_time_seconds": "e2e",
    "request_inference_time_seconds": "e2e",
}
# From here on nobody still waits, so that a limit is likelier meant in milliseconds.
_LONGEST_MEANT: Mapping[str, float] = {"ttft": 100.0, "itl": 10.0, "tpot": 10.0, "e2e": 3600.0}
# Counters whose quotient is a ratio: part and whole.
_SHARES = (
    ("_hits_total", "_queries_total"),
    ("_num_accepted_tokens_total", "_num_draft_tokens_total"),
    ("prompt_tokens_cached_total", "prompt_tokens_total"),
)
# What gives a value that one of its series had, so that the unit and the bounds stay.
_KEEP_VALUE = frozenset({"max", "min", "avg", "topk", "bottomk", "quantile"})
_KEEP_VALUE_OVER_TIME = frozenset({f"{name}_over_time" for name in ("max", "min", "avg", "last", "quantile")})
_KEEP_FIRST = frozenset({
    "abs", "ceil", "floor", "round", "clamp", "clamp_max", "clamp_min", "sort", "sort_desc", "label_replace",
    "label_join",
})  # fmt: skip
_SYMBOLS = {("seconds", 1.0): "s", ("seconds", 1000.0): "ms", ("ratio", 1.0): "", ("ratio", 100.0): "%"}
_MATCHERS = re.compile(r"\{[^}]*\}")
COMPARISONS = frozenset({">", ">=", "==", "!=", "<", "<="})


@dataclass(frozen=True, slots=True)
class Value:
    """source: the series or family. scale: what the unit was multiplied by (1000: ms, 100: percent). top: the largest
    it can be before that, None where it has no bound. meant: seconds that no limit of this latency is meant to have."""

    unit: Literal["seconds", "ratio"]
    source: str
    scale: float = 1.0
    top: float | None = None
    meant: float | None = None

    @property
    def symbol(self) -> str | None:
        """How it is written; None for what has no usual symbol."""
        return _SYMBOLS.get((self.unit, self.scale))

    @property
    def told(self) -> str:
        unit = "in seconds" if self.unit == "seconds" else "a ratio from 0 to 1"
        return unit if self.scale == 1 else f"{unit}, here times {self.scale:g}"


class Units:
    """recorded: expressions by the names that they are recorded as."""

    def __init__(self, known: Known, recorded: Mapping[str, str]) -> None:
        self._known = known
        self._recorded = recorded
        self._asked: set[str] = set()  # a rule may name itself

    def of(self, node: Any) -> Value | None:
        if isinstance(node, promql.ParenExpr | promql.SubqueryExpr):
            return self.of(node.expr)
        if isinstance(node, promql.MatrixSelector):
            return self.of(node.vector_selector)
        if isinstance(node, promql.VectorSelector):
            return self._series(name_of(node))
        if isinstance(node, promql.AggregateExpr):
            value, kind = self.of(node.expr), str(node.op)
            return value if kind in _KEEP_VALUE else unbounded(value) if kind == "sum" else None
        if isinstance(node, promql.Call):
            return self._call(node.func.name, node.args)
        return self._operation(node) if isinstance(node, promql.BinaryExpr) else None

    def _series(self, name: str | None) -> Value | None:
        if name is None:
            return None
        if name in self._recorded:
            return self._of_rule(name)
        if self._known.of(name).ratio:
            return Value("ratio", name, top=1.0)
        if name.startswith(PREFIX) and name.endswith("_seconds") and "timestamp" not in name:
            family = name.removeprefix(MODEL_PREFIX).removeprefix(PREFIX).partition("_")[0]
            return Value("seconds", name, meant=_LONGEST_MEANT.get(family))
        return None

    def _of_rule(self, name: str) -> Value | None:
        if name in self._asked:
            return None
        self._asked.add(name)
        try:
            return self.of(promql.parse(self._recorded[name]))
        except ValueError:  # told where it stands
            return None
        finally:
            self._asked.remove(name)

    def _call(self, function: str, given: Any) -> Value | None:
        if function in _KEEP_VALUE_OVER_TIME:
            return self.of(given[-1])
        if function in _KEEP_FIRST:
            return self.of(given[0])
        if function == "histogram_quantile":
            return _quantile(names_in(given[1]))
        return None

    def _operation(self, node: Any) -> Value | None:
        operator, factors = str(node.op), (number_of(node.lhs), number_of(node.rhs))
        left, right = self.of(node.lhs), self.of(node.rhs)
        if operator in COMPARISONS:
            flag = node.modifier is not None and node.modifier.return_bool
            return None if flag else left if factors[0] is None else right
        if operator in ("and", "unless"):
            return left
        if operator == "or":
            return left if right is None or (left and (left.unit, left.scale) == (right.unit, right.scale)) else None
        one, factor = (left, factors[1]) if factors[0] is None else (right, factors[0])
        if factor is not None:
            return _with_number(one, operator, factor, first=factors[0] is not None)
        if operator == "/":
            return _quotient(names_in(node.lhs), names_in(node.rhs)) or _part_of_whole(node.lhs, node.rhs)
        if operator in ("+", "-") and left and right and (left.unit, left.scale) == (right.unit, right.scale):
            return unbounded(left)
        return None


def _with_number(value: Value | None, operator: str, factor: float, *, first: bool) -> Value | None:
    """first: the number stands before the operator."""
    if value is None:
        return None
    if operator == "*" and factor > 0:
        return replace(value, scale=value.scale * factor)
    if operator == "/" and factor > 0 and not first:
        return replace(value, scale=value.scale / factor)
    if operator == "-" and first and value.unit == "ratio" and factor == value.scale:
        return value
    return unbounded(value) if operator in ("+", "-") and not first else None


def _quotient(above: Collection[str], below: Collection[str]) -> Value | None:
    family = _only(above, "_sum")
    if family is not None and family == _only(below, "_count"):
        return _latency(family, bounded=False)
    for part, whole in _SHARES:
        family = _only(above, part)
        if family is not None and family == _only(below, whole):
            return Value("ratio", f"{family}{part} / {family}{whole}", top=1.0)
    return None


def _part_of_whole(part: Any, whole: Any) -> Value | None:
    """A sum over some of a metric's series by the same sum over all: those that fail by those that finish."""
    above, below = list(_selectors(part)), list(_selectors(whole))
    if len(above) != 1 or len(below) != 1 or name_of(above[0]) is None or _shape(part) != _shape(whole):
        return None
    some, every = ({(m.name, str(m.op), m.value) for m in one.matchers.matchers} for one in (above[0], below[0]))
    sums = all(str(one.op) == "sum" for node in (part, whole) for one in _aggregates(node))
    return Value("ratio", f"the share of {name_of(above[0])}", top=1.0) if sums and every < some else None


def _shape(node: Any) -> str:
    """As written, without what its selectors match and brackets around the whole."""
    while isinstance(node, promql.ParenExpr):
        node = node.expr
    return _MATCHERS.sub("", str(node))


def _aggregates(node: Any) -> Iterator[Any]:
    if isinstance(node, promql.AggregateExpr):
        yield node
    for child in children(node):
        yield from _aggregates(child)


def _quantile(names: Collection[str]) -> Value | None:
    """Of buckets of one family, or of families that took each other's place."""
    found = [_latency(name.removesuffix("_bucket"), bounded=True) for name in sorted(names)]
    known = [value for value in found if value is not None]
    if not known or len(known) < len(found) or not all(name.endswith("_bucket") for name in names):
        return None
    tops = [value.top for value in known if value.top is not None]
    return replace(
        known[0],
        source=" or ".join(value.source for value in known),
        top=max(tops) if len(tops) == len(known) else None,
    )


def _latency(family: str, *, bounded: bool) -> Value | None:
    """A quantile or mean of a histogram of seconds."""
    edges = next((_LATENCIES[name] for name in _LATENCIES for prefix in PREFIXES if family == prefix + name), None)
    if edges is None:
        return Value("seconds", family) if family.endswith("_seconds") else None
    return Value("seconds", family, 1.0, DEFAULT_EDGES[edges][-1] if bounded else None, _LONGEST_MEANT[edges])


def _only(names: Collection[str], suffix: str) -> str | None:
    """What the one name has before the suffix."""
    name = next(iter(names), "")
    return name.removesuffix(suffix) if len(names) == 1 and name.endswith(suffix) else None


def unbounded(value: Value | None) -> Value | None:
    return None if value is None else replace(value, top=None)


def number_of(node: Any) -> float | None:
    while isinstance(node, promql.ParenExpr):
        node = node.expr
    return float(node.val) if isinstance(node, promql.NumberLiteral) else None


def children(node: Any) -> list[Any]:
    if isinstance(node, promql.BinaryExpr):
        return [node.lhs, node.rhs]
    if isinstance(node, promql.Call):
        return list(node.args)
    if isinstance(node, promql.MatrixSelector):
        return [node.vector_selector]
    return [node.expr] if hasattr(node, "expr") else []


def names_in(node: Any) -> set[str]:
    """Of all its selectors; "" for one that asks by a pattern."""
    return {name_of(one) or "" for one in _selectors(node)}


def _selectors(node: Any) -> Iterator[Any]:
    if isinstance(node, promql.VectorSelector):
        yield node
    for child in children(node):
        yield from _selectors(child)


def name_of(node: Any) -> str | None:
    """The one name that a selector asks for; None where it asks by a pattern or by labels alone."""
    if node.name is not None:
        return str(node.name)
    named = (m.value for m in node.matchers.matchers if m.name == "__name__" and str(m.op).endswith(".Equal"))
    return next(named, None)


def since_start(node: Any) -> str | None:
    """The histogram whose lifetime sum a quotient divides by its lifetime count; None for another node."""
    if not isinstance(node, promql.BinaryExpr) or str(node.op) != "/":
        return None
    above, below = _instant(node.lhs), _instant(node.rhs)
    family = above.removesuffix("_sum")
    return family if family != above and below == f"{family}_count" else None


def _instant(node: Any) -> str:
    """The name of the series that it gives as they are, or aggregated; "" for anything else."""
    while isinstance(node, promql.ParenExpr | promql.AggregateExpr):
        node = node.expr
    return name_of(node) or "" if isinstance(node, promql.VectorSelector) else ""
