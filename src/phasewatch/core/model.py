"""The frozen values that flow through phasewatch. Names carry the unit; None means unknown, never zero.

The dataclasses from Estimate down are the document `phasewatch/v1`: field names are its keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

State = Literal[
    "serving", "idle", "starting", "warming_up", "asleep", "no_engine_metrics", "stale", "down", "internal_error"
]
STATES: tuple[State, ...] = get_args(State)
TROUBLE: tuple[State, ...] = ("no_engine_metrics", "stale", "down", "internal_error")  # wants a look, with no verdict
SUSPICIOUS = (
    "no_traffic",
    "open_connections",
)  # kinds of advisories of an engine without verdict that wants a look all the same
Confidence = Literal["high", "medium", "low"]
CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")
Severity = Literal["warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("warning", "critical")
Result = Literal["met", "missed", "too_few", "cannot_tell", "no_data"]
JUDGED: tuple[Result, ...] = ("met", "missed")  # of an objective; what is neither could not be judged


AnomalyKind = Literal[
    "unreadable_line",  # a line that is no sample
    "repeated_series",  # the same series twice on a page
    "impossible_value",  # a number that its kind cannot have
    "broken_histogram",  # buckets that make no histogram
    "content_type",  # a page that is not declared as metrics
    "page_size",  # a page near the largest that is read
    "page_order",  # a page that is not later than the one before
    "partial_page",  # a page that lacks the engine families that the one before had
    "several_processes",  # pages of several processes by turns
    "inconsistent_flows",  # first tokens, finishes, answers and requests in flight that do not add up
    "contradiction",  # figures that cannot all be true
]
ANOMALIES: tuple[AnomalyKind, ...] = get_args(AnomalyKind)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What is odd about a target, of one kind. count: on one page, or since the start. last: one line about the last.

    present: whether the last page still had it.
    """

    kind: AnomalyKind
    count: int
    last: str
    present: bool = True


EventKind = Literal[
    "start",  # first seen before it made any token
    "restart",  # the process began anew
    "wake_up",  # from sleep mode
    "model",  # the target serves another model
    "version",  # its configuration has other keys than before the restart
    "capacity",  # of the KV cache, in tokens
    "adapters",  # LoRA adapters seen so far
    "configuration",  # values that changed
]
EVENTS: tuple[EventKind, ...] = get_args(EventKind)
COLD_AFTER: tuple[EventKind, ...] = ("start", "restart", "wake_up")


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to an engine between two pages, seen at the second one. before, after: what changed, None where
    nothing is known; of start and restart when the process began (Unix time)."""

    at: float
    kind: EventKind
    before: float | str | None = None
    after: float | str | None = None


class EngineKey(NamedTuple):
    """One engine of one model on one target. `engine` is vLLM's label, for Ray WorkerId (/ReplicaId), else "0"."""

    target: str
    model_name: str
    engine: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram, or what it grew by.

    bounds: ascending upper edges, the last is +Inf. counts: cumulative, same length. total: sum of the
    observations in the metric's unit, None where the page has no _sum. exact_mean: what follows from these, once
    asked for (measures.histogram.mean).
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float | None
    exact_mean: Any = field(default=None, init=False, repr=False, compare=False)

    @property
    def count(self) -> float:
        return self.counts[-1]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one page says of one engine, by the catalog's signal names. at: seconds on a monotonic clock.

    labels: what its configuration and the like say as text, by label; the same object while the page's layout stays.
    """

    at: float
    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """One parsed page: engines by (model_name, engine).

    kind: "engine" when any engine family has a sample, "router" when only a router's re-exported gauges are there,
    "declared" when engine families have HELP/TYPE but no sample, else "none". anomalies: what is odd
    about the page, one for each kind. http: counters of the web server (page wide, they carry no engine label), also
    present when kind is not "engine". foreign: where kind is "none", whose page it is and what to scrape instead, in
    one line; None where nothing tells.
    """

    at: float
    engines: Mapping[tuple[str, str], Snapshot]
    kind: Literal["engine", "router", "declared", "none"]
    anomalies: tuple[Anomaly, ...]
    http: Mapping[str, float]
    foreign: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """What changed between two good pages of one engine: the intervals a Window is made of.

    start, end: seconds on the pages' clock. running, waiting and the other gauges are the values at both ends. pages:
    both, where all counters and histograms of one went on in the other; else None. batch: what follows from these,
    once asked for (measures.phases).
    """

    start: float
    end: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    increases: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    restarted: bool
    pages: tuple[Snapshot, Snapshot] | None = field(default=None, repr=False)
    batch: float | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class GaugeWindow:
    """A gauge over a window: last value, time-weighted mean, max."""

    last: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class Window:
    """What changed over `seconds` really covered. Absent: gauges its last page lacks, other signals no page had.

    rows: a histogram's increases step by step as an array, where they are kept (measures.window_arrays: Rows).
    """

    seconds: float
    steps: Sequence[Step]
    gauges: Mapping[str, GaugeWindow]
    increases: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    restarts: int
    rows: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)


# --- the document phasewatch/v1 ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """A percentile in seconds: the true value lies in [low, high]; high is None above the last finite edge."""

    value: float
    low: float
    high: float | None
    censored: Literal["below_first_edge", "above_last_edge"] | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency over a window. count 0 means nothing was observed: everything else is None."""

    count: int
    mean: float | None = None
    p50: Estimate | None = None
    p90: Estimate | None = None
    p95: Estimate | None = None
    p99: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """mean_seconds a request spends in a phase, and its share of the request's whole time (e2e)."""

    mean_seconds: float | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Phases:
    """unexplained: what no phase accounts for; in a steady window that is `frontend`, but for the wait for running
    steps."""

    queue: Phase = Phase()
    prefill: Phase = Phase()
    decode: Phase = Phase()
    frontend: Phase = Phase()
    unexplained: Phase = Phase()


@dataclass(frozen=True, slots=True)
class Queue:
    """running, waiting: last value. expected_wait_censored: the value is only a lower bound (nobody was admitted).

    oldest_unanswered_seconds, oldest_running_seconds: lower bounds, as of the last page (measures.ages).
    """

    running: float | None = None
    waiting: float | None = None
    waiting_deferred: float | None = None
    growth_per_second: float | None = None
    arrivals_per_second: float | None = None
    admissions_per_second: float | None = None
    expected_wait_seconds: float | None = None
    expected_wait_censored: bool | None = None
    gave_up_ratio: float | None = None
    gave_up_before_first_token_ratio: float | None = None
    failed_per_second: float | None = None
    oldest_unanswered_seconds: float | None = None
    oldest_running_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class KvCache:
    usage_ratio: float | None = None
    capacity_tokens: float | None = None
    preemptions_per_second: float | None = None
    time_to_full_seconds: float | None = None
    free_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    prompt_per_second: float | None = None
    computed_prompt_per_second: float | None = None
    generation_per_second: float | None = None
    prefix_hit_ratio: float | None = None
    prompt_mean: float | None = None
    computed_prompt_mean: float | None = None
    output_mean: float | None = None
    context_mean: float | None = None
    prefill_speed: float | None = None
    decode_speed: float | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    acceptance_ratio: float | None = None
    mean_accepted_length: float | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """Everything measured over one window of one engine (or a model's engines merged): each a row of measure_table."""

    window_seconds: float
    ttft_seconds: Latency = Latency(0)
    itl_seconds: Latency = Latency(0)
    tpot_seconds: Latency = Latency(0)
    e2e_seconds: Latency = Latency(0)
    itl_stalled_ratio: float | None = None
    phases: Phases = Phases()
    queue: Queue = Queue()
    kv_cache: KvCache = KvCache()
    tokens: Tokens = Tokens()
    prefill_time_ratio: float | None = None
    speculation: Speculation = Speculation()

    @property
    def latencies(self) -> tuple[Latency, ...]:
        return self.ttft_seconds, self.itl_seconds, self.tpot_seconds, self.e2e_seconds


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change. when: "now", "restart" or "capacity". since: the first vLLM version that has the flag."""

    change: str
    why: str
    when: Literal["now", "restart", "capacity"]
    side_effect: str
    since: str | None = None


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """What can be said of one objective. value: against the limit (itl_stall: a share); None where nothing is known.

    surely: whatever the buckets hide. over: observations over the limit, interpolated; where the limit lies above the
    last finite edge, those that may lie over it. span_seconds: how far back it took to judge. severity: of a missed
    one. slowest: the slowest observation is at least this, where that is worth a word; None elsewhere.
    """

    objective: str
    limit_seconds: float
    critical_seconds: float
    result: Result
    surely: bool
    value: Estimate | None
    observations: int
    over: float
    span_seconds: float
    severity: Severity | None = None
    slowest: float | None = None

    @property
    def judged(self) -> bool:
        return self.result in JUDGED


@dataclass(frozen=True, slots=True)
class Symptom:
    """What users feel. objective: its name, or expected_wait, unanswered, still_running, progress, requests_failing,
    gave_up, kv_transfers_failing.

    value: what was measured against the limit; surely: whatever the bucket hides, the limit is missed.
    """

    objective: str
    limit_seconds: float | None
    value: Estimate | None
    surely: bool
    severity: Severity


@dataclass(frozen=True, slots=True)
class Cause:
    """A proven (or competing) explanation of one symptom. score: share of the excess it accounts for, 0 to 1."""

    verdict: str
    symptom: str
    score: float
    confidence: Confidence
    evidence: Mapping[str, float | str]
    summary: str
    remedies: tuple[Remedy, ...]
    refuted_by: str
    easing: bool = False
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Advisory:
    """True without a symptom: shown, never a verdict, never an alert."""

    kind: str
    evidence: Mapping[str, float | str]
    summary: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake of phasewatch's own that was caught, and cost one engine or one model's row. No part of the document.

    doing: what was under way. error: the exception's type and message, in one line. where: file, line and function.
    """

    doing: str
    error: str
    where: str
    traceback: str

    @property
    def summary(self) -> str:
        return f"phasewatch itself failed while {self.doing} ({self.where}: {self.error}). Please report this."


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One engine, now. windows: Numbers by window length in seconds, the first is the one verdicts use.

    verdict is None unless serving or a liveness verdict is proven. since: when the verdict was first seen (the
    page clock of the recording or the process; the document shows wall time where that is known).
    """

    key: EngineKey
    role: str | None
    state: State
    gauges_stale: bool
    verdict: str | None
    confidence: Confidence | None
    score: float | None
    summary: str
    since: float | None
    previous_verdict: str | None
    causes: tuple[Cause, ...]
    symptoms: tuple[Symptom, ...]
    advisories: tuple[Advisory, ...]
    missing: tuple[str, ...]
    windows: Mapping[float, Numbers]
    restarts: int
    events: tuple[Event, ...] = ()
    objective_counts: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    fault: Fault | None = None
    objectives: tuple[ObjectiveResult, ...] = ()

    @property
    def numbers(self) -> Numbers | None:
        return next(iter(self.windows.values()), None)

    @property
    def wants_a_look(self) -> bool:
        """Whether something may be wrong with it: a verdict but healthy, a state of trouble, a silence that siblings
        make suspicious."""
        return (
            self.verdict not in (None, "healthy")
            or self.state in TROUBLE
            or any(one.kind in SUSPICIOUS for one in self.advisories)
        )


@dataclass(frozen=True, slots=True)
class ModelReport:
    """A model's engines (of one role) merged, as each row of measure_table says."""

    model_name: str
    role: str | None
    engines: Mapping[str, int]
    verdict: str | None
    confidence: Confidence | None
    causes: tuple[Cause, ...]
    symptoms: tuple[Symptom, ...]
    windows: Mapping[float, Numbers]
    kv_usage_max: float | None
    kv_usage_mean: float | None
    worst_engine: str | None
    outliers: tuple[str, ...]
    fault: Fault | None = None
    objectives: tuple[ObjectiveResult, ...] = ()

    @property
    def numbers(self) -> Numbers | None:
        return next(iter(self.windows.values()), None)


@dataclass(frozen=True, slots=True)
class TargetReport:
    """One target's scrapes. scrape_failures: count by reason since start (a closed set, see sources.http).

    internal_errors: evaluations since start in which a mistake of phasewatch's own cost one of its engines' reports.
    anomalies: what was odd since the start, one for each kind found. starting_seconds: of a target that has never
    answered and may still be loading its model (state starting), how long it has been asked. scrape_timeout_seconds:
    how long a scrape may take; None where nothing is scraped.
    """

    target: str
    url: str | None
    state: State
    last_error: str | None
    last_success_age_seconds: float | None
    scrape_seconds: float | None
    missing_signals: int = 0
    restarts: int = 0
    scrape_failures: Mapping[str, int] = field(default_factory=dict)
    internal_errors: int = 0
    anomalies: tuple[Anomaly, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    starting_seconds: float | None = None
    scrape_timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The whole truth of one round: one immutable value, replaced once per round."""

    at: float
    window_seconds: float
    engines: tuple[EngineReport, ...] = ()
    models: tuple[ModelReport, ...] = ()
    targets: tuple[TargetReport, ...] = ()
