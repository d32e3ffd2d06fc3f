"""One row a number: its place in Numbers and the document, its gauge, HELP, words for people, how engines merge.

A new number is a field of Numbers, the function that computes it (core/measures/numbers.py) and one row here: the
gauges, the merging of a model's engines, what the terminal and the web page say of it and docs/metrics.md follow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

from phasewatch.core.measures.quantile import PERCENTILES
from phasewatch.core.model import Numbers, Window
from phasewatch.core.pages.catalog import BY_NAME
from phasewatch.core.settings import Estimator

T = TypeVar("T")
Samples = Iterable[tuple[tuple[str, ...], float | None]]
Unit = Literal["seconds", "unix_seconds", "ratio", "requests", "tokens", "per_second", "count", "flag"]

# --- how the engines of a model join -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Merge:
    """text: for docs/metrics.md. join: the engines' own values and windows -> the model's; None: see POOLED."""

    text: str
    join: Callable[[Sequence[float | None], Sequence[Window]], float | None] | None = None


def _sum(values: Sequence[float | None], _: Sequence[Window]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _most(values: Sequence[float | None], _: Sequence[Window]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _least(values: Sequence[float | None], _: Sequence[Window]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """0 where nothing has weight."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    whole = sum(weights)
    return sum(value * weight for value, weight in zip(known, weights, strict=True)) / whole if whole else 0.0


def _by_answers(values: Sequence[float | None], parts: Sequence[Window]) -> float | None:
    return _mean(values, [part.increases.get("http_finishes", 0.0) for part in parts])


# Pages of several engines are no series in time: a change over time is each engine's own, and then joined.
POOLED = Merge("from their buckets and counters added up")
SUM = Merge("sum, unknown where one is unknown", _sum)
MEAN = Merge("mean, unknown where one is unknown", lambda values, parts: _mean(values, [1.0] * len(parts)))
BY_ANSWERS = Merge("mean weighted by HTTP answers, unknown where one is unknown", _by_answers)
MOST = Merge("the highest known", _most)
LEAST = Merge("the lowest known", _least)


# --- a number ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """What people read of a number: `text` with the value in the place of {} ({+}: with its sign).

    Said only where least <= |value| <= most. bound: path of the flag that makes the value a lower bound.
    """

    text: str
    least: float = 0.0
    most: float = inf
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """name: of the gauge, without prefix. path: its place in Numbers, which is its place in the document.

    signals: the catalog's, that it is made of. exported: for each window (with its label), once (it is the same in
    every window), or not at all. labels: those that tell gauges of one name apart.
    """

    name: str
    path: str
    unit: Unit
    signals: tuple[str, ...]
    merge: Merge
    help: str
    said: Said | None = None
    exported: Literal["windows", "once", "no"] = "windows"
    labels: Mapping[str, str] = field(default_factory=dict)
    of: Callable[[Numbers], Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", _reader(self.path))

    @property
    def vllm(self) -> tuple[str, ...]:
        """vLLM's own names of the signals, each once."""
        rows = [BY_NAME[signal] for signal in self.signals]
        return tuple(dict.fromkeys(f"vllm:{row.names[0]}" if row.prefixed else row.names[0] for row in rows))


def _reader(path: str) -> Callable[[Numbers], Any]:
    """What reads it; None where the part that has it is None."""
    place, _, name = path.rpartition(".")
    if not place:
        return attrgetter(name)
    part, value = attrgetter(place), attrgetter(name)
    return lambda numbers: None if (there := part(numbers)) is None else value(there)


def value_at(numbers: Numbers, path: str) -> Any:
    return _reader(path)(numbers)


def _row(name: str, path: str, unit: Unit, signals: str, merge: Merge, what: str, said: Said | None = None) -> Measure:
    return Measure(name, path, unit, tuple(signals.split()), merge, what, said)


def _once(name: str, path: str, unit: Unit, signals: str, merge: Merge, what: str, said: Said | None) -> Measure:
    """A gauge that is the same in every window."""
    return replace(_row(name, path, unit, signals, merge, what, said), exported="once")


def _shown(name: str, path: str, unit: Unit, signals: str, merge: Merge, what: str) -> Measure:
    """In the document only."""
    return replace(_row(name, path, unit, signals, merge, what), exported="no")


# --- latencies ---------------------------------------------------------------------------------------------------

# signal, label for people, what it is
LATENCIES: tuple[tuple[str, str, str], ...] = (
    ("ttft", "TTFT", "Time to first token (TTFT)"),
    ("itl", "ITL", "Inter-token latency (ITL), the time between two outputs of a request"),
    ("tpot", "TPOT", "Time per output token after the first (TPOT), a mean for each request"),
    ("e2e", "e2e", "End-to-end time of a request (e2e), from its arrival to its last token"),
)
# How percentiles are read, in the place of this in HELP.
_ESTIMATOR = "{estimator}"
ESTIMATORS: Mapping[Estimator, str] = {
    "sums": "fitted to the buckets and the exact sums between scrapes",
    "interpolation": "interpolated within its bucket like histogram_quantile",
}
_VALUE = f"{_ESTIMATOR}; above the last finite bucket edge it is that edge"
# name, path, unit, which statistic
_STATISTICS: tuple[tuple[str, str, Unit, str], ...] = (
    ("mean_seconds", "mean", "seconds", "exact mean"),
    *((f"{p}_seconds", f"{p}.value", "seconds", f"{100 * q:g}th percentile, {_VALUE}") for p, q in PERCENTILES),
    ("p99_low_seconds", "p99.low", "seconds", "lower edge of the bucket that holds the 99th percentile"),
    ("p99_high_seconds", "p99.high", "seconds",
     "upper edge of the bucket that holds the 99th percentile; absent above the last finite edge"),
    ("observations", "count", "count", "observations"),
)  # fmt: skip


def _latencies() -> Iterable[Measure]:
    for signal, _label, what in LATENCIES:
        for name, path, unit, statistic in _STATISTICS:
            yield _row(f"{signal}_{name}", f"{signal}_seconds.{path}", unit, signal, POOLED, f"{what}: {statistic}")


# --- phases ------------------------------------------------------------------------------------------------------

# field, label for people
PHASES: tuple[tuple[str, str], ...] = (
    ("queue", "queue"), ("prefill", "prefill"), ("decode", "decode"), ("frontend", "front end"),
    ("unexplained", "unexplained"),
)  # fmt: skip


_PHASE_SIGNALS = ("queue", "prefill", "decode", "e2e")
_OF_PHASES: tuple[tuple[str, str, Unit, str], ...] = (
    ("phase_mean_seconds", "mean_seconds", "seconds", "Exact mean time that finished requests spent in a phase"),
    (
        "phase_share_ratio",
        "share",
        "ratio",
        "A phase's share of the whole time of finished requests; unexplained: the rest",
    ),
)


def _phases() -> Iterable[Measure]:
    for name, path, unit, what in _OF_PHASES:
        for phase, _label in PHASES:
            place = f"phases.{phase}.{path}"
            yield Measure(name, place, unit, _PHASE_SIGNALS, POOLED, what, labels={"phase": phase})


# --- the rest ----------------------------------------------------------------------------------------------------

_SOME = 5e-324  # the least above zero
_PATIENCE = 10.0  # seconds for a first token: profile standard's critical limit
_LONG = 60.0  # seconds for an answer
_TREND = 0.005  # a change that shows in two decimals
_FAR = 3600.0  # a KV cache full in more seconds than this is no news

_NUMBERS: tuple[Measure, ...] = (
    _row("itl_stalled_ratio", "itl_stalled_ratio", "ratio", "itl", POOLED,
         "Share of the streaming time in gaps longer than the limit of the objective itl_stall"),
    _once("running_requests", "queue.running", "requests", "running", SUM, "Requests in the engine's batch",
          Said("{} running")),
    _once("waiting_requests", "queue.waiting", "requests", "waiting", SUM, "Requests waiting to be scheduled",
          Said("{} waiting")),
    _row("queue_growth_requests_per_second", "queue.growth_per_second", "per_second", "waiting waiting_capacity", SUM,
         "Slope of the waiting requests (of those waiting for capacity, where vLLM tells)", Said("{+}/s", _TREND)),
    _once("waiting_deferred_requests", "queue.waiting_deferred", "requests", "waiting_deferred", SUM,
          "Requests waiting for something other than capacity", Said("{} deferred", _SOME)),
    _row("expected_wait_seconds", "queue.expected_wait_seconds", "seconds", "waiting waiting_capacity ttft", POOLED,
         "Expected queue time of a new request: waiting / admissions per second",
         Said("expected wait {}", _SOME, bound="queue.expected_wait_censored")),
    _row("expected_wait_censored", "queue.expected_wait_censored", "flag", "waiting waiting_capacity ttft", POOLED,
         "1 where expected_wait_seconds is only a lower bound because no request was admitted"),
    _once("oldest_unanswered_seconds", "queue.oldest_unanswered_seconds", "seconds", "waiting running ttft finished",
          MOST, "How long a request has waited for its first token, at least; 0 where none need have",
          Said("a request has waited at least {} for its first token", _PATIENCE)),
    _once("oldest_running_seconds", "queue.oldest_running_seconds", "seconds", "running finished", MOST,
          "How long a request has run without finishing, at least; 0 where none need have",
          Said("a request has run for at least {}", _LONG)),
    _row("arrivals_per_second", "queue.arrivals_per_second", "per_second", "finished http_finishes running waiting",
         SUM, "Requests that arrived (finishes plus the change of running and waiting), a second", Said("{}/s arrive")),
    _row("admissions_per_second", "queue.admissions_per_second", "per_second", "ttft", POOLED,
         "Requests that got their first token, a second", Said("{}/s admitted")),
    _row("gave_up_ratio", "queue.gave_up_ratio", "ratio", "finished http_finishes", BY_ANSWERS,
         "Share of the requests whose client disconnected before the answer was complete", Said("{} gave up", _SOME)),
    _row("gave_up_before_first_token_ratio", "queue.gave_up_before_first_token_ratio", "ratio", "ttft http_finishes",
         BY_ANSWERS, "Share of the requests whose client disconnected before the first token"),
    _row("failed_requests_per_second", "queue.failed_per_second", "per_second", "http_5xx finished_error rejections",
         POOLED, "Requests that failed (5xx, error finishes, rejections), a second", Said("{}/s fail", _SOME)),
    _once("kv_cache_usage_ratio", "kv_cache.usage_ratio", "ratio", "kv_usage", MOST, "Share of the KV cache in use",
          Said("{} in use")),
    _once("kv_cache_capacity_tokens", "kv_cache.capacity_tokens", "tokens", "kv_capacity_tokens", SUM,
          "Tokens that the KV cache holds", Said("{} tokens in all")),
    _once("kv_cache_free_tokens", "kv_cache.free_tokens", "tokens", "kv_usage kv_capacity_tokens", SUM,
          "Tokens that the KV cache still has room for: (1 - usage) x capacity", Said("room for {} tokens")),
    _row("preemptions_per_second", "kv_cache.preemptions_per_second", "per_second", "preemptions", POOLED,
         "Running requests preempted because the KV cache was full, a second", Said("{} preemptions/s", _SOME)),
    _row("kv_cache_time_to_full_seconds", "kv_cache.time_to_full_seconds", "seconds", "kv_usage", LEAST,
         "Time until the KV cache is full at the rate at which it filled", Said("full in {}", most=_FAR)),
    _row("prompt_tokens_mean", "tokens.prompt_mean", "tokens", "prompt_length prompt_tokens", POOLED,
         "Prompt tokens a request, mean", Said("prompt {}")),
    _shown("computed_prompt_tokens_mean", "tokens.computed_prompt_mean", "tokens",
           "computed_prompt_tokens prompt_tokens prefix_hits ttft", POOLED, "Computed prompt tokens a request, mean"),
    _row("output_tokens_mean", "tokens.output_mean", "tokens", "output_length", POOLED,
         "Output tokens a finished request, mean", Said("answer {}")),
    _shown("context_tokens_mean", "tokens.context_mean", "tokens", "prompt_length output_length", POOLED,
           "Mean prompt plus half of the mean output"),
    _row("prompt_tokens_per_second", "tokens.prompt_per_second", "per_second", "prompt_tokens", POOLED,
         "Prompt tokens a second, those from the prefix cache included"),
    _shown("computed_prompt_tokens_per_second", "tokens.computed_prompt_per_second", "per_second",
           "computed_prompt_tokens prompt_tokens prefix_hits", POOLED, "Prompt tokens computed by prefill, a second"),
    _row("generation_tokens_per_second", "tokens.generation_per_second", "per_second", "generation_tokens", POOLED,
         "Output tokens a second", Said("{}/s generated")),
    _row("prefix_cache_hit_ratio", "tokens.prefix_hit_ratio", "ratio", "prefix_hits prefix_queries", POOLED,
         "Share of the prompt tokens found in the prefix cache", Said("prefix hits {}")),
    _row("prefill_speed_tokens_per_second", "tokens.prefill_speed", "per_second", "computed_prompt_length prefill",
         POOLED, "Computed prompt tokens of finished requests per second of their prefill"),
    _row("decode_speed_tokens_per_second", "tokens.decode_speed", "per_second", "tpot", POOLED,
         "Output tokens a second that one user sees (1 / mean TPOT)"),
    _row("prefill_time_ratio", "prefill_time_ratio", "ratio", "computed_prompt_tokens prefill iteration_tokens", MEAN,
         "Prefill's share of the engine's time"),
    _row("speculation_acceptance_ratio", "speculation.acceptance_ratio", "ratio",
         "spec_accepted_tokens spec_draft_tokens", POOLED, "Share of the draft tokens that were accepted"),
    _shown("speculation_accepted_length_mean", "speculation.mean_accepted_length", "tokens",
           "spec_accepted_tokens spec_drafts", POOLED, "Tokens that a step with speculation yields, mean"),
)  # fmt: skip

MEASURES: tuple[Measure, ...] = (*_latencies(), *_phases(), *_NUMBERS)


def merged(pooled: Numbers, own: Sequence[Numbers], parts: Sequence[Window]) -> Numbers:
    """A model's numbers: `pooled`, those of its engines' windows as one, but for what each row joins otherwise."""
    changed: dict[str, dict[str, float | None]] = {}
    for measure in MEASURES:
        if measure.merge.join is not None:
            group, _, name = measure.path.rpartition(".")
            value = measure.merge.join([measure.of(numbers) for numbers in own], parts)
            changed.setdefault(group, {})[name] = value
    fields: dict[str, Any] = dict(changed.pop("", {}))
    groups = {group: replace(getattr(pooled, group), **values) for group, values in changed.items()}
    return replace(pooled, **fields, **groups)


# --- gauges ------------------------------------------------------------------------------------------------------


def with_estimator(text: str, estimator: Estimator) -> str:
    """HELP, with the estimator that is configured."""
    return text.replace(_ESTIMATOR, ESTIMATORS[estimator])


@dataclass(frozen=True, slots=True)
class SeriesRow(Generic[T]):
    """A family: its name (without prefix), HELP, what to read and the labels it adds.

    The suffix of the name says the rest: `_total` is a counter, `_info` an info, anything else a gauge. Its samples are
    (values of its own labels, value); None leaves the series out. {estimator} in HELP: how percentiles are read.
    measure: the number it is made of, where it is one.
    """

    name: str
    help: str
    samples: Callable[[T], Samples]
    labels: tuple[str, ...] = ()
    unit: Unit = "flag"
    measure: Measure | None = None


_every: Callable[[Numbers], tuple[Any, ...]] = attrgetter(*(measure.path for measure in MEASURES))


def every_value(numbers: Numbers) -> tuple[Any, ...]:
    """The values of MEASURES, in their order."""
    try:
        return _every(numbers)
    except AttributeError:  # a part that is None
        return tuple(measure.of(numbers) for measure in MEASURES)


class Windowed:
    """The values of one window; missing: signals the page lacks."""

    __slots__ = ("missing", "values")

    def __init__(self, numbers: Numbers, missing: tuple[str, ...]) -> None:
        self.values = every_value(numbers)
        self.missing = missing


class One(Generic[T]):
    """The only sample of a row without labels of its own: what `read` says."""

    __slots__ = ("read",)

    def __init__(self, read: Callable[[T], float | None]) -> None:
        self.read = read

    def __call__(self, subject: T) -> Samples:
        return (((), self.read(subject)),)


def one(read: Callable[[T], float | None]) -> Callable[[T], Samples]:
    return One(read)


class ClosedSet(tuple[tuple[tuple[str], float], ...]):
    """Samples of every member of a closed set: they need no look at each before they are shown."""

    __slots__ = ()


def enum(members: Iterable[str], read: Callable[[T], str | None]) -> Callable[[T], Samples]:
    """0 or 1 for every member of a closed set: always the same object for the same one."""
    names = tuple(members)
    nothing = ClosedSet(((name,), 0.0) for name in names)
    each: dict[str | None, ClosedSet] = {
        there: ClosedSet(((name,), float(name == there)) for name in names) for there in names
    }
    return lambda subject: each.get(read(subject), nothing)


def observed(count: int, signal: str, missing: Iterable[str]) -> int | None:
    """Observations in the window: 0 is "no traffic", None is "the page has no such histogram"."""
    return None if count == 0 and signal in missing else count


Read = Callable[[Windowed], float | None]


def _read(place: int) -> Read:
    measure = MEASURES[place]
    signal = measure.signals[0]
    if measure.unit != "count":
        return lambda windowed: windowed.values[place]

    def count(windowed: Windowed) -> float | None:
        value = windowed.values[place]
        return None if value is None else observed(int(value), signal, windowed.missing)

    return count


_WHEN = {"windows": "Over the window in label window", "once": "At the last scrape"}


def _gauges(exported: Literal["windows", "once"]) -> Iterable[SeriesRow[Windowed]]:
    by_name: dict[str, list[int]] = {}
    for place, measure in enumerate(MEASURES):
        if measure.exported == exported:
            by_name.setdefault(measure.name, []).append(place)
    for name, places in by_name.items():
        first = MEASURES[places[0]]
        text = f"{first.help}. {_WHEN[exported]}, from {', '.join(first.vllm)}."
        reads = [(tuple(MEASURES[place].labels.values()), _read(place)) for place in places]

        def samples(windowed: Windowed, reads: Sequence[tuple[tuple[str, ...], Read]] = tuple(reads)) -> Samples:
            return [(labels, read(windowed)) for labels, read in reads]

        alone = not first.labels
        yield SeriesRow(name, text, One(_read(places[0])) if alone else samples, tuple(first.labels), first.unit, first)


# Exported for each window, with its label.
WINDOW_ROWS: tuple[SeriesRow[Windowed], ...] = tuple(_gauges("windows"))
# The same in every window: exported once, without the label.
NOW_ROWS: tuple[SeriesRow[Windowed], ...] = tuple(_gauges("once"))
