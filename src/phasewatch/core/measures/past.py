"""An engine's own past, kept in the process: how fast it decoded and prefilled at which batch and context.

It survives restarts of the engine: that is when flags change, and the comparison is wanted most.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, islice, takewhile
from math import ceil, exp, floor, log
from operator import attrgetter, itemgetter
from statistics import mean, median

from phasewatch.core.measures.gaps import unfinished_prompts
from phasewatch.core.measures.phases import computed_prompt_tokens, pace_without_prefill, shared
from phasewatch.core.measures.window import scrapes
from phasewatch.core.model import Numbers, Step, Window
from phasewatch.core.settings import Thresholds

_REMEMBERED_WINDOWS = 2000  # hours at one a round
_REMEMBERED_PACES = 200  # of each load
_ENOUGH = 2  # one alone may be a transition
_ENOUGH_STEPS = 3
_APART_SECONDS = 10.0
_MINUTE = 60.0
_COVERED = 20.0  # seconds of a minute: less is an episode of a few requests
_HIGH = 0.9
_TWICE = 3  # bands: 1.25 to the third is about two
_EXTRAPOLATED = 4.0  # times the largest batch known: further the slope's own error is as large as what it tells
_ENOUGH_GAPS = 5  # for an interval's mean to be a pace
# The best minutes of those seen: what the engine can do, even where trouble has lasted longer than calm.
_LOW = 0.1
_MIXED_RHO = 0.5  # with prefill taking more of the time, what is left for a pace is mostly error

Load = tuple[int, int | None, bool]  # bands of batch and context; whether a gap is of a step with drafts


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per token at a load. batch: requests a step serves; context: tokens each of them carries; covers: the
    seconds of time that it is the mean of."""

    at: float
    batch: float
    context: float | None
    seconds: float
    covers: float
    speculating: bool = False  # then a gap is of a step that may yield several tokens


@dataclass(frozen=True, slots=True)
class Moment:
    """One window of one engine. pace: ITL without prefill's share, None where that is unknown."""

    at: float
    batch: float
    running_max: float
    context: float | None
    output: float | None
    pace: float | None
    tpot: float | None
    speculating: bool
    seconds_per_prompt_token: float | None


class _Kept:
    """The last paces of a kind, by the minute in which they ended."""

    __slots__ = ("minutes", "paces")

    def __init__(self) -> None:
        self.paces: deque[Pace] = deque()
        self.minutes: dict[int, list[Pace]] = {}

    def add(self, pace: Pace) -> None:
        if len(self.paces) == _REMEMBERED_PACES:
            minute = _minute_of(self.paces.popleft().at)
            del self.minutes[minute][0]
            if not self.minutes[minute]:
                del self.minutes[minute]
        self.paces.append(pace)
        self.minutes.setdefault(_minute_of(pace.at), []).append(pace)

    def until(self, before: float) -> Iterator[tuple[int, Sequence[Pace]]]:
        """Each minute with those of its paces that ended by then."""
        for minute, paces in self.minutes.items():
            if paces[-1].at <= before:
                yield minute, paces
            elif paces[0].at <= before:
                yield minute, [pace for pace in paces if pace.at <= before]


class Past:
    """A bounded memory. Windows that overlap the one being judged are not its past."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._width = log(thresholds.alike_ratio)
        self._clear = thresholds.symptom_ratio
        self._windows: deque[Moment] = deque(maxlen=_REMEMBERED_WINDOWS)
        # Of those at running <= 1 that know it, with the time: seconds per prompt token.
        self._alone: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED_WINDOWS)
        self._looked_up: dict[tuple[float, float], float | None] = {}
        self._step_seconds: dict[bool | None, float | None] = {}
        self._paces: dict[Load, _Kept] = {}
        self._unloaded = _Kept()
        # Of the loads that a load is compared with; and of some loads' paces, how many each minute has, when the last
        # of them ended, and their median.
        self._alike: dict[tuple[Load, bool], tuple[Load, ...]] = {}
        self._medians: dict[Hashable, dict[int, tuple[int, float, float]]] = {}
        self._admitted: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED_PACES)  # first tokens, prompt tokens
        self._now: Moment | None = None
        self._fresh = 0

    def remember_step(self, step: Step) -> None:
        """An interval between two pages, at the prefill speed of the last window."""
        first = step.histograms.get("ttft")
        if first is not None and first.count > 0 and "prompt_tokens" in step.increases:
            self._admitted.append((first.count, step.increases["prompt_tokens"]))
        pace = self._pace_of(step)
        if pace is not None:
            self._fresh += 1
            self._add(pace)
            if pace.batch <= 2 and max(step.before.get("running", 0.0), step.after.get("running", 0.0)) <= 2:
                self._add_unloaded(pace)

    def remember(self, moment: Moment) -> None:
        """A window, however often one is evaluated: windows that are nearly the same are one. Its pace is remembered
        only where its own intervals gave none: busy engines that are seldom asked have no interval of decode."""
        self._now = moment
        if self._windows and moment.at - self._windows[-1].at < _APART_SECONDS:
            return
        self._windows.append(moment)
        if moment.running_max <= 1 and moment.seconds_per_prompt_token is not None:
            self._alone.append((moment.at, moment.seconds_per_prompt_token))
        while self._alone and self._alone[0][0] < self._windows[0].at:
            self._alone.popleft()
        fresh, self._fresh = self._fresh, 0
        if moment.pace is not None and fresh < _ENOUGH:
            pace = _of_window(moment, moment.pace)
            self._add(pace)
            if moment.running_max <= 2:
                self._add_unloaded(pace)

    def seconds_per_prompt_token(self, before: float) -> float | None:
        """At running <= 1: nothing else took part in those prefills."""
        count = bisect_right(self._alone, before, key=itemgetter(0))
        if not count:
            return None
        of = self._alone[0][0], self._alone[count - 1][0]
        if of not in self._looked_up:
            if len(self._looked_up) > _REMEMBERED_PACES:
                self._looked_up.clear()
            self._looked_up[of] = _low([value for _, value in islice(self._alone, count)])
        return self._looked_up[of]

    def step_seconds(self, *, speculating: bool | None = None) -> float | None:
        """A decode step at running <= 2."""
        if speculating not in self._step_seconds:
            minutes: Mapping[int, Sequence[Pace]] = self._unloaded.minutes
            if speculating is not None:
                alike = {at: [one for one in paces if one.speculating == speculating] for at, paces in minutes.items()}
                minutes = {at: paces for at, paces in alike.items() if paces}
            self._step_seconds[speculating] = _usual(self._best_minute(speculating, minutes))
        return self._step_seconds[speculating]

    def view(self, now: Moment, steps: Sequence[Step]) -> "PastView":
        """What is comparable with `now`, the window of `steps`, among what ended before it began."""
        return PastView(self, now, steps[0].start)

    def compared(self, now: Moment, before: float, *, shorter: bool) -> tuple[float | None, float, float | None]:
        """`_reference` of the paces since `before`; of the window's own where those are few."""
        paces = [
            pace
            for kept in self._paces.values()
            for pace in reversed([*takewhile(lambda pace: pace.at > before, reversed(kept.paces))])
        ]
        if len(paces) < _ENOUGH_STEPS:
            paces = [] if now.pace is None else [_of_window(now, now.pace)]
        return self._reference(paces, before, shorter=shorter)

    def tpot_without_speculation(self, batch: float, before: float) -> float | None:
        band = self._band(batch)
        plain = (one for one in self._windows if one.tpot and one.at <= before and not one.speculating)
        return _low([one.tpot for one in plain if one.tpot and abs(self._band(one.batch) - band) <= 1])

    def _reference(
        self, paces: Sequence[Pace], before: float, *, shorter: bool
    ) -> tuple[float | None, float, float | None]:
        """(how many times slower than before at the same loads, how many times slower intervals could be then, where
        contexts are shorter the median of them)."""
        by_load: dict[Load, list[float]] = {}
        for pace in paces:
            by_load.setdefault(self._load(pace), []).append(pace.seconds)
        ratios: list[float] = []
        spreads: list[float] = []
        contexts: list[float] = []
        for load, seconds in by_load.items():
            alike = self._compared_with(load, shorter=shorter)
            minutes = self._minutes(alike, before)
            minute = self._best_minute(alike, minutes)
            known = [_usual(minute), None if shorter else self._extrapolated(load, before)]
            usual = min((one for one in known if one is not None), default=None)
            if usual:
                ratios.extend(one / usual for one in seconds)
                spreads.append(self._spread(minute))
                then = chain.from_iterable(minutes.values()) if shorter else ()
                contexts.extend(pace.context for pace in then if pace.context is not None)
        if not ratios:
            return None, 1.0, None
        return mean(ratios), max(spreads), median(contexts) if contexts else None

    def _spread(self, minute: Sequence[Pace]) -> float:
        """How far above their median intervals of that minute reached; a short episode proves only what is clear."""
        if sum(pace.covers for pace in minute) < _COVERED:
            return self._clear
        return minute[ceil(_HIGH * (len(minute) - 1))].seconds / _median(minute)

    def _extrapolated(self, load: Load, before: float) -> float | None:
        """What a larger batch than was usual should take: a step's time grows in a straight line with the batch.

        The least of the lines through two known batches at this context, one about twice the other, reaching up to
        four times the larger: a load that was only met in trouble does not hide that it was trouble.
        """
        known: dict[int, float] = {}
        for band in {other[0] for other in self._paces if other[0] < load[0] - 1}:
            alike = self._compared_with((band, *load[1:]), shorter=False)
            alike = tuple(other for other in alike if other[0] == band)
            usual = _usual(self._best_minute(alike, self._minutes(alike, before)))
            if usual is not None:
                known[band] = usual
        wanted = exp(load[0] * self._width)
        lines: list[float] = []
        for low, high in combinations(sorted(known), 2):
            small, large = exp(low * self._width), exp(high * self._width)
            if high - low >= _TWICE and wanted <= _EXTRAPOLATED * large:
                slope = max(0.0, known[high] - known[low]) / (large - small)
                lines.append(known[high] + slope * (wanted - large))
        return min(lines, default=None)

    def _compared_with(self, load: Load, *, shorter: bool) -> tuple[Load, ...]:
        key = load, shorter
        if key not in self._alike:
            self._alike[key] = tuple(other for other in self._paces if self._comparable(load, other, shorter=shorter))
        return self._alike[key]

    def _minutes(self, loads: Sequence[Load], before: float) -> Mapping[int, Sequence[Pace]]:
        """The paces of these loads that ended by then, by the minute."""
        minutes: dict[int, list[Pace]] = {}
        for load in loads:
            for minute, paces in self._paces[load].until(before):
                minutes.setdefault(minute, []).extend(paces)
        return minutes

    def _best_minute(self, of: Hashable, minutes: Mapping[int, Sequence[Pace]]) -> list[Pace]:
        """The paces of one of the best minutes, ascending; empty without two in any minute. Minutes, by their medians,
        since prompts are booked whole in the interval in which they end: single intervals err either way.

        of: whose they are. Most minutes are as they were when it was last asked.
        """
        known, now = self._medians.get(of, {}), dict[int, tuple[int, float, float]]()
        for minute, paces in minutes.items():
            if len(paces) < _ENOUGH:
                continue
            size, end = len(paces), paces[-1].at
            was = known.get(minute)
            now[minute] = was if was is not None and was[:2] == (size, end) else (size, end, _median(paces))
        self._medians[of] = now
        ordered = sorted(now, key=lambda minute: now[minute][2])
        if not ordered:
            return []
        return sorted(minutes[ordered[int(_LOW * (len(ordered) - 1))]], key=attrgetter("seconds"))

    @staticmethod
    def _comparable(load: Load, other: Load, *, shorter: bool) -> bool:
        """Neighbouring bands are the same load; three bands below is about half."""
        if abs(load[0] - other[0]) > 1 or load[1] is None or other[1] is None or load[2] != other[2]:
            return False
        return other[1] <= load[1] - _TWICE if shorter else abs(load[1] - other[1]) <= 1

    def _add(self, pace: Pace) -> None:
        load = self._load(pace)
        if load not in self._paces:
            self._paces[load] = _Kept()
            self._alike.clear()
            self._medians.clear()
        self._paces[load].add(pace)

    def _add_unloaded(self, pace: Pace) -> None:
        self._unloaded.add(pace)
        self._step_seconds.clear()

    def _load(self, pace: Pace) -> Load:
        return self._band(pace.batch), None if pace.context is None else self._band(pace.context), pace.speculating

    def _band(self, value: float) -> int:
        return floor(log(max(value, 1.0)) / self._width)

    def _pace_of(self, step: Step) -> Pace | None:
        """The pace of an interval: its ITL less the time that its own prompts took; None where they took most of it,
        where requests were evicted or prompts are not booked yet, or where nothing tells how long a prompt token
        takes."""
        itl = step.histograms.get("itl")
        if itl is None or not itl.total or itl.count < _ENOUGH_GAPS or step.increases.get("preemptions", 0.0) > 0:
            return None
        if unfinished_prompts(step):
            return None
        prompts = computed_prompt_tokens(step)
        per_token = None if self._now is None else self._now.seconds_per_prompt_token
        if prompts is None or (prompts > 0 and per_token is None):
            return None
        iterations = step.histograms.get("iteration_tokens")
        running = (step.before.get("running", 0.0) + step.after.get("running", 0.0)) / 2
        share = prompts * (per_token or 0.0) / step.seconds if shared(step) else 0.0
        if share > _MIXED_RHO:
            return None
        # Several API servers count iterations more than once; a page without a start time may be theirs.
        exact = iterations is not None and iterations.count > 0 and "start_time" in step.after
        batch = itl.count / iterations.count if exact and iterations else running
        pace = itl.total / itl.count * (1 - share)
        speculating = step.increases.get("spec_drafts", 0.0) > 0
        return Pace(step.end, batch, self._context(running), pace, step.seconds, speculating)

    def _context(self, running: float) -> float | None:
        """Tokens each running request carries: those that run are the last ones admitted."""
        count = tokens = 0.0
        for admitted, prompts in reversed(self._admitted):
            count, tokens = count + admitted, tokens + prompts
            if count >= running:
                break
        return tokens / count + (self._now.output or 0.0) / 2 if count and self._now else None


class PastView:
    """What the past says of the present window; None where it has nothing comparable. All in seconds.

    Each is looked up when it is first read, which is before the next page is remembered.
    """

    def __init__(self, past: Past, now: Moment, before: float) -> None:
        """before: when the present window began."""
        self._past, self._now, self._before = past, now, before

    @cached_property
    def unloaded_pace(self) -> float | None:
        """At running <= 2."""
        return self._past.step_seconds(speculating=self._now.speculating)

    @cached_property
    def _same(self) -> tuple[float | None, float, float | None]:
        return self._past.compared(self._now, self._before, shorter=False)

    @property
    def same_pace(self) -> float | None:
        """What the present pace would be, had loads like the present ones taken what they took before."""
        return self._of_now(self._same[0])

    @property
    def same_spread(self) -> float:
        """How far above `same_pace` such intervals reached then, as a ratio."""
        return self._same[1]

    @cached_property
    def _shorter(self) -> tuple[float | None, float, float | None]:
        return self._past.compared(self._now, self._before, shorter=True)

    @property
    def shorter_pace(self) -> float | None:
        """`same_pace` with contexts at most half as long."""
        return self._of_now(self._shorter[0])

    @property
    def shorter_context(self) -> float | None:
        return self._shorter[2]

    @cached_property
    def tpot_without_speculation(self) -> float | None:
        """At this batch."""
        return self._past.tpot_without_speculation(self._now.batch, self._before)

    @cached_property
    def seconds_per_prompt_token(self) -> float | None:
        """At running <= 1."""
        return self._past.seconds_per_prompt_token(self._before)

    def _of_now(self, times_slower: float | None) -> float | None:
        return None if times_slower is None or self._now.pace is None else self._now.pace / times_slower


def no_past() -> PastView:
    """Of an engine seen for the first time."""
    return PastView(Past(Thresholds()), Moment(0.0, 0.0, 0.0, None, None, None, None, False, None), 0.0)


def _of_window(moment: Moment, pace: float) -> Pace:
    return Pace(moment.at, moment.batch, moment.context, pace, _APART_SECONDS, moment.speculating)


def _minute_of(at: float) -> int:
    return int(at // _MINUTE)


def _median(paces: Iterable[Pace]) -> float:
    ordered = sorted([pace.seconds for pace in paces])
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _usual(minute: Sequence[Pace]) -> float | None:
    return _median(minute) if minute else None


def _low(values: Sequence[float]) -> float | None:
    """The lowest tenth of the values; None of too few."""
    return sorted(values)[int(_LOW * (len(values) - 1))] if len(values) >= _ENOUGH else None


def moment(at: float, window: Window, numbers: Numbers) -> Moment:
    """The present window as a moment to compare and to remember."""
    running = [page["running"] for page in scrapes(window) if page.get("running", 0.0) > 0]
    itl, prefill_ratio = numbers.itl_seconds.mean, numbers.prefill_time_ratio
    return Moment(
        at=at,
        batch=sum(running) / len(running) if running else 0.0,
        running_max=window.gauges["running"].max if "running" in window.gauges else 0.0,
        context=arriving_context(window, numbers),
        output=numbers.tokens.output_mean,
        pace=None
        if prefill_ratio == 1
        else pace_without_prefill(window, itl, prefill_ratio),  # 1 leaves no time for a pace
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
