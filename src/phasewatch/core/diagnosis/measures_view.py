"""What rules, remedies' conditions and advisories may look at: WindowView is of a window, Case of one symptom in it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from statistics import median
from typing import NamedTuple

from phasewatch.core.diagnosis.objectives import family_of, wait_limit
from phasewatch.core.diagnosis.progress import stepped, work_in_hand
from phasewatch.core.measures.ages import Ages
from phasewatch.core.measures.gaps import (
    fastest,
    longest_gap,
    ran_throughout,
    seconds_over,
    unfinished_prompts,
    without_slowest,
)
from phasewatch.core.measures.histogram import count_above, edges, in_buckets, mean, slowest_edges
from phasewatch.core.measures.numbers import waiting_for_capacity
from phasewatch.core.measures.parts import (
    Parts,
    Tails,
    e2e_of_all,
    e2e_over,
    tails,
    ttft_of_all,
    ttft_over,
)
from phasewatch.core.measures.past import Moment, PastView, arriving_context, moment, no_past
from phasewatch.core.measures.phases import (
    computed_prompt_tokens,
    count_of,
    mean_of,
    pace_without_prefill,
    prefill_part,
    prefill_time_ratio_at_most,
    seconds_per_token,
    steady,
)
from phasewatch.core.measures.quantile import PERCENTILES
from phasewatch.core.measures.window import scrapes
from phasewatch.core.model import Event, Histogram, Numbers, Step, Symptom, Window
from phasewatch.core.settings import Limits, Thresholds, stall_seconds

_FEW_GAPS = 20  # their median says what is usual
_FASTEST = 0.1  # of the gaps: fewer may be of tokens that left together
_PERCENTILES = tuple(name for name, _ in PERCENTILES)
_ENOUGH_PAUSES = 3  # standstills: two may be anything


@dataclass(frozen=True, slots=True)
class Pauses:
    """Moments in which all streams stop. low, high: seconds, the edges between which most of them lie.
    without_prompts: whether one came in an interval in which no prompt was computed."""

    low: float
    high: float
    count: float
    without_prompts: bool


def _most_alike(histogram: Histogram, limit: float) -> tuple[float, float, float]:
    """The two neighbouring buckets, not wholly within the limit, that hold most: their edges, and their share."""
    held = in_buckets(histogram)
    over = [at for at in range(len(held)) if edges(histogram, at)[1] > limit]
    counts = [held[at] for at in over]
    best = max(range(len(over)), key=lambda n: sum(counts[n : n + 2]))
    last = min(best + 1, len(over) - 1)
    while best < last and not counts[best]:
        best += 1
    while last > best and not counts[last]:
        last -= 1
    share = sum(counts[best : last + 1]) / sum(counts)
    return edges(histogram, over[best])[0], edges(histogram, over[last])[1], share


@dataclass(frozen=True)
class WindowView:
    """What was measured of one engine in one window, each measure once. None where the page cannot tell.

    role: prefill or decode, where it is configured. events: of the engine, the last ones.
    """

    window: Window
    numbers: Numbers
    limits: Limits
    thresholds: Thresholds
    role: str | None = None
    events: Sequence[Event] = ()

    @property
    def measured(self) -> tuple[Window, Numbers]:
        return self.window, self.numbers

    @cached_property
    def now(self) -> Moment:
        """The window as what is compared with the past and with other engines."""
        return moment(self.window.steps[-1].end, self.window, self.numbers)

    @cached_property
    def pages(self) -> tuple[Mapping[str, float], ...]:
        return scrapes(self.window)

    # --- queue ---------------------------------------------------------------------------------------------------

    @cached_property
    def queue_pages(self) -> tuple[Mapping[str, float], ...]:
        """The pages of the queue's episode in which somebody waits for capacity."""
        name = waiting_for_capacity(self.window)
        return tuple(page for page in self.pages if page.get(name, 0.0) > 0)

    @cached_property
    def queued(self) -> bool:
        """Whether requests waited for capacity, and not mainly for something else (remote KV, grammar, LoRA): in most
        scrapes of the queue's episodes, or by the queue times of those who finished."""
        name, gauges = waiting_for_capacity(self.window), self.window.gauges
        # A window has a gauge only where its last page has: else nothing is known of a queue now.
        if name not in gauges:
            return False
        if "waiting_deferred" in gauges and gauges["waiting_deferred"].mean > gauges[name].mean:
            return False
        return self._seen_waiting or self.queue_times_long

    @property
    def _seen_waiting(self) -> bool:
        """Whether somebody waits in most scrapes between the first and the last one that has any; or, where a queue
        comes and goes, whether most of those scrapes follow one another."""
        name = waiting_for_capacity(self.window)
        waits = [page.get(name, 0.0) > 0 for page in self.pages]
        if not any(waits):
            return False
        count, first, last = sum(waits), waits.index(True), len(waits) - 1 - waits[::-1].index(True)
        in_a_row = sum(any(waits[max(0, at - 1) : at] + waits[at + 1 : at + 2]) for at, one in enumerate(waits) if one)
        most = self.thresholds.most_scrapes
        return count / (last - first + 1) > most or in_a_row / count > most

    @cached_property
    def queue_times_long(self) -> bool:
        """Whether requests that finished report queue times longer than a few steps: with room, the next step takes a
        request in. Scrapes can miss all of a queue that comes and goes."""
        times = self.window.histograms.get("queue")
        if times is None or mean(times) is None:
            return False
        step = self.numbers.itl_seconds.mean or 0.0
        long = max(self.thresholds.few_steps * step, times.bounds[0])
        return count_above(times, long).sure >= self.thresholds.min_over

    @cached_property
    def from_elsewhere(self) -> bool:
        """Whether KV blocks come from other engines (P/D) or from CPU memory (offload)."""
        fetching = any(name in self.window.gauges for name in ("kv_fetch_waiting", "kv_fetch_in_progress"))
        external = self.window.increases.get("external_prompt_tokens", 0.0) > 0
        return external or fetching or self.transfer_seconds is not None

    @cached_property
    def no_room_to_land(self) -> bool:
        """Whether requests that wait for KV blocks from elsewhere wait in most scrapes, and in most of those with less
        room in the pool than one of them takes."""
        held = [page for page in self.pages if page.get("waiting_deferred", 0.0) > 0]
        short = [page for page in held if self.kv_short(page)]
        most = self.thresholds.most_scrapes
        if "waiting_deferred" not in self.window.gauges:
            return False
        return self.from_elsewhere and len(held) / len(self.pages) > most and len(short) / len(held) > most

    @cached_property
    def kv_held(self) -> bool:
        """Whether blocks that no running request owns fill the pool: in most of the scrapes in which requests wait for
        room nobody runs, nobody fetches KV blocks into room taken for them, and there is none for another prompt."""
        held = [
            page
            for page in self.queue_pages
            if page.get("running") == 0 and not page.get("waiting_deferred") and self.kv_short(page)
        ]
        return self.queued and len(held) > self.thresholds.most_scrapes * len(self.queue_pages)

    @cached_property
    def prompt_heavy(self) -> bool:
        """Whether prefill has more tokens to compute than decode makes."""
        computed, generated = (
            self.numbers.tokens.computed_prompt_per_second, self.numbers.tokens.generation_per_second
        )  # fmt: skip
        return computed is not None and generated is not None and computed > generated

    @cached_property
    def waiting_now(self) -> float:
        return self.pages[-1].get(waiting_for_capacity(self.window), 0.0)

    @cached_property
    def queue_returns(self) -> bool:
        """Whether a queue came again that had been gone for as long as a verdict takes: its end is no end."""
        name, gone = waiting_for_capacity(self.window), None
        for step in self.window.steps:
            if step.before.get(name, 0.0) > 0 and step.after.get(name, 0.0) == 0:
                gone = step.end
            elif gone is not None and step.after.get(name, 0.0) > 0:
                if step.end - gone >= self.thresholds.agree_seconds:
                    return True
                gone = None
        return False

    @cached_property
    def ttft_parts(self) -> Parts:
        """What the mean TTFT is made of."""
        return self._with_standing_queue(ttft_of_all(self.window))

    @cached_property
    def _tails(self) -> dict[float, Parts]:
        return {}

    @cached_property
    def _slowest(self) -> Tails:
        return tails(self.window)

    def ttft_tail(self, limit: float) -> Parts:
        """What TTFT is made of where it is over the limit; as the mean, where none is."""
        if limit not in self._tails:
            tail = ttft_over(self.window, limit, self._slowest)
            self._tails[limit] = self.ttft_parts if tail is None else self._with_standing_queue(tail)
        return self._tails[limit]

    def _with_standing_queue(self, parts: Parts) -> Parts:
        """Those who stand in a queue have not finished. Its part is at least the mean number waiting / admissions per
        second (Little's law) and, where the queue grows, the expected wait: then that, and prefill, is the whole."""
        if not self.queued:
            return parts
        waiting, queue = self.window.gauges[waiting_for_capacity(self.window)], self.numbers.queue
        waits = [waiting.mean / queue.admissions_per_second] if queue.admissions_per_second else []
        if queue.expected_wait_seconds is not None and waiting.last >= waiting.mean:
            waits.append(queue.expected_wait_seconds)
        return parts.with_queue(max(waits, default=0.0))

    def kv_short(self, page: Mapping[str, float]) -> bool | None:
        """Whether the pool has less room than a mean prompt and one block; with the capacity unknown, usage decides."""
        usage = page.get("kv_usage")
        if usage is None:
            return None
        free = self.free_tokens(usage)
        if free is None or self.numbers.tokens.prompt_mean is None:
            return usage >= self.thresholds.kv_full_ratio
        return free < self.numbers.tokens.prompt_mean + page.get("block_size", 0.0)

    def _kv_short_soon(self, page: Mapping[str, float], most: float) -> bool | None:
        """The same with as many running as a moment ago: one that ended in the last step has left its blocks, which the
        next step gives to who waits. Only where fewer run than the most while requests wait."""
        running = page.get("running", 0.0)
        if "kv_usage" not in page or not 0 < running < most:
            return self.kv_short(page)
        return self.kv_short({**page, "kv_usage": min(1.0, page["kv_usage"] * (running + 1) / running)})

    def free_tokens(self, usage: float) -> float | None:
        """Room in the KV cache at this usage; None where its capacity is unknown."""
        return None if self.kv_capacity is None else (1 - usage) * self.kv_capacity

    @property
    def kv_capacity(self) -> float | None:
        return self.numbers.kv_cache.capacity_tokens

    @property
    def configuration(self) -> Mapping[str, str]:
        """What the engine's page says of its configuration, by label; empty where it does not."""
        pages = next((one.pages for one in reversed(self.window.steps) if one.pages is not None), None)
        return {} if pages is None else pages[1].labels

    @property
    def kv_short_now(self) -> bool:
        return self.kv_short(self.pages[-1]) is True

    @property
    def kv_capacity_known(self) -> bool:
        return self.kv_capacity is not None and self.numbers.tokens.prompt_mean is not None

    @cached_property
    def kv_limited(self) -> bool | None:
        """Whether those who wait, wait for KV blocks: short in most of their scrapes, or running requests evicted.

        With the capacity unknown, a pool that fills up while fewer run than have run before is short as well: it is
        not the slots that are missing.
        """
        most = max((page.get("running", 0.0) for page in self.queue_pages), default=0.0)
        known = [short for short in (self._kv_short_soon(page, most) for page in self.queue_pages) if short is not None]
        if not known:
            return None
        if self.preemptions or self.evicting or sum(known) / len(known) > self.thresholds.most_scrapes:
            return True
        slots_free = self.at_ceiling is not None and self.at_ceiling < self.thresholds.at_ceiling
        return not self.kv_capacity_known and any(known) and slots_free

    @cached_property
    def evicting(self) -> bool:
        """Whether running requests went back to the queue. vLLM counts a preemption with the request's next token only,
        but none leaves the batch else than by finishing: fewer run than did, less those that finished, as many more
        wait, and one more like those that run would not fit."""
        return any(map(self._evicts, self.window.steps))

    def _evicts(self, step: Step) -> bool:
        name, before, after = waiting_for_capacity(self.window), step.before, step.after
        running = after.get("running", 0.0)
        gone = before.get("running", 0.0) - running - step.increases.get("finished", 0.0)
        if running <= 0 or gone < 1 or after.get(name, 0.0) - before.get(name, 0.0) < gone:
            return False
        return after.get("kv_usage", 0.0) * (running + 1) / running > 1

    @cached_property
    def at_ceiling(self) -> float | None:
        """Mean of running over the waiting scrapes / its maximum of the window. Not the share of scrapes at the
        maximum: a slot that is free for the moment of a scrape says nothing about the limit. Gauges are of the end of
        the last step: a request that ended in it has left, and the one that takes its slot is not in yet."""
        most = self.running_max
        running = [min(most, page["running"] + 1) for page in self.queue_pages if "running" in page]
        return sum(running) / len(running) / most if running and most > 0 else None

    # --- inter-token latency -------------------------------------------------------------------------------------

    @cached_property
    def itl(self) -> Histogram | None:
        return self.window.histograms.get("itl")

    @cached_property
    def itl_sum(self) -> float | None:
        return None if self.itl is None or mean(self.itl) is None else self.itl.total

    @cached_property
    def pace_without_prefill(self) -> float | None:
        """Seconds per token if no prompt shared the engine: not less than tokens took where they came fastest."""
        pace = pace_without_prefill(self.window, self.numbers.itl_seconds.mean, self.numbers.prefill_time_ratio)
        return None if pace is None else max(pace, self.fastest_gaps or 0.0)

    @cached_property
    def prefill_part(self) -> float | None:
        """Prefill's part of the streams' time, 0 to 1."""
        return prefill_part(self.window, self.numbers.prefill_time_ratio)

    @property
    def context(self) -> float | None:
        """Tokens a running request carries on average."""
        return arriving_context(self.window, self.numbers)

    @property
    def running_max(self) -> float:
        return self.window.gauges["running"].max if "running" in self.window.gauges else 0.0

    @cached_property
    def mostly_alone(self) -> bool:
        """Whether no two requests ever ran together, and none did in most scrapes."""
        idle = sum(not page.get("running") for page in self.pages)
        return self.running_max <= 1 and idle / len(self.pages) > self.thresholds.most_scrapes

    @property
    def preemptions(self) -> float:
        return self.window.increases.get("preemptions", 0.0)

    @cached_property
    def _slowest_prefill(self) -> tuple[float, float] | None:
        """Edges of its bucket."""
        histogram = self.window.histograms.get("prefill")
        return None if histogram is None else slowest_edges(histogram)

    @property
    def longest_prefill(self) -> float | None:
        """Upper edge of the slowest prefill's bucket; inf past the last edge; None without a finished request."""
        return None if self._slowest_prefill is None else self._slowest_prefill[1]

    @property
    def longest_prefill_at_least(self) -> float | None:
        """Lower edge of the slowest prefill's bucket; None without a finished request."""
        return None if self._slowest_prefill is None else self._slowest_prefill[0]

    @cached_property
    def longest_gap(self) -> float:
        """Low edge of the slowest gap's bucket: at least that long."""
        return longest_gap(self.itl)

    @cached_property
    def fastest_gaps(self) -> float | None:
        """Mean of the fastest tenth of the gaps: no unloaded step takes longer. Where prompts are computed most of the
        time the median gap holds some of it, too."""
        return None if self.itl_sum is None or self.itl is None else fastest(self.itl, _FASTEST)

    @property
    def stall_limit(self) -> float:
        return stall_seconds(self.limits)

    def gaps_over(self, limit: float) -> float | None:
        """Seconds of streaming spent in gaps over a limit."""
        return None if self.itl is None else seconds_over(self.itl, limit)

    def prefill_in_gaps_over(self, limit: float) -> float | None:
        """Seconds in gaps over a limit that prefill accounts for, at most: its part of the streams' time, where steps
        carried prompts of enough tokens for such a gap. Where its part is unknown, of its upper bound."""
        part = self.prefill_part
        part = prefill_time_ratio_at_most(self.window) if part is None else part
        if self.itl is None or self.itl_sum is None or part is None:
            return None
        return min(part * self.itl_sum, self.gaps_of_long_prompts(limit))

    def gaps_of_long_prompts(self, limit: float) -> float:
        """Seconds in gaps over a limit that steps of prompts can have made, at most: by their tokens, at the seconds
        that a computed token takes. inf where that is unknown, or where steps cannot be counted and some prompt is long
        enough."""
        computed, prefill_ratio = computed_prompt_tokens(self.window), self.numbers.prefill_time_ratio
        prefill_ratio = prefill_time_ratio_at_most(self.window) if prefill_ratio is None else prefill_ratio
        if computed is None or prefill_ratio is None or self.itl is None:
            return inf
        each = prefill_ratio * self.window.seconds / computed if computed else 0.0
        typical = without_slowest(self.itl, self.itl.count / 2)
        # What a prompt takes beyond a step that would have come anyway; in the typical interval, for a pause in the
        # middle of a prefill is not the prompt's.
        beyond = seconds_per_token(self.window, typical)
        each = min(each, median(beyond)) if beyond else each
        signals, histograms = ("iteration_tokens", "computed_prompt_length", "prompt_length"), self.window.histograms
        tokens = next((histograms[name] for name in signals if name in histograms), None)
        if tokens is None:
            return inf
        counts = [
            (count, edges(tokens, at)[1] * each + typical) for at, count in enumerate(in_buckets(tokens)) if count
        ]
        if "iteration_tokens" not in histograms or "start_time" not in self.window.gauges:
            return inf if any(most > limit for _, most in counts) else 0.0
        return sum(count * self.streams * most for count, most in counts if most > limit)

    def pauses(self, limit: float) -> Pauses | None:
        """Standstills that all streams share, as gaps over the limit show them: in intervals in which most gaps are
        short, alike in length or in most intervals; None where there are no such."""
        steps = [one for one in self.window.steps if "itl" in one.histograms and one.histograms["itl"].count > 0]
        over = [count_above(one.histograms["itl"], limit).interpolated for one in steps]
        among = [
            (one, count)
            for one, count in zip(steps, over, strict=True)
            if count > 0 and self._usual_within(one.histograms["itl"], self.thresholds.half_objective * limit)
        ]
        count, batch = sum(count for _, count in among), max(1.0, self.streams)
        if count <= self.thresholds.most_scrapes * sum(over) or count < _ENOUGH_PAUSES * batch or self.itl is None:
            return None
        low, high, share = _most_alike(self.itl, limit)
        recurring = len(among) >= self.thresholds.sure_score * len(steps)
        if share < self.thresholds.sure_score and not recurring:
            return None
        without = [
            count for one, count in among if one.increases.get("prompt_tokens") == 0 and not unfinished_prompts(one)
        ]
        return Pauses(low, high, count / batch, sum(without) >= batch)

    def _usual_within(self, gaps: Histogram, limit: float) -> bool:
        """Whether the typical gap of an interval is: else the interval was slow throughout."""
        return count_above(gaps, limit).interpolated < self.thresholds.most_scrapes * gaps.count

    @cached_property
    def streams(self) -> float:
        """How many a step serves on average; where steps cannot be counted, how many run."""
        itl, iterations = self.itl, self.window.histograms.get("iteration_tokens")
        if itl is not None and iterations is not None and iterations.count > 0 and "start_time" in self.window.gauges:
            return itl.count / iterations.count
        return self.window.gauges["running"].mean if "running" in self.window.gauges else 1.0

    def gaps_among_unfinished_prompts(self, limit: float) -> float:
        """Seconds in gaps over a limit, in intervals through which prompts were computed that are not booked yet."""
        return sum(
            seconds_over(step.histograms["itl"], limit)
            for step in self.window.steps
            if "itl" in step.histograms and unfinished_prompts(step)
        )

    @cached_property
    def prefilling(self) -> tuple[float, float] | None:
        """Seconds up to now through which a request ran and got no token, and how much of the KV cache it filled in
        them beyond what streams beside it wrote; None where the cache does not show it."""
        steps = []
        for step in reversed(self.window.steps):
            if not _prefills_throughout(step):
                break
            steps.append(step)
        usages = [
            usage for step in reversed(steps) for usage in (step.before.get("kv_usage"), step.after.get("kv_usage"))
        ]
        if not steps or usages[0] is None or usages[-1] is None:
            return None
        written = sum(step.increases.get("generation_tokens", 0.0) for step in steps)
        filled = usages[-1] - usages[0]
        if written:
            filled = filled - written / self.kv_capacity if self.kv_capacity else 0.0
        return (sum(step.seconds for step in steps), filled) if filled > 0 else None

    def preempted_gaps(self) -> float:
        """Seconds in gaps over itl_stall, in intervals that also counted preemptions (both are booked together)."""
        return sum(
            seconds_over(step.histograms["itl"], self.stall_limit)
            for step in self.window.steps
            if step.increases.get("preemptions", 0.0) > 0 and "itl" in step.histograms
        )

    # --- front end -----------------------------------------------------------------------------------------------

    @cached_property
    def steady(self) -> bool:
        """Whether first tokens and finishes are of about the same requests."""
        return steady(self.window, self.thresholds)

    def e2e_tail(self, limit: float) -> Parts:
        """What e2e is made of where it is over the limit; as the mean, where none is."""
        tail = e2e_over(self.window, limit)
        return e2e_of_all(self.window) if tail is None else tail

    @cached_property
    def cpu_cores(self) -> float | None:
        """CPU seconds a second of the API server."""
        busy = self.window.increases.get("cpu_seconds")
        return None if busy is None else busy / self.window.seconds

    @cached_property
    def stepless_with_work(self) -> bool:
        return any(not stepped(step) and work_in_hand(step.before) > 0 for step in self.window.steps)

    @property
    def finishes(self) -> float:
        return count_of(self.window, "e2e")

    # --- prefix cache, KV transfer ----------------------------------------------------------------------------------

    @cached_property
    def prefix_caching_off(self) -> bool:
        """By its own word (cache_config_info), else no look-up while prompts flow."""
        window = self.window
        if "prefix_caching" in window.gauges:
            return window.gauges["prefix_caching"].last == 0
        return window.increases.get("prompt_tokens", 0.0) > 0 and window.increases.get("prefix_queries", 1.0) == 0

    @property
    def adapters_loading(self) -> bool:
        """Whether a LoRA adapter came in this window, or waits for a slot."""
        start, waiting = self.window.steps[0].start, self.window.gauges.get("waiting_adapters")
        came = any(one.kind == "adapters" and one.at > start for one in self.events)
        return came or (waiting is not None and waiting.max > 0)

    @cached_property
    def transfer_seconds(self) -> float | None:
        """Mean seconds of one transfer of KV blocks between engines; from CPU memory, a request."""
        load, first = self.window.increases.get("kv_load_seconds"), count_of(self.window, "ttft")
        return load / first if load and first else mean_of(self.window, "kv_transfer")

    @cached_property
    def deferred_wait(self) -> float | None:
        """Seconds that a request waits for something else than room, on average (Little's law)."""
        deferred, admissions = self.window.gauges.get("waiting_deferred"), self.numbers.queue.admissions_per_second
        return deferred.mean / admissions if deferred is not None and admissions else None


def _prefills_throughout(step: Step) -> bool:
    """Whether a request ran all through an interval without a token."""
    if unfinished_prompts(step):
        return True
    still = all(name not in step.histograms or step.histograms[name].count == 0 for name in ("ttft", "itl"))
    return still and step.increases.get("generation_tokens") == 0 and ran_throughout(step) >= 1


@dataclass(frozen=True, slots=True)
class Background:
    """What is known of the engine besides the window. first_request_at: since it started or woke up, where that was
    seen. ages: of its requests in flight, as of the window's last page. woke_up: whether it had slept before that.
    best_hit_ratio: of its prefix cache, before the window."""

    past: PastView = field(default_factory=no_past)
    first_request_at: float | None = None
    ages: Ages = field(default_factory=Ages)
    woke_up: bool = False
    best_hit_ratio: float | None = None


class Sight(NamedTuple):
    """A window and what is known of the engine besides, as of that window."""

    view: WindowView
    background: Background


@dataclass(frozen=True, slots=True)
class Case:
    """One symptom, beside all that the window has and what is known of the engine."""

    symptom: Symptom
    symptoms: tuple[Symptom, ...]
    view: WindowView
    background: Background

    @property
    def limit(self) -> float:
        """The warning limit in seconds (expected_wait: the TTFT limit); 0 where the symptom has none."""
        return self.symptom.limit_seconds or 0.0

    @property
    def past(self) -> PastView:
        return self.background.past

    @property
    def _by_tail(self) -> bool:
        """Whether the symptom is of the slowest: a percentile."""
        return self.symptom.objective.rpartition("_")[2] in _PERCENTILES

    @property
    def ttft(self) -> Parts:
        """What TTFT is made of, for this symptom: a tail is explained by the tail."""
        return self.view.ttft_tail(self.limit) if self._by_tail else self.view.ttft_parts

    @property
    def e2e(self) -> Parts:
        return self.view.e2e_tail(self.limit) if self._by_tail else e2e_of_all(self.view.window)

    def missed(self, *families: str) -> bool:
        return any(family_of(one.objective) in families for one in self.symptoms)

    @property
    def prefill_times_slower(self) -> float | None:
        """How many times as long as in its own past a prompt token takes to compute, at like prompt lengths and
        batches; None where it is not clearly longer."""
        pace, before = self.past.prefill_pace, self.past.same_prefill_pace
        if pace is None or before is None:
            return None
        clearly = max(self.view.thresholds.symptom_ratio, self.past.prefill_spread)
        return pace / before if pace > clearly * before else None

    @property
    def misses_times_more(self) -> float | None:
        """How many times as large as at its best the part of the prompts is that misses the prefix cache, and so is
        computed; None where it is not clearly larger."""
        hits, best = self.view.numbers.tokens.prefix_hit_ratio, self.background.best_hit_ratio
        if hits is None or best is None or 1 - hits <= self.view.thresholds.symptom_ratio * (1 - best):
            return None
        return (1 - hits) / (1 - best) if best < 1 else inf

    @property
    def _cold_until(self) -> float:
        """The end of the minute after the engine's first request; -inf where that was not seen."""
        first = self.background.first_request_at
        return -inf if first is None else first + self.view.thresholds.cold_seconds

    @property
    def slow_in_first_minute(self) -> bool:
        """Whether every first token that is above the limit, whatever its bucket hides, came within a minute of the
        engine's first request."""
        slow, first = self._slow, self.background.first_request_at
        return bool(slow) and first is not None and first <= slow[0].start and slow[-1].start <= self._cold_until

    @property
    def _slow(self) -> Sequence[Step]:
        """The intervals with first tokens that are above the limit; none once the first minute left the window."""
        limit, steps = wait_limit(self.view.limits), self.view.window.steps
        if limit is None or steps[0].start > self._cold_until:
            return ()
        first = ((one, one.histograms.get("ttft")) for one in steps)
        return [one for one, ttft in first if ttft is not None and count_above(ttft, limit.warning).sure]

    @property
    def cold(self) -> bool:
        """The same, and prefill was slow by no length of prompts: the engine just woke up, or a computed token took
        clearly longer than it did before or has since, or than computing can take. So a few requests paid for kernels
        and caches that all others found ready."""
        return self.slow_in_first_minute and (
            self.background.woke_up or self._slower_than_before or self._faster_since or self._slower_than_computing
        )

    @property
    def stalls_in_first_minute(self) -> bool:
        """Whether the gaps over the symptom's limit were all in the minute after the engine's first request."""
        limit = self.view.stall_limit if self.symptom.objective == "itl_stall" else self.limit
        itl = ((one, one.histograms.get("itl")) for one in self.view.window.steps)
        long = [one for one, gaps in itl if gaps is not None and count_above(gaps, limit).sure]
        return bool(long) and long[-1].start <= self._cold_until

    @property
    def _token_seconds(self) -> float | None:
        """Seconds of prefill a computed token at least: prompts computed together get their first tokens together."""
        speed = self.view.numbers.tokens.prefill_speed
        together = max(one.histograms["ttft"].count for one in self._slow)
        return 1 / speed / max(1.0, together) if speed else None

    @property
    def _token_seconds_alone(self) -> float | None:
        """The same of the first slow one that came to an empty engine, its whole TTFT being its own."""
        for one in self._slow:
            first, tokens = one.histograms["ttft"], computed_prompt_tokens(one)
            if work_in_hand(one.before) == 0 and first.count == 1 and first.total and tokens:
                return first.total / tokens
        return None

    @property
    def _slower_than_before(self) -> bool:
        took, before = self._token_seconds, self.past.seconds_per_prompt_token
        alone = took is not None and before is not None and took > self.view.thresholds.symptom_ratio * before
        return alone or self.prefill_times_slower is not None

    @property
    def _faster_since(self) -> bool:
        """Whether first tokens met the limit since the last slow one, of prompts computed at least twice as fast."""
        limit, since = wait_limit(self.view.limits), self._slow[-1].end
        later = [one for one in self.view.window.steps if one.start >= since]
        first = [one.histograms["ttft"] for one in later if "ttft" in one.histograms]
        if limit is None or sum(one.count for one in first) < self.view.thresholds.min_over:
            return False
        slow, fast = map(_prefill_paces, (self.view.window.steps, later))
        return bool(slow and fast) and max(slow) >= 2 * min(fast)

    @property
    def _slower_than_computing(self) -> bool:
        """With too few tokens yet to tell a step's time (they were stalled as well): that the first request was slow,
        to which nobody was in the way."""
        itl = self.view.numbers.itl_seconds
        step = itl.p50
        if step is None or itl.count < _FEW_GAPS:
            return self._slow[0].histograms["ttft"].count == 1 and work_in_hand(self._slow[0].before) == 0
        known = [one for one in (self._token_seconds, self._token_seconds_alone) if one is not None]
        return any(one * self.view.thresholds.prefill_tokens_a_step > step.value for one in known)


def _prefill_paces(steps: Iterable[Step]) -> list[float]:
    """Seconds a computed prompt token by interval, of those in which prompts' requests finished."""
    both = ((one.histograms.get("prefill"), one.histograms.get("computed_prompt_length")) for one in steps)
    return [took.total / tokens.total for took, tokens in both if took and tokens and took.total and tokens.total]
