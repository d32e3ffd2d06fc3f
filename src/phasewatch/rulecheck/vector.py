"""What is known of the result of an expression without data, and what PromQL's operators make of two."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Vector:
    """What an expression gives. empty: why it gives nothing, "" where it may. only: its labels, None where open.

    never: labels it cannot have, where open. sure: labels it always has. low, high: its values. flips: labels whose
    value follows the verdict. raw: kind of the series where nothing was done to it. unsummed: a quantile of buckets
    that were not aggregated.
    """

    empty: str = ""
    scalar: bool = False
    only: frozenset[str] | None = None
    never: frozenset[str] = frozenset()
    sure: frozenset[str] = frozenset()
    low: float = -inf
    high: float = inf
    flips: frozenset[str] = frozenset()
    raw: str = ""
    aggregated: bool = False
    unsummed: bool = False

    def may_have(self, label: str) -> bool:
        return label not in self.never if self.only is None else label in self.only

    def keep(self, labels: Iterable[str]) -> "Vector":
        wanted = frozenset(label for label in labels if self.may_have(label))
        return replace(self, only=wanted, never=frozenset(), sure=self.sure & wanted, flips=self.flips & wanted)

    def drop(self, labels: Iterable[str]) -> "Vector":
        gone = frozenset(labels)
        only = None if self.only is None else self.only - gone
        return replace(self, only=only, never=self.never | gone, sure=self.sure - gone, flips=self.flips - gone)

    def add(self, labels: Iterable[str], sure: bool = False) -> "Vector":
        more = frozenset(labels)
        only = None if self.only is None else self.only | more
        return replace(self, only=only, never=self.never - more, sure=self.sure | (more if sure else frozenset()))


NEVER_HOLDS: Mapping[str, Callable[["Vector", "Vector"], bool]] = {
    # whether it can never hold
    ">": lambda a, b: a.high <= b.low,
    ">=": lambda a, b: a.high < b.low,
    "<": lambda a, b: a.low >= b.high,
    "<=": lambda a, b: a.low > b.high,
    "==": lambda a, b: a.low > b.high or a.high < b.low,
}


def either(left: Vector, right: Vector) -> Vector:
    if left.empty or right.empty:
        return right if left.empty else left
    only = None if left.only is None or right.only is None else left.only | right.only
    never = left.never & right.never
    if left.only is not None and right.only is None:
        never = right.never - left.only
    elif right.only is not None and left.only is None:
        never = left.never - right.only
    return Vector(
        only=only, never=never, sure=left.sure & right.sure, flips=left.flips | right.flips,
        low=min(left.low, right.low), high=max(left.high, right.high), aggregated=left.aggregated and right.aggregated,
    )  # fmt: skip


def _on(modifier: Any) -> tuple[str, frozenset[str]]:
    """("on", labels) or ("ignoring", labels); without either: ignoring none."""
    if modifier is None or modifier.matching is None:
        return "ignoring", frozenset()
    kind = "on" if str(modifier.matching.type).endswith("Include") else "ignoring"
    return kind, frozenset(modifier.matching.labels)


def never_match(left: Vector, right: Vector, op: str, modifier: Any) -> str:
    """Why no element of one side can have the labels of one of the other, or ""."""
    kind, labels = _on(modifier)
    for one, other, which in ((left, right, "right"), (right, left, "left")):
        lost = sorted(
            label for label in one.sure if (label in labels) == (kind == "on") and not other.may_have(label)
        )  # fmt: skip
        if lost:
            does = "takes nothing away" if op == "unless" else "never finds a pair"
            return (
                f"`{op}` {does}: its {which} side has no label {', '.join(lost)}, the other always;"
                f" keep it in the aggregation, or write `{op} on (...)` with the labels both have"
            )
    return ""


def labels_of(left: Vector, right: Vector, modifier: Any) -> Vector:
    if left.scalar or right.scalar:
        return right if left.scalar else left
    card = str(modifier.card) if modifier is not None else ""
    group = frozenset(modifier.group_labels or ()) if modifier is not None else frozenset()
    if card.endswith("ManyToOne"):
        return left.add(group)
    if card.endswith("OneToMany"):
        return right.add(group)
    kind, labels = _on(modifier)
    return left.keep(labels) if kind == "on" else left.drop(labels)


def arithmetic(op: str, left: Vector, right: Vector) -> tuple[float, float]:
    factor = next((side.low for side in (left, right) if side.scalar and side.low == side.high), None)
    if factor is not None and factor > 0 and left.low >= 0 and right.low >= 0:
        other = right if left.scalar else left
        if op == "*":
            return other.low * factor, other.high * factor
        if op == "/" and right.scalar:
            return other.low / factor, other.high / factor
    if op in ("*", "/", "+") and left.low >= 0 and right.low >= 0:
        return 0.0, inf
    return -inf, inf


def range_of(vector: Vector) -> str:
    if vector.high < inf:
        share = "; it is a share, not a percentage" if (vector.low, vector.high) == (0.0, 1.0) else ""
        return f"it lies between {vector.low:g} and {vector.high:g}{share}"
    return f"it is never below {vector.low:g}"
