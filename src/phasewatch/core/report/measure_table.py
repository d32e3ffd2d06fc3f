"""One row a family: its name (without `phasewatch_`), HELP, what to read and the labels it adds. Here: the numbers.

The suffix of the name says the rest: `_total` is a counter, `_info` an info, anything else a gauge; `_seconds` and
`_ratio` are its unit. A row's samples are (values of its own labels, value); None leaves the series out.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Generic, TypeVar

from phasewatch.core.model import Latency, Numbers
from phasewatch.core.pages.catalog import BY_NAME
from phasewatch.core.report.document import observed

T = TypeVar("T")
Samples = Iterable[tuple[tuple[str, ...], float | None]]

ESTIMATOR = "interpolated in the bucket as by histogram_quantile"
_OVER = "over the window of the label"
_LAST = "on the last page"


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    name: str
    help: str
    samples: Callable[[T], Samples]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Windowed:
    """Numbers of one window; missing: signals the page lacks."""

    numbers: Numbers
    missing: tuple[str, ...]


def one(read: Callable[[T], float | None]) -> Callable[[T], Samples]:
    """The only sample of a row without labels of its own."""
    return lambda subject: (((), read(subject)),)


def enum(members: Iterable[str], read: Callable[[T], str | None]) -> Callable[[T], Samples]:
    """0 or 1 for every member of a closed set."""
    names = tuple(members)
    return lambda subject: [((name,), float(name == read(subject))) for name in names]


def _at(path: str) -> Callable[[object], float | None]:
    """Reads `a.b.c`; None as soon as one of them is None."""

    def step(value: object, name: str) -> object:
        return None if value is None else getattr(value, name)

    return lambda value: reduce(step, path.split("."), value)  # type: ignore[return-value]


def _vllm(signals: Iterable[str]) -> str:
    """vLLM's own names of catalog signals, each once."""
    rows = [BY_NAME[signal] for signal in signals]
    return ", ".join(dict.fromkeys(f"vllm:{row.names[0]}" if row.prefixed else row.names[0] for row in rows))


def _number(name: str, path: str, what: str, when: str, signals: str) -> Row[Windowed]:
    read = _at(path)
    return Row(name, f"{what} {when}, from {_vllm(signals.split())}.", one(lambda window: read(window.numbers)))


# --- latencies: one gauge a statistic ----------------------------------------------------------------------------

_LATENCIES = (
    ("ttft", "Time to first token"),
    ("itl", "Time between two outputs of a request"),
    ("tpot", "Time per output token of a request after its first"),
    ("e2e", "Time from a request's arrival to its last token"),
)
_STATISTICS = (
    ("mean_seconds", "mean", "exact mean"),
    ("p50_seconds", "p50.value", f"median, {ESTIMATOR},"),
    ("p99_seconds", "p99.value", f"99th percentile, {ESTIMATOR} (above the last finite edge: that edge),"),
    ("p99_low_seconds", "p99.low", "lower edge of the bucket that holds the 99th percentile"),
    ("p99_high_seconds", "p99.high", "upper edge of the bucket that holds the 99th percentile (none: no series)"),
)


def _observations(signal: str, what: str) -> Row[Windowed]:
    def count(window: Windowed) -> float | None:
        latency: Latency = getattr(window.numbers, f"{signal}_seconds")
        return observed(latency, signal, window.missing)

    return Row(f"{signal}_observations", f"{what}: observations {_OVER}, from {_vllm([signal])}.", one(count))


_LATENCY_ROWS: tuple[Row[Windowed], ...] = tuple(
    row
    for signal, what in _LATENCIES
    for row in (
        *(
            _number(f"{signal}_{name}", f"{signal}_seconds.{path}", f"{what}: {how}", _OVER, signal)
            for name, path, how in _STATISTICS
        ),
        _observations(signal, what),
    )
)

# --- phases: one gauge with a label ------------------------------------------------------------------------------

_PHASES = ("queue", "prefill", "decode", "frontend")


def _phases(name: str, path: str, what: str) -> Row[Windowed]:
    reads = [((phase,), _at(f"phases.{phase}.{path}")) for phase in _PHASES]
    text = f"{what} {_OVER}, from {_vllm(('queue', 'prefill', 'decode', 'ttft'))}"
    return Row(name, f"{text}.", lambda window: [(at, read(window.numbers)) for at, read in reads], ("phase",))


# --- the rest ----------------------------------------------------------------------------------------------------

# name, field of Numbers, the catalog's signals, what it is
_RATES: tuple[tuple[str, str, str, str], ...] = (
    ("itl_stalled_ratio", "itl_stalled_ratio", "itl",
     "Share of the streaming time in gaps longer than the objective itl_stall"),
    ("queue_growth_requests_per_second", "queue.growth_per_second", "waiting waiting_capacity",
     "Slope of the waiting requests (those waiting for capacity, where vLLM tells)"),
    ("arrivals_per_second", "queue.arrivals_per_second", "finished http_finishes running waiting",
     "Requests that arrived (finishes plus the change of running and waiting)"),
    ("admissions_per_second", "queue.admissions_per_second", "ttft",
     "Requests that got their first token"),
    ("expected_wait_seconds", "queue.expected_wait_seconds", "waiting waiting_capacity ttft",
     "Wait of a request that comes now (waiting / admissions per second)"),
    ("expected_wait_censored", "queue.expected_wait_censored", "waiting waiting_capacity ttft",
     "1 where expected_wait_seconds is only a lower bound since nobody was admitted"),
    ("gave_up_ratio", "queue.gave_up_ratio", "finished http_finishes",
     "Share of the requests whose client left before the answer was complete"),
    ("gave_up_before_first_token_ratio", "queue.gave_up_before_first_token_ratio", "ttft http_finishes",
     "Share of the requests whose client left before the first token"),
    ("failed_requests_per_second", "queue.failed_per_second", "http_5xx finished_error rejections",
     "Requests that failed (5xx, error finishes, rejections)"),
    ("kv_cache_time_to_full_seconds", "kv_cache.time_to_full_seconds", "kv_usage",
     "Time until the KV cache is full if it goes on filling as it did"),
    ("preemptions_per_second", "kv_cache.preemptions_per_second", "preemptions",
     "Requests put off in mid-answer for want of KV cache"),
    ("prefix_cache_hit_ratio", "tokens.prefix_hit_ratio", "prefix_hits prefix_queries",
     "Share of the prompt tokens that were found in the prefix cache"),
    ("prompt_tokens_per_second", "tokens.prompt_per_second", "prompt_tokens",
     "Prompt tokens, cached ones included,"),
    ("generation_tokens_per_second", "tokens.generation_per_second", "generation_tokens",
     "Output tokens"),
    ("prompt_tokens_mean", "tokens.prompt_mean", "prompt_length prompt_tokens",
     "Mean prompt tokens a request"),
    ("output_tokens_mean", "tokens.output_mean", "output_length",
     "Mean output tokens a finished request"),
    ("prefill_speed_tokens_per_second", "tokens.prefill_speed", "computed_prompt_length prefill",
     "Computed prompt tokens a second of prefill of the requests that finished"),
    ("decode_speed_tokens_per_second", "tokens.decode_speed", "tpot",
     "Output tokens a second that one user sees (1 / mean time per output token)"),
    ("prefill_time_ratio", "prefill_time_ratio", "computed_prompt_tokens prefill iteration_tokens",
     "Prefill's share of the engine's time"),
    ("speculation_acceptance_ratio", "speculation.acceptance_ratio", "spec_accepted_tokens spec_draft_tokens",
     "Share of the draft tokens that were accepted"),
)  # fmt: skip
_GAUGES: tuple[tuple[str, str, str, str], ...] = (
    ("running_requests", "queue.running", "running", "Requests in the engine's batch"),
    ("waiting_requests", "queue.waiting", "waiting", "Requests waiting to be scheduled"),
    ("waiting_deferred_requests", "queue.waiting_deferred", "waiting_deferred",
     "Requests waiting for something other than capacity"),
    ("kv_cache_usage_ratio", "kv_cache.usage_ratio", "kv_usage",
     "Share of the KV cache in use (of a model's engines the fullest)"),
)  # fmt: skip

# Exported for each window, with its label.
WINDOW_ROWS: tuple[Row[Windowed], ...] = (
    *_LATENCY_ROWS,
    _phases("phase_mean_seconds", "mean_seconds", "Exact mean time in a phase of the finished requests"),
    _phases("phase_share_ratio", "share", "A phase's share of the sum of the known phase means"),
    *(_number(name, path, what, _OVER, signals) for name, path, signals, what in _RATES),
)
# The same in every window: exported once, without the label.
NOW_ROWS: tuple[Row[Windowed], ...] = tuple(
    _number(name, path, what, _LAST, signals) for name, path, signals, what in _GAUGES
)
