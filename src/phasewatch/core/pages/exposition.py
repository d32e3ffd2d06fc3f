"""One page of /metrics -> what it says of each engine, by the catalog's stable names.

One tolerant reader takes the Prometheus text format (0.0.4, 1.0.0) and OpenMetrics 1.0: their sample lines differ only
in what may follow the value. Grammar: the Prometheus exposition formats document and OpenMetrics 1.0, "ABNF".
A line that cannot be read costs only itself; a page that cannot be trusted as a whole raises ExpositionError.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise
from math import inf, isnan
from typing import Literal, NamedTuple

from phasewatch.core.model import Histogram, Page, Snapshot
from phasewatch.core.pages.catalog import BY_NAME, CATALOG, MOST, PREFIXES, Bounds, Signal

PROBLEMS_KEPT = 20

_EngineId = tuple[str, str]
_PAGE: _EngineId = ("", "")
# vLLM's clocks count nanoseconds: nobody draws a line between two values that are nearer.
_CLOSEST_EDGES = 1e-9

# Possessive quantifiers keep a hostile line linear.
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_ITEM = rf"[ \t]*+(?:{_QUOTED}(?:[ \t]*+=[ \t]*+{_QUOTED})?+|[a-zA-Z_]\w*+[ \t]*+=[ \t]*+{_QUOTED})[ \t]*+"
_BLOCK = rf"\{{((?:{_ITEM}(?:,{_ITEM})*+,?+)?+[ \t]*+)\}}"
_NUMBER, _TIME = r"[-+.0-9a-zA-Z]++", r"[-+.0-9eE]++"
_SAMPLE = re.compile(
    rf"[ \t]*+([a-zA-Z_:][\w:]*+)?+[ \t]*+(?:{_BLOCK})?+[ \t]*+(?<=[ \t}}])({_NUMBER})"
    rf"(?:[ \t]++{_TIME})?+(?:[ \t]*+\#[ \t]*+{_BLOCK}[ \t]*+{_NUMBER}(?:[ \t]++{_TIME})?+)?+[ \t\r]*+",
    re.ASCII,
)
_LABEL = re.compile(
    r'(?:"((?:[^"\\]|\\.)*+)"|([a-zA-Z_]\w*+))(?:[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)")?+', re.ASCII
)  # fmt: skip
_ESCAPE = re.compile(r'\\[\\"n]')
_DECLARATION = re.compile(r"#[ \t]*(?:HELP|TYPE)[ \t]+(\S+)")


class ExpositionError(ValueError):
    """The page must be discarded as a whole; str() is one line that says why."""


def parse(text: str, *, at: float, content_type: str = "text/plain") -> Page:
    """Read one page. at: when it was read, in seconds on a monotonic clock; content_type: as the server sent it.

    Gauges and counters that are NaN count as not there. Raises ExpositionError for a page that is empty, is no
    metrics page, or was cut.
    """
    raw = _read(text)
    _refuse_untrustworthy(text, raw, content_type)

    scalars = {row.name: _joined(row, raw) for row in CATALOG if row.kind in ("gauge", "counter")}
    histograms = {row.name: _histograms(row, raw) for row in CATALOG if row.kind == "histogram"}
    ids = sorted({*chain.from_iterable(scalars.values()), *chain.from_iterable(histograms.values())} - {_PAGE})
    page_wide = {name: found[_PAGE] for name, found in scalars.items() if _PAGE in found}
    # Page-wide numbers belong to an engine only where it is the page's only one; all share the start of their server.
    shared = page_wide if len(ids) == 1 else {name: page_wide[name] for name in page_wide if name == "start_time"}

    engines = {}
    for id_ in ids:
        own = {name: found[id_] for name, found in scalars.items() if id_ in found} | shared
        gauges = {name: value for name, value in own.items() if BY_NAME[name].kind == "gauge"}
        counters = {name: value for name, value in own.items() if BY_NAME[name].kind == "counter"}
        seen = {name: found[id_] for name, found in histograms.items() if id_ in found}
        engines[id_] = Snapshot(at, gauges | _info(id_, len(ids), raw), counters, seen)
    return Page(
        at=at,
        engines=engines,
        kind=_kind(raw, bool(engines)),
        problems=raw.problems.lines(),
        http=page_wide,
        single_process="start_time" in page_wide,
    )


# --- lines --------------------------------------------------------------------------------------------------------


class _Labels(NamedTuple):
    """A label block. worker: Ray's identity of the process; le: None when missing or no number."""

    metric: str | None
    values: Mapping[str, str]
    worker: str
    le: float | None

    @property
    def engine(self) -> str | None:
        return self.worker or self.values.get("engine")

    @property
    def id(self) -> _EngineId:
        # pid is left out on purpose: processes of one server tell of the same engine.
        return self.values.get("model_name", ""), self.engine or "0"


@dataclass(slots=True)
class _Problems:
    kept: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, problem: str) -> None:
        if len(self.kept) < PROBLEMS_KEPT:
            self.kept.append(problem)
        else:
            self.more += 1

    def lines(self) -> tuple[str, ...]:
        return (*self.kept, f"and {self.more} more") if self.more else tuple(self.kept)


@dataclass(slots=True)
class _Raw:
    """The page's wanted samples by name and label block, the families it declares, and what else was noticed."""

    samples: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    declared: set[str] = field(default_factory=set)
    good_lines: int = 0
    router: bool = False
    problems: _Problems = field(default_factory=_Problems)


def _read(text: str) -> _Raw:
    raw = _Raw()
    # Only "\n" ends a line: label values may hold what str.splitlines takes for line ends.
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip(" \t\r")
        if not bare or bare[0] == "#":
            if declaration := _DECLARATION.match(bare):
                raw.declared.add(declaration[1])
            continue
        try:
            name, block, value = _sample(line)
        except ValueError:
            raw.problems.add(f"line {number} cannot be read: {_shortened(line)}")
            continue
        raw.good_lines += 1
        if name.startswith(PREFIXES) and "server" in block and "server" in _labels(block).values:
            raw.router = True
        elif name in _WANTED and not (isnan(value) and name not in _HISTOGRAM_PARTS):
            believed = _believed(name, block, value)
            if isinstance(believed, str):
                raw.problems.add(f"line {number} {believed}: {_shortened(line)}")
                continue
            value = believed
            if block in raw.samples[name]:
                raw.problems.add(f"line {number} repeats a series, the later value is taken: {_shortened(line)}")
            raw.samples[name][block] = value
    return raw


def _sample(line: str) -> tuple[str, str, float]:
    match = _SAMPLE.fullmatch(line)
    if match is None:
        raise ValueError(line)
    name, block = match[1], match[2] or ""
    if name is None:
        # UTF-8 names stand quoted inside the braces.
        name = _labels(block).metric
        if name is None:
            raise ValueError(line)
    return name, block, float(match[3])


@lru_cache(maxsize=16384)
def _labels(block: str) -> _Labels:
    """A label block that _SAMPLE accepted. Cached: histograms and scrapes repeat the same few hundred blocks."""
    metric, values = None, {}
    for quoted, plain, value in (match.groups() for match in _LABEL.finditer(block)):
        name = plain if quoted is None else _unescaped(quoted)
        if value is None:
            metric = name
        else:
            values[name] = _unescaped(value)
    worker = "/".join(values[label] for label in ("WorkerId", "ReplicaId") if values.get(label))
    return _Labels(metric, values, worker, _number(values.get("le")))


def _unescaped(value: str) -> str:
    # An unknown escape stays as it is, as in Prometheus.
    return _ESCAPE.sub(lambda m: "\n" if m[0] == r"\n" else m[0][1], value) if "\\" in value else value


def _believed(name: str, block: str, value: float) -> float | str:
    """A sample's value as far as it can be, else what is wrong. Histograms are judged as a whole, by `_histogram`."""
    if name in _HISTOGRAM_PARTS:
        return "has no readable le" if name.endswith("_bucket") and _labels(block).le is None else value
    believed = _BOUNDS[name].believed(value)
    return f"has a value that cannot be ({value:g})" if believed is None else believed


def _number(value: str | None) -> float | None:
    """A label's value as a number; None when it is missing, "None", or anything else that is no number."""
    try:
        number = float(_TRUTH.get(value or "", value or ""))
    except ValueError:
        return None
    return None if isnan(number) else number


_TRUTH: Mapping[str, str] = {"True": "1", "False": "0"}


def _shortened(line: str) -> str:
    """Quoted, so that what a broken page holds cannot touch the terminal that shows it."""
    line = line.strip()
    return repr(line if len(line) <= 80 else line[:77] + "...")


# --- the page as a whole ------------------------------------------------------------------------------------------


def _refuse_untrustworthy(text: str, raw: _Raw, content_type: str) -> None:
    body = text.strip()
    if not body:
        raise ExpositionError("the page is empty")
    if body.startswith("<"):
        raise ExpositionError(
            "the page is HTML, not metrics; check the URL's path and what stands in front of the server"
        )
    ended = body.rpartition("\n")[2] == "# EOF"
    if not (raw.good_lines or raw.declared or ended):
        what = "the page is JSON, not metrics" if body[0] in "{[" else "the page has no line of metrics"
        raise ExpositionError(f"{what}; it begins {_shortened(body.partition(chr(10))[0])}")
    if "application/openmetrics-text" in content_type.lower() and not ended:
        raise ExpositionError("the page was cut: OpenMetrics without # EOF at its end")
    if not (ended or text.endswith("\n")):
        raise ExpositionError("the page was cut: its last line does not end in a line feed")


def _kind(raw: _Raw, has_engines: bool) -> Literal["engine", "router", "declared", "none"]:
    if has_engines:
        return "engine"
    if raw.router:
        return "router"
    return "declared" if raw.declared & _ENGINE_FAMILIES else "none"


# --- signals ------------------------------------------------------------------------------------------------------


def _spellings(row: Signal) -> tuple[str, ...]:
    """Every full family name of a signal, the preferred first: newest name, vLLM's own prefix, with `_total`."""
    forms = [
        prefix + form
        for name in row.names
        for prefix in (PREFIXES if row.prefixed else ("",))
        for form in ((name, name.removesuffix("_total")) if row.kind == "counter" else (name,))
    ]
    return tuple(dict.fromkeys(forms))


_PARTS = ("_bucket", "_sum", "_count")
_SPELLINGS: Mapping[str, tuple[str, ...]] = {row.name: _spellings(row) for row in CATALOG}
_ENGINE_FAMILIES = frozenset(name for row in CATALOG if row.scope == "engine" for name in _SPELLINGS[row.name])
_HISTOGRAM_PARTS = frozenset(
    name + part for row in CATALOG if row.kind == "histogram" for name in _SPELLINGS[row.name] for part in _PARTS
)
# Rows of one family have one unit (a test holds them to it). An info's value says nothing: it says it in its labels.
_BOUNDS: Mapping[str, Bounds] = {
    name: Bounds(-inf, inf) if row.kind == "info" else row.bounds
    for row in CATALOG
    if row.kind != "histogram"
    for name in _SPELLINGS[row.name]
}
_WANTED = _HISTOGRAM_PARTS | _BOUNDS.keys()


def _rows(raw: _Raw, name: str) -> Iterable[tuple[_Labels, float]]:
    return ((_labels(block), value) for block, value in raw.samples.get(name, {}).items())


def _joined(row: Signal, raw: _Raw) -> dict[_EngineId, float]:
    """A gauge or counter by engine (page-wide ones under _PAGE): its newest name that has samples there."""
    found: dict[_EngineId, float] = {}
    for name in _SPELLINGS[row.name]:
        here: dict[_EngineId, float] = {}
        for labels, value in _rows(raw, name):
            if any(labels.values.get(label) not in allowed for label, allowed in row.where.items()):
                if not row.lazy:
                    continue
                value = 0.0
            id_ = labels.id if row.scope == "engine" else _PAGE
            if id_ not in here:
                here[id_] = value
            else:
                here[id_] = max(here[id_], value) if row.merge == "max" else here[id_] + value
        found = here | found
    if row.lazy and row.scope == "page" and raw.declared.intersection(_SPELLINGS[row.name]):
        found.setdefault(_PAGE, 0.0)
    return found


def _histograms(row: Signal, raw: _Raw) -> dict[_EngineId, Histogram]:
    """A histogram by engine, from its newest name that has samples there; a broken one is reported and left out."""
    found: dict[_EngineId, Histogram | None] = {}
    for name in _SPELLINGS[row.name]:
        edges: dict[_EngineId, dict[float, float]] = defaultdict(lambda: defaultdict(float))
        for labels, value in _rows(raw, name + "_bucket"):
            if labels.le is not None:
                edges[labels.id][labels.le] += value
        counts, sums = _added(raw, name + "_count"), _added(raw, name + "_sum")
        for id_ in dict.fromkeys((*edges, *counts)):
            if id_ in found:
                continue
            found[id_], total = None, _sum(sums.get(id_))
            try:
                found[id_] = _histogram(edges.get(id_, {}), counts.get(id_), total)
            except ValueError as problem:
                raw.problems.add(f"{name} of engine {id_[1]!r} of model {id_[0]!r} is left out: {problem}")
                continue
            if total is None and id_ in sums:
                raw.problems.add(
                    f"{name}_sum of engine {id_[1]!r} of model {id_[0]!r} has a value that cannot be ({sums[id_]:g})"
                )
    return {id_: histogram for id_, histogram in found.items() if histogram is not None}


def _added(raw: _Raw, name: str) -> dict[_EngineId, float]:
    added: dict[_EngineId, float] = defaultdict(float)
    for labels, value in _rows(raw, name):
        added[labels.id] += value
    return dict(added)


def _histogram(edges: dict[float, float], count: float | None, total: float | None) -> Histogram:
    if inf not in edges and count is not None:
        edges = {**edges, inf: count}
    if inf not in edges:
        raise ValueError("neither a +Inf bucket nor a count")
    if len(edges) == 1:
        raise ValueError("no buckets")
    bounds = tuple(sorted(edges))
    if problem := _wrong_edges(bounds):
        raise ValueError(problem)
    counts = tuple(edges[bound] for bound in bounds)
    # Written so that NaN fails too.
    if not (counts[0] >= 0 and all(a <= b for a, b in pairwise(counts))):
        raise ValueError("its buckets are not cumulative")
    if not counts[-1] <= MOST:
        raise ValueError(f"its count cannot be ({counts[-1]:g})")
    return Histogram(bounds, counts, total)


@lru_cache(maxsize=1024)
def _wrong_edges(bounds: tuple[float, ...]) -> str | None:
    """Why no histogram of times or lengths has these edges; None where it may. Cached: edges stay for ever."""
    if bounds[0] < 0 or bounds[-2] > MOST:
        return f"its edge {bounds[0] if bounds[0] < 0 else bounds[-2]:g} cannot be"
    if any(high - low < _CLOSEST_EDGES for low, high in pairwise((0.0, *bounds)) if high):
        return "its edges are nearer to each other than a nanosecond"
    return None


def _sum(total: float | None) -> float | None:
    """A sum as far as it can be. Below 0 it may be: vLLM can add negative times (core.sanity)."""
    return total if total is not None and abs(total) <= MOST else None


def _info(id_: _EngineId, engines: int, raw: _Raw) -> dict[str, float]:
    """What cache_config_info says of one engine. It has no model_name, and before 0.9.0 no engine label: then it
    holds for all. num_gpu_blocks is the sum over the engines of the server (since 0.9); kv_cache_size_tokens is not."""
    found: dict[str, float] = {}
    for row in CATALOG:
        if row.kind != "info":
            continue
        for labels, _ in (pair for name in _SPELLINGS[row.name] for pair in _rows(raw, name)):
            written = _number(labels.values.get(row.where["label"][0]))
            number = None if written is None else row.bounds.believed(written)
            if written is not None and number is None:
                raw.problems.add(f"{row.names[0]} has a {row.where['label'][0]} that cannot be ({written:g})")
            if number is not None and labels.engine in (None, id_[1]):
                # With Ray, each worker is a server of its own.
                shared = row.name == "kv_blocks" and not labels.worker
                found.setdefault(row.name, number / engines if shared else number)
    return found
