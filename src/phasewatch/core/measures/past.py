"""An engine's own past, kept in the process: how fast it decoded and prefilled at which batch and context.

It survives restarts of the engine: that is when flags change, and the comparison is wanted most.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice, takewhile
from math import ceil, exp, floor, inf, log
from operator import itemgetter
from statistics import fmean, mean
from typing import NamedTuple

from phasewatch.core.measures.best import Best, Kept, Load, Pace, median_pace, usual
from phasewatch.core.measures.gaps import longest_gap, streams, unfinished_prompts, without_slowest
from phasewatch.core.measures.histogram import mean as mean_of
from phasewatch.core.measures.phases import above_covering_edge, computed_prompt_tokens, pace_without_prefill, shared
from phasewatch.core.measures.step_curve import Cliff, StepCurve
from phasewatch.core.measures.window import scrapes
from phasewatch.core.model import Numbers, Step, Window
from phasewatch.core.settings import Thresholds

_REMEMBERED_WINDOWS = 2000  # hours at one a round
_RECENT_PACES = 2000  # one a second in the longest window that verdicts use
_REMEMBERED_ADMISSIONS = 200
_ENOUGH = 2  # one alone may be a transition
_ENOUGH_STEPS = 3
_APART_SECONDS = 10.0
_COVERED = 20.0  # seconds of a minute: less is an episode of a few requests
_HIGH = 0.9
_TWICE = 3  # bands: 1.25 to the third is about two
_EXTRAPOLATED = 4.0  # times the largest batch known: further the slope's own error is as large as what it tells
_ENOUGH_GAPS = 5  # for an interval's mean to be a pace
# The best minutes of those seen: what the engine can do, even where trouble has lasted longer than calm.
_LOW = 0.1
_MIXED_RHO = 0.5  # with prefill taking more of the time, what is left for a pace is mostly error


@dataclass(frozen=True, slots=True)
class Moment:
    """One window of one engine. pace: ITL without prefill's share, None where that is unknown. prefill: of a
    computed prompt token."""

    at: float
    batch: float
    running_max: float
    context: float | None
    output: float | None
    pace: float | None
    tpot: float | None
    speculating: bool
    seconds_per_prompt_token: float | None
    prefill: Pace | None = None
    longest_gap: float = 0.0  # at least: its bucket's low edge


class Compared(NamedTuple):
    """pace: seconds a token that the present loads would take, had they taken what they took before; times: how many
    times longer the present intervals took, each counting alike, so that a change shows before most tokens are of it;
    spread: how many times longer intervals could take then; context, then_context: of the loads compared, where
    contexts are shorter."""

    pace: float | None = None
    times: float | None = None
    spread: float = 1.0
    context: float | None = None
    then_context: float | None = None


class Bounds(NamedTuple):
    """What the present pace can be at most, by other loads: a step takes a + b x batch + c x batch x context, so no
    more than in proportion to both. larger_batch: the least at this batch or a larger one, whatever the context."""

    most: float | None = None
    larger_batch: float | None = None


class Past:
    """A bounded memory. Windows that overlap the one being judged are not its past."""

    def __init__(self, thresholds: Thresholds, seconds: float = 60.0) -> None:
        """seconds: of the windows that are judged."""
        self._clear, self._seconds = thresholds.symptom_ratio, seconds
        self._windows: deque[Moment] = deque(maxlen=_REMEMBERED_WINDOWS)
        # Of those at running <= 1 that know it, with the time: seconds per prompt token.
        self._alone: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED_WINDOWS)
        self._looked_up: dict[tuple[float, float], float | None] = {}
        self._step_seconds: dict[bool | None, float | None] = {}
        self._decode = _Kind(thresholds.alike_ratio, seconds)
        self._prefill = _Kind(thresholds.alike_ratio, seconds)
        self._curve, self._width = StepCurve(self._decode.best), thresholds.alike_ratio
        self._unloaded = Kept(self._decode.best.recent_minutes)
        self._admitted: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED_ADMISSIONS)  # first tokens, prompt tokens
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
            self._decode.add(pace)
            self._curve.add(pace)
            if pace.batch <= 2 and max(step.before.get("running", 0.0), step.after.get("running", 0.0)) <= 2:
                self._add_unloaded(pace)
        prefill = _prefill_of(step)
        if prefill is not None:
            self._prefill.add(prefill)

    def remember(self, moment: Moment, window: Window | None = None) -> None:
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
        if window is not None and moment.pace is not None and fresh < _ENOUGH:
            pace = _of_window(moment, moment.pace, _borne_out(window, moment.pace))
            self._decode.add(pace)
            self._curve.add(pace)
            if moment.running_max <= 2:
                self._add_unloaded(pace)

    def seconds_per_prompt_token(self, before: float) -> float | None:
        """At running <= 1: nothing else took part in those prefills."""
        count = bisect_right(self._alone, before, key=itemgetter(0))
        if not count:
            return None
        of = self._alone[0][0], self._alone[count - 1][0]
        if of not in self._looked_up:
            if len(self._looked_up) > _REMEMBERED_ADMISSIONS:
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
            best = self._decode.best.best_minute(("unloaded", speculating), minutes)
            self._step_seconds[speculating] = usual(best)
        return self._step_seconds[speculating]

    def view(self, now: Moment, steps: Sequence[Step]) -> "PastView":
        """What is comparable with `now`, the window of `steps`, among what ended before it began."""
        return PastView(self, now, steps[0].start)

    def pace_at(self, now: Moment, batch: float) -> float | None:
        best = self._decode.best
        load = best.load(_of_window(replace(now, batch=batch), 0.0, 0.0))
        return usual(best.best_minute(("at", load), best.minutes(load, best.alike(load), inf)))

    def compared(self, now: Moment, before: float, *, shorter: bool) -> Compared:
        """The present pace with that of the past at the same loads, or at contexts at most half as long."""
        pairs, spread, contexts = self._reference(
            self._decode.best, self._present(now, before), before, shorter=shorter
        )
        if not pairs or now.pace is None:
            return Compared(spread=spread)
        # By tokens, as the present pace is a mean: few tokens that took long weigh little. What no load ever took is
        # no past.
        tokens = [pace.covers * max(pace.batch, 1.0) / pace.seconds for pace, _ in pairs]
        took = sum([of * pace.seconds for of, (pace, _) in zip(tokens, pairs, strict=True)])
        had_taken = sum([of * then for of, (_, then) in zip(tokens, pairs, strict=True)])
        times = fmean([pace.seconds / then for pace, then in pairs])
        least = max(now.pace * had_taken / took, min(then for _, then in pairs))
        if not contexts:
            return Compared(least, times, spread)
        return Compared(least, times, spread, fmean([pace.tokens or 0.0 for pace, _ in pairs], tokens), fmean(contexts))

    def compared_prefill(self, now: Moment, before: float) -> tuple[float | None, float]:
        """(how many times longer a computed prompt token takes than before at like prompt lengths and batches, how
        many times longer intervals could take then)."""
        paces = self._prefill.since(before)
        if len(paces) < _ENOUGH_STEPS:
            paces = [] if now.prefill is None else [now.prefill]
        pairs, spread, _ = self._reference(self._prefill.best, paces, before, shorter=False, lines=False)
        return mean(pace.seconds / then for pace, then in pairs) if pairs else None, spread

    def bounds(self, now: Moment, before: float) -> Bounds:
        """What any known load says of the present one."""
        paces = [pace for pace in self._present(now, before) if pace.tokens is not None]
        if not paces:
            return Bounds()
        best, batch = self._decode.best, fmean([pace.batch for pace in paces])
        # Contexts of those that run follow the admitted ones with a delay: the larger of both is the safe one.
        context = max(fmean([pace.tokens or 0.0 for pace in paces]), now.context or 0.0)
        most: list[float] = []
        larger: list[float] = []
        for load in best.loads:
            if load[1] is None or load[2] != paces[-1].speculating:
                continue
            minute = best.best_minute(("bound", load), best.minutes(None, (load,), before))
            then = usual(minute)
            if then is None:
                continue
            of = fmean([pace.batch for pace in minute]), fmean([pace.tokens or 0.0 for pace in minute])
            most.append(then * max(1.0, batch / max(of[0], 1.0)) * max(1.0, context / max(of[1], 1.0)))
            if load[0] >= best.band(batch):
                larger.append(then)
        return Bounds(min(most, default=None), min(larger, default=None))

    def _present(self, now: Moment, before: float) -> Sequence[Pace]:
        """Paces of decode since `before`; the window's own where intervals gave few."""
        paces = [pace for pace in self._decode.since(before) if not pace.of_window]
        if len(paces) >= _ENOUGH_STEPS:
            return paces
        return [] if now.pace is None else [_of_window(now, now.pace, now.pace)]

    def cliff(self, before: float) -> Cliff | None:
        return self._curve.cliff(self._decode.since(before), self._clear, self._width)

    def gradual(self, now: Moment, usual: float) -> float | None:
        """Seconds over which the pace at loads like the present one has left `usual`, band by band; None where it did
        so at once: a sudden change needs one window to show in full."""
        best = self._decode.best
        load = best.band(now.batch), best.band(now.context or 0.0)
        reached: dict[int, float] = {}
        for one in self._windows:
            alike = one.speculating == now.speculating and abs(best.band(one.batch) - load[0]) <= 1
            if one.pace and alike and abs(best.band(one.context or 0.0) - load[1]) <= 1:
                for band in range(1, floor(log(max(one.pace / usual, 1.0)) / best.width) + 1):
                    reached.setdefault(band, one.at)
        highest = floor(log(max((now.pace or 0.0) / usual, 1.0)) / best.width)
        if highest < _TWICE:
            return None
        took = reached.get(highest - 1, now.at) - reached.get(1, now.at)
        return took if took >= 2 * self._seconds else None

    def shortest_stall(self, limit: float, before: float) -> float | None:
        return min(
            (one.longest_gap for one in self._windows if one.at <= before and one.longest_gap >= limit), default=None
        )

    def tpot_without_speculation(self, batch: float, before: float) -> float | None:
        band = self._decode.best.band(batch)
        plain = (one for one in self._windows if one.tpot and one.at <= before and not one.speculating)
        return _low([one.tpot for one in plain if one.tpot and abs(self._decode.best.band(one.batch) - band) <= 1])

    def _reference(
        self, best: Best, paces: Sequence[Pace], before: float, *, shorter: bool, lines: bool = True
    ) -> tuple[Sequence[tuple[Pace, float]], float, Sequence[float]]:
        """(each pace that has a past and what its load took before, how many times slower intervals could be then,
        where contexts are shorter those). lines: whether a load that was never met may be told from others."""
        by_load: dict[Load, list[Pace]] = {}
        for pace in paces:
            by_load.setdefault(best.load(pace), []).append(pace)
        pairs: list[tuple[Pace, float]] = []
        spreads: list[float] = []
        contexts: list[float] = []
        for load, present in by_load.items():
            alike = best.alike(load, shorter_by=_TWICE if shorter else 0)
            minute = best.best_minute((load, shorter), best.minutes(None if shorter else load, alike, before))
            known = [usual(minute), None if shorter or not lines else _extrapolated(best, load, before)]
            then = min((one for one in known if one is not None), default=None)
            if then:
                pairs.extend((one, then) for one in present)
                spreads.append(self._spread(minute))
                if shorter:
                    contexts.extend(pace.tokens for pace in minute if pace.tokens is not None)
        return pairs, max(spreads, default=1.0), contexts

    def _spread(self, minute: Sequence[Pace]) -> float:
        """How far above their median intervals of that minute reached; a short episode proves only what is clear."""
        if sum(pace.covers for pace in minute) < _COVERED:
            return self._clear
        return minute[ceil(_HIGH * (len(minute) - 1))].remembered / median_pace(minute)

    def _add_unloaded(self, pace: Pace) -> None:
        self._unloaded.add(pace)
        self._step_seconds.clear()

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
        ran = step.before.get("running", 0.0), step.after.get("running", 0.0)
        share = prompts * (per_token or 0.0) / step.seconds if shared(step) else 0.0
        if share > _MIXED_RHO:
            return None
        # Several API servers count iterations more than once; a page without a start time may be theirs.
        exact = iterations is not None and iterations.count > 0 and "start_time" in step.after
        batch = itl.count / iterations.count if exact and iterations else sum(ran) / 2
        carried = above_covering_edge(iterations, max(*ran, batch)) if exact and iterations and share else None
        return Pace(
            at=step.end,
            batch=batch,
            tokens=self._context(sum(ran) / 2),
            seconds=itl.total / itl.count * (1 - share),
            remembered=without_slowest(itl, _held_up(step, carried, batch) if share else 0.0),
            covers=step.seconds,
            speculating=step.increases.get("spec_drafts", 0.0) > 0,
            running=min(ran),
        )

    def _context(self, running: float) -> float | None:
        """Tokens each running request carries: those that run are the last ones admitted."""
        count = tokens = 0.0
        for admitted, prompts in reversed(self._admitted):
            count, tokens = count + admitted, tokens + prompts
            if count >= running:
                break
        return tokens / count + (self._now.output or 0.0) / 2 if count and self._now else None


class _Kind:
    """Paces of one kind: the best ever, and those that may be of the window that is judged."""

    def __init__(self, ratio: float, seconds: float) -> None:
        self.best = Best(ratio, seconds)
        self._recent: deque[Pace] = deque(maxlen=_RECENT_PACES)
        self._seconds = seconds

    def add(self, pace: Pace) -> None:
        self.best.add(pace)
        self._recent.append(pace)
        while self._recent[0].at < pace.at - 2 * self._seconds:
            self._recent.popleft()

    def since(self, before: float) -> list[Pace]:
        """In time order."""
        return [*takewhile(lambda pace: pace.at > before, reversed(self._recent))][::-1]


class PastView:
    """What the past says of the present window; None where it has nothing comparable. All in seconds.

    Each is looked up when it is first read, which is before the next page is remembered.
    """

    def __init__(self, past: Past, now: Moment, before: float) -> None:
        """before: when the present window began."""
        self._past, self._now, self._before = past, now, before

    def pace_at(self, batch: float) -> float | None:
        """What a token took at such a batch and the present context; None where the engine never ran so many."""
        return self._past.pace_at(self._now, batch)

    @cached_property
    def unloaded_pace(self) -> float | None:
        """At running <= 2."""
        return self._past.step_seconds(speculating=self._now.speculating)

    @cached_property
    def _same(self) -> Compared:
        return self._past.compared(self._now, self._before, shorter=False)

    @property
    def same_pace(self) -> float | None:
        """What the present pace would be, had loads like the present ones taken what they took before."""
        return self._same.pace

    @property
    def times_slower(self) -> float | None:
        """How many times as long as before intervals take now, each counting alike."""
        return self._same.times

    @property
    def same_spread(self) -> float:
        """How far above `same_pace` such intervals reached then, as a ratio."""
        return self._same.spread

    @cached_property
    def cliff(self) -> Cliff | None:
        """Where the step-time curve jumps below the present batch."""
        return self._past.cliff(self._before)

    @cached_property
    def gradual_seconds(self) -> float | None:
        """Over how long the pace has become slower than `same_pace`; None where it did so at once."""
        return None if self.same_pace is None else self._past.gradual(self._now, self.same_pace)

    def shortest_stall(self, limit: float) -> float | None:
        """Of the windows before that had gaps over the limit: the longest one of a window where it was shortest."""
        return self._past.shortest_stall(limit, self._before)

    @cached_property
    def shorter(self) -> Compared:
        """`same_pace` with contexts at most half as long."""
        return self._past.compared(self._now, self._before, shorter=True)

    @cached_property
    def bounds(self) -> Bounds:
        return self._past.bounds(self._now, self._before)

    @cached_property
    def _prefill(self) -> tuple[float | None, float]:
        return self._past.compared_prefill(self._now, self._before)

    @property
    def prefill_pace(self) -> float | None:
        """Of the present: seconds a computed prompt token."""
        return None if self._now.prefill is None else self._now.prefill.seconds

    @property
    def same_prefill_pace(self) -> float | None:
        """What `prefill_pace` would be, had prompts of such lengths, at such batches, taken what they took before."""
        times, pace = self._prefill[0], self.prefill_pace
        return None if times is None or pace is None else pace / times

    @property
    def prefill_spread(self) -> float:
        """How far above `same_prefill_pace` intervals reached then, as a ratio."""
        return self._prefill[1]

    @cached_property
    def tpot_without_speculation(self) -> float | None:
        """At this batch."""
        return self._past.tpot_without_speculation(self._now.batch, self._before)

    @cached_property
    def seconds_per_prompt_token(self) -> float | None:
        """At running <= 1."""
        return self._past.seconds_per_prompt_token(self._before)


def no_past() -> PastView:
    """Of an engine seen for the first time."""
    return PastView(Past(Thresholds()), Moment(0.0, 0.0, 0.0, None, None, None, None, False, None), 0.0)


def _extrapolated(best: Best, load: Load, before: float) -> float | None:
    """What a larger batch than was usual should take: a step's time grows in a straight line with the batch.

    The least of the lines through two known batches at this context, one about twice the other, reaching up to
    four times the larger: a load that was only met in trouble does not hide that it was trouble.
    """
    known: dict[int, float] = {}
    for band in {other[0] for other in best.loads if other[0] < load[0] - 1}:
        alike = tuple(other for other in best.alike((band, *load[1:])) if other[0] == band)
        then = usual(best.best_minute(("line", load, band), best.minutes(None, alike, before)))
        if then is not None:
            known[band] = then
    wanted = exp(load[0] * best.width)
    lines: list[float] = []
    for low, high in combinations(sorted(known), 2):
        small, large = exp(low * best.width), exp(high * best.width)
        if high - low >= _TWICE and wanted <= _EXTRAPOLATED * large:
            slope = max(0.0, known[high] - known[low]) / (large - small)
            lines.append(known[high] + slope * (wanted - large))
    return min(lines, default=None)


def _held_up(step: Step, carried: float | None, batch: float) -> float:
    """Gaps that prompts can have made longer: one of each stream that shared a step with one. carried: steps that
    carried a prompt; unknown: one a prompt."""
    first = step.histograms.get("ttft")
    prompts = first.count if carried is None and first is not None else carried
    return (prompts or 0.0) * batch


def _of_window(moment: Moment, pace: float, remembered: float) -> Pace:
    return Pace(
        moment.at, moment.batch, moment.context, pace, remembered, _APART_SECONDS, moment.speculating, of_window=True
    )


def _prefill_of(part: Step | Window) -> Pace | None:
    """Seconds a computed prompt token of the requests that finished in it, by their mean prompt length."""
    prefill, tokens = part.histograms.get("prefill"), _computed_by_finished(part)
    took = None if prefill is None else mean_of(prefill)
    if prefill is None or took is None or took <= 0 or not tokens or tokens <= 0:
        return None
    if isinstance(part, Window):
        running, start, end = (
            part.gauges["running"].mean if "running" in part.gauges else 0.0,
            part.steps[0].start,
            part.steps[-1].end,
        )
    else:
        running, start, end = _ran(part) / 2, part.start, part.end
    seconds = took * prefill.count / tokens
    return Pace(end, running, tokens / prefill.count, seconds, seconds, end - start)


def _ran(step: Step) -> float:
    """At both ends together."""
    return step.before.get("running", 0.0) + step.after.get("running", 0.0)


def _computed_by_finished(part: Step | Window) -> float | None:
    """Prompt tokens that the finished requests had computed; before 0.14, which does not tell, their prompts' tokens
    where the prefix cache had none of them."""
    computed = part.histograms.get("computed_prompt_length")
    if computed is not None:
        return computed.total
    prompts = part.histograms.get("prompt_length")
    return None if prompts is None or part.increases.get("prefix_hits", 0.0) > 0 else prompts.total


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
        prefill=_prefill_of(window),
        longest_gap=longest_gap(window.histograms.get("itl")),
    )


def _borne_out(window: Window, pace: float) -> float:
    itl = window.histograms.get("itl")
    if itl is None or not itl.total or itl.count <= 0:
        return pace
    return without_slowest(itl, sum([_held_up(one, None, _streams(one)) for one in window.steps if shared(one)]))


def _streams(step: Step) -> float:
    known = streams(step)
    return max(step.before.get("running", 0.0), step.after.get("running", 0.0)) if known == inf else known


def arriving_context(window: Window, numbers: Numbers) -> float | None:
    """Tokens a running request carries on average: prompt of those admitted (known at once, not only when they
    finish) + half the mean output."""
    first = window.histograms.get("ttft")
    prompts = window.increases.get("prompt_tokens")
    if first is None or first.count <= 0 or prompts is None:
        return numbers.tokens.context_mean
    return prompts / first.count + (numbers.tokens.output_mean or 0.0) / 2
