"""The lines of one page: which series each one is, its number, and what cannot be read.

Only here is known how a sample line is written. Grammar: the Prometheus exposition formats document and
OpenMetrics 1.0, "ABNF".
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan, nan
from typing import NamedTuple

from phasewatch.core.model import Anomaly, AnomalyKind
from phasewatch.core.pages.catalog import BOUNDS_BY_FAMILY, HISTOGRAM_PARTS, PREFIXES

EngineId = tuple[str, str]

# Possessive quantifiers keep a hostile line linear.
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_ITEM = rf"[ \t]*+(?:{_QUOTED}(?:[ \t]*+=[ \t]*+{_QUOTED})?+|[a-zA-Z_]\w*+[ \t]*+=[ \t]*+{_QUOTED})[ \t]*+"
_BLOCK = rf"\{{((?:{_ITEM}(?:,{_ITEM})*+,?+)?+[ \t]*+)\}}"
_NUMBER, _TIME = r"[-+.0-9a-zA-Z]++", r"[-+.0-9eE]++"
_EXEMPLAR = rf"[ \t]*+\#[ \t]*+{_BLOCK}[ \t]*+{_NUMBER}(?:[ \t]++{_TIME})?+"
_FROM_NUMBER = rf"({_NUMBER})(?:[ \t]++{_TIME})?+(?:{_EXEMPLAR})?+[ \t\r]*+"
_SAMPLE = re.compile(rf"[ \t]*+([a-zA-Z_:][\w:]*+)?+[ \t]*+(?:{_BLOCK})?+[ \t]*+(?<=[ \t}}]){_FROM_NUMBER}", re.ASCII)
_TAIL = re.compile(_FROM_NUMBER, re.ASCII)
_PLAIN_TAILS = re.compile(rf"(?:{_NUMBER}[ \t\r]*+(?:\n|\Z))*+", re.ASCII)
_LABEL = re.compile(
    r'(?:"((?:[^"\\]|\\.)*+)"|([a-zA-Z_]\w*+))(?:[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)")?+', re.ASCII
)  # fmt: skip
_ESCAPE = re.compile(r'\\[\\"n]')
_DECLARATION = re.compile(r"#[ \t]*(?:HELP|TYPE)[ \t]+(\S+)")


class Labels(NamedTuple):
    """A label block. worker: Ray's identity of the process; le: None when missing or no number."""

    metric: str | None
    values: Mapping[str, str]
    worker: str
    le: float | None

    @property
    def engine(self) -> str | None:
        return self.worker or self.values.get("engine")

    @property
    def id(self) -> EngineId:
        # pid is left out on purpose: processes of one server tell of the same engine.
        return self.values.get("model_name", ""), self.engine or "0"


class Anomalies:
    """What is odd about one page, by kind: how often, and the last in words."""

    def __init__(self) -> None:
        self._found: dict[AnomalyKind, tuple[int, str]] = {}

    def add(self, kind: AnomalyKind, text: str) -> None:
        count, _ = self._found.get(kind, (0, ""))
        self._found[kind] = count + 1, text

    def all(self) -> tuple[Anomaly, ...]:
        return tuple(Anomaly(kind, count, last) for kind, (count, last) in self._found.items())


@dataclass(slots=True)
class Lines:
    """samples: the wanted ones by name and label block, each as the index of its line. values: by line, NaN where a
    line has no number. heads: by line, what stands before its number; None where it has none, and where any change of
    it may change more than a number."""

    samples: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    values: list[float] = field(default_factory=list)
    heads: list[str | None] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)
    good_lines: int = 0
    router: bool = False
    anomalies: Anomalies = field(default_factory=Anomalies)

    def rows(self, name: str) -> Iterable[tuple[Labels, int]]:
        """The samples of a name: labels and line."""
        return ((labels_of(block), at) for block, at in self.samples.get(name, {}).items())


def read_lines(text: str) -> Lines:
    # Only "\n" ends a line: label values may hold what str.splitlines takes for line ends.
    split = text.split("\n")
    read = Lines(values=[nan] * len(split), heads=[None] * len(split))
    for at, line in enumerate(split):
        bare = line.strip(" \t\r")
        if not bare or bare[0] == "#":
            if declaration := _DECLARATION.match(bare):
                read.declared.add(declaration[1])
            continue
        try:
            name, block, head, value = _sample(line)
        except ValueError:
            read.anomalies.add("unreadable_line", f"line {at + 1} cannot be read: {shortened(line)}")
            continue
        read.good_lines += 1
        if name.startswith(PREFIXES) and "server" in block and "server" in labels_of(block).values:
            read.router = True
        elif name in BOUNDS_BY_FAMILY or name in HISTOGRAM_PARTS:
            accepted = believed(name, block, value)
            if isinstance(accepted, str):
                if accepted:
                    read.anomalies.add("impossible_value", f"line {at + 1} {accepted}: {shortened(line)}")
                continue
            first = read.samples[name].get(block)
            read.samples[name][block], read.values[at] = at, accepted
            if first is not None:
                read.anomalies.add(
                    "repeated_series", f"line {at + 1} repeats a series, the later value is taken: {shortened(line)}"
                )
                read.heads[first] = None
                continue
        read.heads[at] = head
    return read


def numbers_in(tails: Sequence[str]) -> list[float] | None:
    """The numbers of lines whose heads were taken off, as read_lines would read them; None where it would not."""
    plain = "\n".join(tails)
    if not _PLAIN_TAILS.fullmatch(plain):
        matches = list(map(_TAIL.fullmatch, tails))
        tails = [match[1] for match in matches if match is not None]
        if len(tails) < len(matches):
            return None
    try:
        return list(map(float, tails))
    except ValueError:
        return None


def _sample(line: str) -> tuple[str, str, str, float]:
    """Name, label block, all that stands before the number, and the number."""
    match = _SAMPLE.fullmatch(line)
    if match is None:
        raise ValueError(line)
    name, block = match[1], match[2] or ""
    if name is None:
        # UTF-8 names stand quoted inside the braces.
        name = labels_of(block).metric
        if name is None:
            raise ValueError(line)
    return name, block, line[: match.start(3)], float(match[3])


@lru_cache(maxsize=16384)
def labels_of(block: str) -> Labels:
    """A label block that _SAMPLE accepted. Cached: histograms and scrapes repeat the same few hundred blocks."""
    metric, values = None, {}
    for quoted, plain, value in (match.groups() for match in _LABEL.finditer(block)):
        name = plain if quoted is None else _unescaped(quoted)
        if value is None:
            metric = name
        else:
            values[name] = _unescaped(value)
    worker = "/".join(values[label] for label in ("WorkerId", "ReplicaId") if values.get(label))
    return Labels(metric, values, worker, number_in(values.get("le")))


def _unescaped(value: str) -> str:
    # An unknown escape stays as it is, as in Prometheus.
    return _ESCAPE.sub(lambda m: "\n" if m[0] == r"\n" else m[0][1], value) if "\\" in value else value


def believed(name: str, block: str, value: float) -> float | str:
    """A wanted sample's value as far as it can be, else what is wrong; "" where it is only absent (NaN).

    Histograms are judged as a whole, by the layout.
    """
    if name in HISTOGRAM_PARTS:
        return "has no readable le" if name.endswith("_bucket") and labels_of(block).le is None else value
    if isnan(value):
        return ""
    possible = BOUNDS_BY_FAMILY[name].believed(value)
    return f"has a value that cannot be ({value:g})" if possible is None else possible


def number_in(value: str | None) -> float | None:
    """A label's value as a number; None when it is missing, "None", or anything else that is not a number."""
    try:
        number = float(_TRUTH.get(value or "", value or ""))
    except ValueError:
        return None
    return None if isnan(number) else number


_TRUTH: Mapping[str, str] = {"True": "1", "False": "0"}


def shortened(line: str) -> str:
    """Quoted, so that what a broken page holds cannot touch the terminal that shows it."""
    line = line.strip()
    return repr(line if len(line) <= 80 else line[:77] + "...")
