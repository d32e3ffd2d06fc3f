"""Lets a recorded target begin again without looking restarted: what it had counted by its end is added on.

Pure text work on pages of /metrics in either format; everything but those numbers stays as it is, byte for byte.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

_TYPE = re.compile(r"# TYPE (\S+) (\S+)\s*$")
# Series (a label value may hold anything but a bare quote), value, and the rest: timestamp, exemplar, line end.
_SAMPLE = re.compile(r'([^\s{#][^\s{]*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?)[ \t]+(\S+)(.*)', re.DOTALL)
# What is cumulative: the endings of sample names by type. Sums are apart: vLLM can add negative values to them.
_COUNTS = {"counter": ("_total", ""), "histogram": ("_bucket", "_count"), "summary": ("_count",)}
_SUMS = {"histogram": ("_sum",), "summary": ("_sum",)}


@dataclass(frozen=True, slots=True)
class _Sample:
    """kind: "count", "sum", "since" (Unix time at which something began) or "" for all that is left alone."""

    series: str
    family: str
    kind: str
    value: float
    rest: str


def _lines(text: str) -> Iterator[tuple[str, _Sample | None]]:
    """Every line, and its sample where it is one."""
    types: dict[str, str] = {}
    for line in text.splitlines(keepends=True):
        if declared := _TYPE.match(line):
            types[declared[1]] = declared[2]
        match = _SAMPLE.match(line)
        try:
            yield line, _sample(match[1], float(match[2]), match[3], types) if match else None
        except ValueError:
            yield line, None


def _sample(series: str, value: float, rest: str, types: Mapping[str, str]) -> _Sample:
    name = series.partition("{")[0]
    if name.endswith("_created") or name == "process_start_time_seconds":
        return _Sample(series, name, "since", value, rest)
    for kind, endings in (("count", _COUNTS), ("sum", _SUMS)):
        for type_, suffixes in endings.items():
            for suffix in suffixes:
                family = name.removesuffix(suffix)
                if name.endswith(suffix) and types.get(family) == type_:
                    return _Sample(series, family, kind, value, rest)
    return _Sample(series, name, "", value, rest)


def _values(text: str) -> dict[str, _Sample]:
    return {sample.series: sample for _, sample in _lines(text) if sample is not None and sample.kind}


def _restarted(before: Mapping[str, _Sample], after: Mapping[str, _Sample]) -> bool:
    """Whether another process is behind `after`: a count fell, or the process says it began at another time."""
    return any(
        (now.kind == "count" and now.value < before[series].value)
        or (series == "process_start_time_seconds" and now.value != before[series].value)
        for series, now in after.items()
        if series in before
    )


class Loop:
    """The good pages of one target in order, to be served again and again; period: seconds of one round.

    The first page of a round has the counters of the last page of the round before. A recording with a restart in it
    restarts again in each round, as a process that began one period later than in the round before.
    """

    def __init__(self, pages: Iterable[str], period: float) -> None:
        self._period = period
        self._first: dict[str, _Sample] = {}
        self._last: dict[str, _Sample] = {}
        self._restart: int | None = None
        parsed = (_values(page) for page in pages)
        for index, (before, after) in enumerate(pairwise(parsed), start=1):
            self._first = self._first or before
            self._last = after
            if self._restart is None and _restarted(before, after):
                self._restart = index

    def page(self, text: str, index: int, cycle: int) -> str:
        """What page `index` reads in round `cycle` (0: as recorded)."""
        if cycle == 0:
            return text
        begun_again = self._restart is not None and index >= self._restart
        missing = {} if begun_again else self._made_later()
        lines: list[str] = []
        ends: dict[str, int] = {}
        for line, sample in _lines(text):
            if sample is not None and sample.kind:
                missing.pop(sample.series, None)
                if offset := self._offset(sample, begun_again, cycle):
                    line = f"{sample.series} {sample.value + offset!r}{sample.rest}"
                ends[sample.family] = len(lines) + 1
            lines.append(line)
        for sample in reversed(missing.values()):
            value = self._offset(sample, begun_again, cycle)
            end = ends.get(sample.family)
            if end is not None:
                lines.insert(end, f"{sample.series} {value!r}\n")
                ends = {family: at + (at > end) for family, at in ends.items()}
        return "".join(lines)

    def _made_later(self) -> dict[str, _Sample]:
        """Series that the web server made at their first event: later rounds have them from the start."""
        return {s: v for s, v in self._last.items() if s not in self._first and v.kind != "since"}

    def _offset(self, sample: _Sample, begun_again: bool, cycle: int) -> float:
        first, last = self._first.get(sample.series), self._last.get(sample.series)
        if last is None or (sample.kind == "since" and first is None):
            return 0.0
        grown = last.value - (first.value if first is not None else 0.0)
        if self._restart is None:
            return 0.0 if sample.kind == "since" else cycle * grown
        if sample.kind == "since":
            return cycle * self._period if begun_again else (cycle - 1) * self._period + grown
        return 0.0 if begun_again else grown
