"""What an operator may set: windows, objectives, thresholds. Every number a rule compares with has one field here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from phasewatch.core.durations import LONGEST_SECONDS, parse_duration

FAMILIES: tuple[str, ...] = ("ttft", "itl", "tpot", "e2e")
STATISTICS: tuple[str, ...] = ("mean", "p50", "p90", "p95", "p99")
OBJECTIVE_NAMES: tuple[str, ...] = (*(f"{f}_{s}" for f in FAMILIES for s in STATISTICS), "itl_stall")

Estimator = Literal["sums", "interpolation"]


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits in seconds: verdicts and value / limit use warning; critical only raises the severity.

    Raises ValueError for one that is not above 0, or a critical one below the warning.
    """

    warning: float
    critical: float

    def __post_init__(self) -> None:
        if not 0 < self.warning <= self.critical:
            raise ValueError(f"limits of {self.warning:g} and {self.critical:g} s: above 0, critical not below warning")


OFF = Limit(float("inf"), float("inf"))  # written where an objective of a more general place is switched off


Limits = Mapping[str, Limit]

_STALL = Limit(1.0, 1.0)

# MLPerf Inference server limits, GuideLLM, reading speed: the source of each row is in docs and conventions 2.5.
PROFILES: Mapping[str, Limits] = {
    "interactive": {"ttft_p99": Limit(0.5, 1.0), "itl_p99": Limit(0.05, 0.1), "itl_stall": _STALL},
    "standard": {"ttft_p99": Limit(2.5, 10.0), "itl_p99": Limit(0.1, 0.2), "itl_stall": _STALL},
    "large": {"ttft_p99": Limit(7.5, 20.0), "itl_p99": Limit(0.2, 0.3), "itl_stall": _STALL},
    "batch": {},
}


def override(limits: Limits, changes: Limits) -> Limits:
    """`changes` over `limits`. Naming any objective of a family (ttft, itl with itl_stall, tpot, e2e) replaces that
    family: who asks for itl_mean does not want the profile's itl_p99 judged as well; the other families stay."""
    replaced = {name.partition("_")[0] for name in changes}
    kept = {name: limit for name, limit in limits.items() if name.partition("_")[0] not in replaced}
    return kept | dict(changes)


def stall_seconds(limits: Limits) -> float:
    """Gaps longer than this are stalls, whether or not they are an objective."""
    return limits.get("itl_stall", _STALL).warning


@dataclass(frozen=True, slots=True)
class Objectives:
    """Limits for every model, and changes for some. An empty mapping judges nothing."""

    limits: Limits = field(default_factory=lambda: PROFILES["standard"])
    by_model: Mapping[str, Limits] = field(default_factory=dict)

    def of(self, model_name: str) -> Limits:
        limits = override(self.limits, self.by_model.get(model_name, {}))
        return {name: limit for name, limit in limits.items() if limit != OFF}


class ObjectiveError(ValueError):
    """An objective that cannot be read: one line that says what and how to write it."""


def parse_objectives(texts: Iterable[str]) -> Objectives:
    """`NAME=DURATION` or `MODEL:NAME=DURATION` (both limits set to it) over profile standard.

    MODEL may contain colons and slashes: NAME is what follows the last colon before the last "=".
    Raises ObjectiveError.
    """
    general: dict[str, Limit] = {}
    by_model: dict[str, dict[str, Limit]] = {}
    for text in texts:
        left, equals, duration = text.rpartition("=")
        model, colon, name = left.rpartition(":")
        if not equals or name not in OBJECTIVE_NAMES or (colon and not model):
            raise ObjectiveError(
                f"objective {text!r}: write NAME=DURATION or MODEL:NAME=DURATION, such as ttft_p99=2.5s;"
                f" NAME is one of {', '.join(OBJECTIVE_NAMES)}"
            )
        try:
            seconds = parse_duration(duration)
        except ValueError as error:
            raise ObjectiveError(f"objective {text!r}: {error}") from None
        if seconds <= 0:
            raise ObjectiveError(f"objective {text!r}: the limit must be above zero")
        given = by_model.setdefault(model, {}) if model else general
        if name in given:
            raise ObjectiveError(f"objective {text!r}: {left} is given twice; keep one")
        given[name] = Limit(seconds, seconds)
    return Objectives(override(Objectives().limits, general), by_model)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a kind of threshold may be: from low to high, low itself only where `least`, high only where `most`."""

    low: float
    high: float
    meaning: str
    least: bool = False
    most: bool = True

    def holds(self, value: float) -> bool:
        """False for NaN too."""
        above = value >= self.low if self.least else value > self.low
        return above and (value <= self.high if self.most else value < self.high)

    def __str__(self) -> str:
        low = f"{'at least' if self.least else 'above'} {self.low:.12g}"
        return f"{self.meaning}, {low} and {'at most' if self.most else 'below'} {self.high:.12g}"


# At 0 a share is reached by nothing at all, a ratio of 1 by what is equal.
_KINDS = {
    "share": Allowed(0, 1, "a share of a whole"),
    "part": Allowed(0, 1, "a share that can be exceeded", most=False),
    "margin": Allowed(0, 1, "a difference between two shares", least=True, most=False),
    "ratio": Allowed(1, 1000, "a ratio of a larger number to a smaller"),
    "times": Allowed(1, 1000, "a factor", least=True),
    "count": Allowed(1, 1_000_000, "a count", least=True),
    "seconds": Allowed(0, LONGEST_SECONDS, "a time in seconds"),
}


def _kind(name: str) -> Callable[[float], Any]:
    return lambda default: field(default=default, metadata={"allowed": _KINDS[name]})


_share, _part, _margin, _ratio, _times, _count, _seconds = map(_kind, _KINDS)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Numbers the rules compare with, each with its reason. All can be overridden in the configuration.

    Raises ValueError for a number outside what its kind allows.
    """

    proven_score: float = _share(0.5)  # a cause explains at least half of the time above the limit
    tie_score: float = _margin(0.1)  # scores this near are equal: the earlier row wins
    sure_score: float = _share(0.8)  # what confidence "high" asks for
    min_over: int = _count(2)  # one slow request is no incident
    enough_observations: int = _count(20)  # an objective is judged as far back as it takes to have so many
    longest_span_seconds: float = _seconds(1800.0)  # and no further: what users felt half an hour ago is over
    sure_observations: int = _count(100)  # a p99 of fewer is the slowest one
    critical_over: int = _count(10)  # nobody is woken by fewer requests
    critical_share: float = _share(0.01)  # nor by a smaller share of them than a p99 leaves out
    stalled_share: float = _share(0.01)  # of the streaming time, the meaning of a p99
    share_of_requests: float = _share(0.01)  # failing or given up before the first token
    few_finishes: int = _count(5)  # below this, finish-based phases are anecdotes
    enough_finishes: int = _count(20)  # below this, one of them moves a mean by more than 5 %
    steady_difference: float = _margin(0.2)  # first tokens against finishes in a steady window
    most_scrapes: float = _part(0.5)
    at_ceiling: float = _share(0.8)  # running while requests wait / its maximum
    prefill_bound_ratio: float = _share(0.5)  # more than half of the engine's time is prefill
    saturated_prefill_ratio: float = _share(0.8)
    kv_full_ratio: float = _share(0.95)  # only where the capacity in tokens is unknown
    stall_ratio: float = _ratio(10.0)  # p99 / p50 of ITL: a default prefill chunk against one decode step
    # A step takes in whoever waits, if there is room, and computes a short prompt: what takes more than a few is long.
    few_steps: float = _times(5.0)
    half_objective: float = _share(0.5)  # pace without prefill against a p99 limit: a p99 is not a mean
    stall_seconds: float = _seconds(10.0)
    stall_scrapes: int = _count(3)
    stall_longest_steps: float = _times(3.0)
    stall_before_first_finish_seconds: float = _seconds(60.0)
    admission_seconds: float = _seconds(60.0)
    admission_before_first_finish_seconds: float = _seconds(600.0)
    admission_drop_seconds: float = _seconds(10.0)
    connections_above_rest: float = _count(3.0)
    idle_connections: float = _count(10.0)  # beyond those at rest: a few files and sockets come and go
    agree_seconds: float = _seconds(10.0)  # of agreeing opinions make a verdict: two scrapes at the default interval
    warm_pages: int = _count(3)
    warm_seconds: float = _seconds(10.0)
    down_failures: int = _count(3)
    # A step takes a + b x batch + c x batch x context: at most this ratio slower for a load this much larger.
    alike_ratio: float = _ratio(1.25)
    slower_ratio: float = _ratio(1.25)  # Splitwise's tolerated slowdown of the time between tokens at p50
    symptom_ratio: float = _ratio(1.5)  # slower than own past or peers is a symptom by itself: Splitwise's at p90
    low_acceptance: float = _ratio(1.5)  # tokens a step with speculation: below it the drafts do not pay
    # Prompt tokens computed in the time of a decode step, at least: a processor computes 10 (CPUs) to 300 (GPUs) tokens
    # while it reads the weights once.
    prefill_tokens_a_step: float = _times(4.0)
    cold_seconds: float = _seconds(60.0)  # after the first request since the start
    traffic_ratio: float = _ratio(1.2)  # arrivals of replicas this near are equal traffic
    forecast_seconds: float = _seconds(600.0)  # a KV cache full sooner than this is worth a word
    long_running_seconds: float = _seconds(600.0)  # without an e2e limit: an answer of ten minutes is worth a word
    held_share: float = _share(0.1)  # of the KV cache, held by nobody: as much less of every load fits
    worth_a_restart: float = _share(0.1)  # of the seconds: what gains less is lost in what loads differ from day to day
    busy_core: float = _share(0.8)  # CPU seconds a second of the API server near one core

    def __post_init__(self) -> None:
        for one in fields(self):
            if problem := self.problem(one.name, getattr(self, one.name)):
                raise ValueError(f"{one.name}: {problem}")

    @classmethod
    def problem(cls, name: str, value: object) -> str | None:
        """What is wrong with a value for a field, and what to write; None where it may be. Raises KeyError."""
        default, allowed = {one.name: (one.default, one.metadata["allowed"]) for one in fields(cls)}[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number, without unit; the default is {default:g}"
        if isinstance(default, int) and not isinstance(value, int):
            return f"must be a whole number, not {value:g}; the default is {default}"
        if not allowed.holds(value):
            return f"must be {allowed}, not {value:g}; the default is {default:g}"
        return None


@dataclass(frozen=True, slots=True)
class Settings:
    """windows: seconds; the first is the one verdicts use. estimator: how percentile values are read. startup_grace:
    seconds for which a target that has never answered is starting, not down.

    Raises ValueError for windows that cannot be.
    """

    windows: tuple[float, ...] = (60.0, 300.0)
    objectives: Objectives = field(default_factory=Objectives)
    thresholds: Thresholds = field(default_factory=Thresholds)
    estimator: Estimator = "sums"
    # Weights of hundreds of GB from a network disk, then compilation and graph capture: minutes to half an hour.
    startup_grace: float = 1800.0

    def __post_init__(self) -> None:
        if not self.windows or not all(0 < seconds <= LONGEST_SECONDS for seconds in self.windows):
            raise ValueError(f"windows {self.windows}: at least one, each above 0 and at most {LONGEST_SECONDS:g} s")

    def stall_seconds(self, model_name: str) -> float:
        """What counts as a stall on this model."""
        return stall_seconds(self.objectives.of(model_name))
