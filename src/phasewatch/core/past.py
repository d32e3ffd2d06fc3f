"""An engine's own past, kept in the process: how fast it decoded and prefilled at which batch and context.

It survives restarts of the engine: that is when flags change, and the comparison is wanted most.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log
from statistics import median

from phasewatch.core.model import Numbers, Step, Window
from phasewatch.core.settings import Thresholds
from phasewatch.core.window import scrapes

_REMEMBERED_WINDOWS = 2000  # hours at one a round
_REMEMBERED_PACES = 200  # of each load
_ENOUGH = 2  # one alone may be a transition
_ENOUGH_STEPS = 3
_ENOUGH_GAPS = 5  # for an interval's mean to be a pace
# A low quartile: an hour of trouble in the past must not become what is normal.
_QUARTILE = 0.25

Load = tuple[int, int | None]  # bands of batch and context


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per token at a load. batch: requests a step serves; context: tokens each of them carries."""

    at: float
    batch: float
    context: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Moment:
    """One window of one engine. pace: ITL without prefill's share, None where that is unknown."""

    at: float
    batch: float
    running_max: float
    context: float | None
    pace: float | None
    tpot: float | None
    speculating: bool
    seconds_per_prompt_token: float | None


@dataclass(frozen=True, slots=True)
class PastView:
    """What the past says of the present window; None where it has nothing comparable.

    unloaded_pace: at running <= 2. same_pace: what the present pace would be, had loads like the present ones taken
    what they took before. shorter_pace, shorter_context: the same for this batch with contexts at most half as long.
    tpot_without_speculation: at this batch. All in seconds.
    """

    unloaded_pace: float | None = None
    same_pace: float | None = None
    shorter_pace: float | None = None
    shorter_context: float | None = None
    tpot_without_speculation: float | None = None


class Past:
    """A bounded memory. Windows that overlap the one being judged are not its past."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._width = log(thresholds.alike_ratio)
        self._windows: deque[Moment] = deque(maxlen=_REMEMBERED_WINDOWS)
        # Intervals without a prompt show the pace exactly; busy engines have none, their windows must do.
        self._steps: dict[Load, deque[Pace]] = {}
        self._means: dict[Load, deque[Pace]] = {}
        self._unloaded: deque[float] = deque(maxlen=_REMEMBERED_PACES)

    def remember_step(self, step: Step, context: float | None) -> None:
        """An interval, where it is nothing but decode."""
        pace = decode_pace(step, context)
        if pace is not None:
            self._add(self._steps, pace)
            if pace.batch <= 2 and max(step.before.get("running", 0.0), step.after.get("running", 0.0)) <= 2:
                self._unloaded.append(pace.seconds)

    def remember(self, moment: Moment) -> None:
        """A window."""
        self._windows.append(moment)
        if moment.pace is not None:
            self._add(self._means, Pace(moment.at, moment.batch, moment.context, moment.pace))
            if moment.running_max <= 2:
                self._unloaded.append(moment.pace)

    def seconds_per_prompt_token(self, before: float) -> float | None:
        """At running <= 1: nothing else took part in those prefills."""
        alone = (one for one in self._windows if one.at <= before and one.running_max <= 1)
        return _low(one.seconds_per_prompt_token for one in alone)

    def view(self, now: Moment, steps: Sequence[Step]) -> PastView:
        """What is comparable with `now`, the window of `steps`, among what ended before it began."""
        before = steps[0].start
        paces = [pace for step in steps if (pace := decode_pace(step, now.context)) is not None]
        memory: Mapping[Load, deque[Pace]] = self._steps
        if len(paces) < _ENOUGH_STEPS:
            paces = [] if now.pace is None else [Pace(now.at, now.batch, now.context, now.pace)]
            memory = self._means
        same, _ = self._reference(paces, memory, before, shorter=False)
        shorter, context = self._reference(paces, memory, before, shorter=True)
        band = self._band(now.batch)
        plain = (
            one.tpot
            for one in self._windows
            if one.at <= before and not one.speculating and abs(self._band(one.batch) - band) <= 1
        )
        return PastView(
            unloaded_pace=_low(self._unloaded),
            same_pace=None if same is None or now.pace is None else now.pace / same,
            shorter_pace=None if shorter is None or now.pace is None else now.pace / shorter,
            shorter_context=context,
            tpot_without_speculation=_low(plain),
        )

    def _reference(
        self, paces: Sequence[Pace], memory: Mapping[Load, deque[Pace]], before: float, *, shorter: bool
    ) -> tuple[float | None, float | None]:
        """(how many times slower than before at the same loads, the contexts of then); medians over the loads."""
        by_load: dict[Load, list[float]] = {}
        for pace in paces:
            by_load.setdefault(self._load(pace), []).append(pace.seconds)
        ratios: list[float] = []
        contexts: list[float] = []
        for load, seconds in by_load.items():
            then = [
                pace
                for other, known in memory.items()
                if self._comparable(load, other, shorter=shorter)
                for pace in known
                if pace.at <= before
            ]
            usual = _low(pace.seconds for pace in then)
            if usual:
                ratios.extend([median(seconds) / usual] * len(seconds))
                contexts.extend(pace.context for pace in then if pace.context is not None)
        if not ratios:
            return None, None
        return median(ratios), median(contexts) if contexts else None

    @staticmethod
    def _comparable(load: Load, other: Load, *, shorter: bool) -> bool:
        """Neighbouring bands are the same load; three bands below is about half."""
        if abs(load[0] - other[0]) > 1 or load[1] is None or other[1] is None:
            return False
        return other[1] <= load[1] - 3 if shorter else abs(load[1] - other[1]) <= 1

    def _add(self, memory: dict[Load, deque[Pace]], pace: Pace) -> None:
        memory.setdefault(self._load(pace), deque(maxlen=_REMEMBERED_PACES)).append(pace)

    def _load(self, pace: Pace) -> Load:
        return self._band(pace.batch), None if pace.context is None else self._band(pace.context)

    def _band(self, value: float) -> int:
        return floor(log(max(value, 1.0)) / self._width)


def decode_pace(step: Step, context: float | None) -> Pace | None:
    """The pace of an interval in which no prompt was computed and nobody evicted; None for any other."""
    itl, first, iterations = (step.histograms.get(name) for name in ("itl", "ttft", "iteration_tokens"))
    if itl is None or not itl.total or itl.count < _ENOUGH_GAPS or first is None or first.count > 0:
        return None
    if step.increases.get("prompt_tokens", 0.0) > 0 or step.increases.get("preemptions", 0.0) > 0:
        return None
    running = (step.before.get("running", 0.0) + step.after.get("running", 0.0)) / 2
    # Several API servers count iterations more than once; a page without a start time may be theirs.
    exact = iterations is not None and iterations.count > 0 and "start_time" in step.after
    batch = itl.count / iterations.count if exact and iterations else running
    return Pace(step.end, batch, context, itl.total / itl.count)


def _low(values: Iterable[float | None]) -> float | None:
    """The low quartile of the known values; None of too few."""
    known = sorted(value for value in values if value is not None)
    return known[int(_QUARTILE * (len(known) - 1))] if len(known) >= _ENOUGH else None


def moment(at: float, window: Window, numbers: Numbers) -> Moment:
    """The present window as a moment to compare and to remember."""
    running = [page["running"] for page in scrapes(window) if page.get("running", 0.0) > 0]
    itl, rho = numbers.itl_seconds.mean, numbers.rho
    return Moment(
        at=at,
        batch=sum(running) / len(running) if running else 0.0,
        running_max=window.gauges["running"].max if "running" in window.gauges else 0.0,
        context=arriving_context(window, numbers),
        pace=None if itl is None or rho is None or rho >= 1 else itl * (1 - rho),  # 1 leaves no time for a pace
        tpot=numbers.tpot_seconds.mean,
        speculating=window.increases.get("spec_drafts", 0.0) > 0,
        seconds_per_prompt_token=None if not numbers.tokens.prefill_speed else 1 / numbers.tokens.prefill_speed,
    )


def arriving_context(window: Window, numbers: Numbers) -> float | None:
    """Tokens a running request carries on average: prompt of those admitted (known at once, not only when they
    finish) + half the mean output."""
    first = window.histograms.get("ttft")
    prompts = window.increases.get("prompt_tokens")
    if first is None or first.count <= 0 or prompts is None:
        return numbers.tokens.context_mean
    return prompts / first.count + (numbers.tokens.output_mean or 0.0) / 2
