"""What the lines of a page add up to: where each wanted number stands, which signal of which engine it feeds.

Pages of one server differ in numbers only, nearly always. So this is found once, and later pages move the numbers.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, pairwise
from math import inf
from operator import itemgetter, le
from typing import Literal
from weakref import WeakValueDictionary

from phasewatch.core.model import Anomaly, Histogram, Page, Snapshot
from phasewatch.core.pages.catalog import BY_NAME, CATALOG, ENGINE_FAMILIES, HISTOGRAM_PARTS, MOST, SPELLINGS, Signal
from phasewatch.core.pages.foreign import whose
from phasewatch.core.pages.lines import EngineId, Labels, Lines, believed, number_in

_PAGE: EngineId = ("", "")
_IN_LABELS = ("info", "labels")  # kinds of which the line's number says nothing
# Labels that say who tells, not how it is configured: vLLM's and Ray's.
_IDENTITY = frozenset(
    ("engine", "model_name", "pid", "WorkerId", "ReplicaId", "SessionName", "Version", "NodeAddress", "ip", "Component")
)
# vLLM's clocks count nanoseconds: nobody draws a line between two values that are nearer.
_CLOSEST_EDGES = 1e-9


@dataclass(slots=True)
class _Scalar:
    """A gauge or counter: the lines that make it, none for one that is known to be zero."""

    highest: bool
    lines: list[int] = field(default_factory=list)

    def read(self, values: Sequence[float]) -> float:
        if len(self.lines) == 1:
            return values[self.lines[0]]
        return max(values[at] for at in self.lines) if self.highest else _added(values, self.lines)


@dataclass(frozen=True, slots=True)
class _Latest:
    """Of several series whose values are times, the latest one's own number."""

    lines: tuple[int, ...]
    numbers: tuple[float, ...]

    def read(self, values: Sequence[float]) -> float:
        return max(zip((values[at] for at in self.lines), self.numbers, strict=True))[1]


@dataclass(frozen=True, slots=True)
class _Buckets:
    """A histogram. counts: by bound, the lines that make it. single: takes the counts where each is of one line."""

    bounds: tuple[float, ...]
    counts: tuple[tuple[int, ...], ...]
    sums: tuple[int, ...]
    single: Callable[[Sequence[float]], tuple[float, ...]] | None

    def read(self, values: Sequence[float]) -> Histogram:
        """Raises ValueError, which says why, for counts that no histogram has."""
        if self.single is not None:
            counts = self.single(values)
        else:
            counts = tuple(_added(values, lines) for lines in self.counts)
        # Written so that NaN fails too.
        if not (counts[0] >= 0 and all(map(le, counts, counts[1:]))):
            raise ValueError("its buckets are not cumulative")
        if not counts[-1] <= MOST:
            raise ValueError(f"its count cannot be ({counts[-1]:g})")
        total = self.total(values)
        # Below 0 it may be: vLLM can add negative times (see sanity).
        return Histogram(self.bounds, counts, total if total is not None and abs(total) <= MOST else None)

    def total(self, values: Sequence[float]) -> float | None:
        """The sum as it is written."""
        return _added(values, self.sums) if self.sums else None

    @property
    def lines(self) -> Iterable[int]:
        return (*chain.from_iterable(self.counts), *self.sums)


@dataclass(slots=True)
class _Engine:
    """By signal: where its value is among the layout's; info, labels: what the labels say, as numbers and as text."""

    gauges: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, int] = field(default_factory=dict)
    info: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


class Layout:
    """Where the wanted numbers are on pages of one shape. It never changes and is shared by the pages that have it.

    heads: by line, what stands before its number; where a line has none or any change of it may change more than a
    number, the whole line. numbered: by line, its index, None where what follows the head must not change.
    """

    def __init__(self, text: str, lines: Lines) -> None:
        self.scalars: list[_Scalar | _Latest] = []
        self.buckets: list[_Buckets] = []
        found = {row.name: dict(self._places(row, lines)) for row in CATALOG if row.kind not in _IN_LABELS}
        self.scalars_of: dict[int, list[int]] = defaultdict(list)
        for place, scalar in enumerate(self.scalars):
            for at in scalar.lines:
                self.scalars_of[at].append(place)
        self.buckets_of = {at: place for place, buckets in enumerate(self.buckets) for at in buckets.lines}
        self.judged = {
            at: (name, block)
            for name, rows in lines.samples.items()
            if name not in HISTOGRAM_PARTS
            for block, at in rows.items()
        }
        ids = sorted({*chain.from_iterable(found.values())} - {_PAGE})
        self.http = {name: places[_PAGE] for name, places in found.items() if _PAGE in places}
        self.engines = {id_: _engine(id_, len(ids), found, self.http, lines) for id_ in ids}
        self.kind = _kind(lines, bool(ids))
        self.heads = tuple(
            line if head is None else head for line, head in zip(text.split("\n"), lines.heads, strict=True)
        )
        self.numbered = tuple(None if head is None else at for at, head in enumerate(lines.heads))
        self.heads_length = sum(map(len, self.heads))
        self.foreign = whose({*lines.declared, *map(_name, self.heads)}) if self.kind == "none" else None

    def _places(self, row: Signal, lines: Lines) -> Iterable[tuple[EngineId, int]]:
        """Where the signal's values are by engine; page-wide ones under _PAGE. A broken histogram is reported and
        left out."""
        if row.kind != "histogram":
            scalars = _latest(row, lines) if row.merge == "latest" else _scalars(row, lines)
            for id_, scalar in scalars.items():
                yield id_, len(self.scalars)
                self.scalars.append(scalar)
            return
        for id_, (name, parts) in _parts(row, lines).items():
            buckets = None
            try:
                buckets = _buckets(*parts)
                histogram = buckets.read(lines.values)
            except ValueError as problem:
                lines.anomalies.add(
                    "broken_histogram", f"{name} of engine {id_[1]!r} of model {id_[0]!r} is left out: {problem}"
                )
                for at in buckets.lines if buckets else ():
                    lines.heads[at] = None  # the next numbers may mend it
                continue
            if histogram.total is None and buckets.sums:
                total = buckets.total(lines.values)
                lines.anomalies.add(
                    "impossible_value",
                    f"{name}_sum of engine {id_[1]!r} of model {id_[0]!r} has a value that cannot be ({total:g})",
                )
                for at in buckets.sums:
                    lines.heads[at] = None
                buckets = replace(buckets, sums=())
            yield id_, len(self.buckets)
            self.buckets.append(buckets)


# Replicas of one server have pages of one shape: a layout is kept once, and as long as it is in use. What a page's
# numbers mean follows from these two alone, since lines whose numbers mean more are in `heads` with them.
_IN_USE: WeakValueDictionary[tuple[tuple[str, ...], tuple[int | None, ...]], Layout] = WeakValueDictionary()


def layout_of(text: str, lines: Lines) -> Layout:
    """lines: those of the text, all read."""
    layout = Layout(text, lines)
    return _IN_USE.setdefault((layout.heads, layout.numbered), layout)


class Reading:
    """The numbers of one page, and then of those after it that have its layout."""

    def __init__(self, layout: Layout, values: list[float], anomalies: tuple[Anomaly, ...]) -> None:
        """values: by line."""
        self.layout = layout
        self._anomalies = anomalies
        self._values = values
        self._scalars = [scalar.read(values) for scalar in layout.scalars]
        self._histograms = [buckets.read(values) for buckets in layout.buckets]

    def page(self, at: float) -> Page:
        layout, scalars, histograms = self.layout, self._scalars, self._histograms
        return Page(
            at=at,
            engines={
                id_: Snapshot(
                    at,
                    {name: scalars[place] for name, place in one.gauges.items()} | one.info,
                    {name: scalars[place] for name, place in one.counters.items()},
                    {name: histograms[place] for name, place in one.histograms.items()},
                    one.labels,
                )
                for id_, one in layout.engines.items()
            },
            kind=layout.kind,
            anomalies=self._anomalies,
            http={name: scalars[place] for name, place in layout.http.items()},
            foreign=layout.foreign,
        )

    def move(self, lines: Sequence[int], numbers: Sequence[float]) -> bool:
        """Take new numbers of these lines. False, with nothing taken, where they change more than numbers.

        A histogram none of whose lines is among them stays the same object."""
        layout, values = self.layout, self._values.copy()
        for at, value in zip(lines, numbers, strict=True):
            values[at] = value
        scalars: set[int] = set()
        for at in filter(layout.judged.__contains__, lines):
            accepted = believed(*layout.judged[at], values[at])
            if isinstance(accepted, str):
                return False
            values[at] = accepted
            scalars.update(layout.scalars_of.get(at, ()))
        try:
            histograms = [
                (place, layout.buckets[place].read(values))
                for place in set(map(layout.buckets_of.get, lines))
                if place is not None
            ]
        except ValueError:
            return False
        if any(one.total is None and layout.buckets[place].sums for place, one in histograms):
            return False
        for place, histogram in histograms:
            self._histograms[place] = histogram
        for place in scalars:
            self._scalars[place] = layout.scalars[place].read(values)
        self._values = values
        return True


def _added(values: Sequence[float], lines: Iterable[int]) -> float:
    # Not by sum(), which rounds otherwise from Python 3.12 on.
    total = 0.0
    for at in lines:
        total += values[at]
    return total


def _scalars(row: Signal, lines: Lines) -> dict[EngineId, _Scalar]:
    """A gauge or counter by engine (page-wide ones under _PAGE): its newest name that has samples there."""
    found: dict[EngineId, _Scalar] = {}
    for name in SPELLINGS[row.name]:
        here: dict[EngineId, _Scalar] = {}
        for labels, at in lines.rows(name):
            wrong = any(labels.values.get(label) not in allowed for label, allowed in row.where.items())
            if wrong and not row.lazy:
                continue
            id_ = labels.id if row.scope == "engine" else _PAGE
            scalar = here.setdefault(id_, _Scalar(row.merge == "max"))
            if not wrong:
                scalar.lines.append(at)
        found = here | found
    if row.lazy and row.scope == "page" and lines.declared.intersection(SPELLINGS[row.name]):
        found.setdefault(_PAGE, _Scalar(highest=False))
    return found


def _latest(row: Signal, lines: Lines) -> dict[EngineId, _Latest]:
    """How many names the labels of its latest series list."""
    for name in SPELLINGS[row.name]:
        if found := [(at, float(len(_names(row, labels)))) for labels, at in lines.rows(name)]:
            places, numbers = zip(*found, strict=True)
            return {_PAGE: _Latest(places, numbers)}
    return {}


def _names(row: Signal, labels: Labels) -> set[str]:
    """Those that some labels list, separated by commas."""
    written = (labels.values.get(label, "").split(",") for label in row.where["label"])
    return {name.strip() for name in chain.from_iterable(written)} - {""}


_Parts = tuple[Mapping[float, list[int]], Sequence[int], Sequence[int]]


def _parts(row: Signal, lines: Lines) -> dict[EngineId, tuple[str, _Parts]]:
    """By engine: the newest name of a histogram that has samples there, its lines by edge, of its count and its sum."""
    found: dict[EngineId, tuple[str, _Parts]] = {}
    for name in SPELLINGS[row.name]:
        edges: dict[EngineId, dict[float, list[int]]] = defaultdict(lambda: defaultdict(list))
        for labels, at in lines.rows(name + "_bucket"):
            if labels.le is not None:
                edges[labels.id][labels.le].append(at)
        counts, sums = _by_engine(lines, name + "_count"), _by_engine(lines, name + "_sum")
        for id_ in dict.fromkeys((*edges, *counts)):
            found.setdefault(id_, (name, (edges.get(id_, {}), counts.get(id_, ()), sums.get(id_, ()))))
    return found


def _by_engine(lines: Lines, name: str) -> dict[EngineId, list[int]]:
    found: dict[EngineId, list[int]] = defaultdict(list)
    for labels, at in lines.rows(name):
        found[labels.id].append(at)
    return dict(found)


def _buckets(edges: Mapping[float, list[int]], count: Sequence[int], total: Sequence[int]) -> _Buckets:
    """Raises ValueError, which says why, for lines that make no histogram, whatever their numbers."""
    if inf not in edges and count:
        edges = {**edges, inf: list(count)}
    if inf not in edges:
        raise ValueError("neither a +Inf bucket nor a count")
    if len(edges) == 1:
        raise ValueError("no buckets")
    bounds = _shared(tuple(sorted(edges)))
    if problem := _wrong_edges(bounds):
        raise ValueError(problem)
    counts = tuple(tuple(edges[bound]) for bound in bounds)
    alone = all(len(lines) == 1 for lines in counts)
    single = itemgetter(*chain.from_iterable(counts)) if alone else None
    return _Buckets(bounds, counts, tuple(total), single)


@lru_cache(maxsize=1024)
def _shared(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """The same object for the same edges: those of a fleet's histograms are few."""
    return bounds


@lru_cache(maxsize=1024)
def _wrong_edges(bounds: tuple[float, ...]) -> str | None:
    """Why no histogram of times or lengths has these edges; None where it may. Cached: edges stay for ever."""
    if bounds[0] < 0 or bounds[-2] > MOST:
        return f"its edge {bounds[0] if bounds[0] < 0 else bounds[-2]:g} cannot be"
    if any(high - low < _CLOSEST_EDGES for low, high in pairwise((0.0, *bounds)) if high):
        return "its edges are nearer to each other than a nanosecond"
    return None


def _engine(
    id_: EngineId,
    engines: int,
    found: Mapping[str, Mapping[EngineId, int]],
    page_wide: Mapping[str, int],
    lines: Lines,
) -> _Engine:
    own = {name: places[id_] for name, places in found.items() if id_ in places}
    # Page-wide numbers belong to an engine only where it is the page's only one; all share the start of their server.
    own |= page_wide if engines == 1 else {name: page_wide[name] for name in page_wide if name == "start_time"}
    by_kind: dict[str, dict[str, int]] = {"gauge": {}, "counter": {}, "histogram": {}}
    for name, place in own.items():
        by_kind[BY_NAME[name].kind][name] = place
    info, labels = _info(id_, engines, lines), _labels(id_, lines)
    return _Engine(by_kind["gauge"], by_kind["counter"], by_kind["histogram"], info, labels)


def _info(id_: EngineId, engines: int, lines: Lines) -> dict[str, float]:
    """What cache_config_info says of one engine. It has no model_name, and before 0.9.0 no engine label: then it
    holds for all. num_gpu_blocks is the sum over the engines of the server (since 0.9); kv_cache_size_tokens is not."""
    found: dict[str, float] = {}
    for row in CATALOG:
        if row.kind != "info":
            continue
        for labels, _ in (pair for name in SPELLINGS[row.name] for pair in lines.rows(name)):
            written = number_in(labels.values.get(row.where["label"][0]))
            number = None if written is None else row.bounds.believed(written)
            if written is not None and number is None:
                lines.anomalies.add(
                    "impossible_value", f"{row.names[0]} has a {row.where['label'][0]} that cannot be ({written:g})"
                )
            if number is not None and labels.engine in (None, id_[1]):
                # With Ray, each worker is a server of its own.
                shared = row.name == "kv_blocks" and not labels.worker
                found.setdefault(row.name, number / engines if shared else number)
    return found


def _labels(id_: EngineId, lines: Lines) -> dict[str, str]:
    """What labels say of one engine as text, by label; of a row that names labels, all names that its series list."""
    found: dict[str, str] = {}
    for row in CATALOG:
        if row.kind != "labels":
            continue
        for name in SPELLINGS[row.name]:
            own = [labels for labels, _ in lines.rows(name) if labels.engine in (None, id_[1])]
            if "label" in row.where and own:
                found[row.name] = ", ".join(sorted(set().union(*(_names(row, labels) for labels in own))))
            elif own:
                found |= {label: text for label, text in own[-1].values.items() if label not in _IDENTITY}
    return found


def _name(head: str) -> str:
    """The metric's name that a line's head begins with."""
    return head.lstrip(" \t").partition("{")[0].partition(" ")[0]


def _kind(lines: Lines, has_engines: bool) -> Literal["engine", "router", "declared", "none"]:
    if has_engines:
        return "engine"
    if lines.router:
        return "router"
    return "declared" if lines.declared & ENGINE_FAMILIES else "none"
