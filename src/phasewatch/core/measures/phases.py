"""Where the time went: queue, prefill, decode and front end from exact sums; prefill's share of the engine's time."""

from itertools import takewhile
from math import inf

from phasewatch.core.measures.gaps import unfinished_prompts, without_slowest
from phasewatch.core.measures.histogram import bucket_means, mean, slowest_edges
from phasewatch.core.model import Histogram, Phase, Phases, Step, Window
from phasewatch.core.settings import Thresholds

_ENOUGH_FOR_FRONTEND = 5  # first tokens and finishes each
_FEW_STEPS = 0.5  # of the steps: then the median gap is of a step without a prompt
_SOME_TIME = 0.01  # of the window
_MUCH_UNBOOKED = 0.2  # of the window: what is booked may then differ from what was computed by as much


def mean_of(window: Window, name: str) -> float | None:
    """The exact mean of a histogram signal over the window; None where unknown or impossible."""
    histogram = window.histograms.get(name)
    return None if histogram is None else mean(histogram)


def count_of(window: Window, name: str) -> float:
    histogram = window.histograms.get(name)
    return 0.0 if histogram is None else histogram.count


def steady(window: Window, thresholds: Thresholds) -> bool:
    """Whether first tokens and finishes are of about the same requests, so that their means may be subtracted.

    As many of one as of the other, and no queue that grew or shrank meanwhile: those who come out of a growing queue
    waited longer than those who finish.
    """
    first, finished = count_of(window, "ttft"), count_of(window, "e2e")
    most = thresholds.steady_difference * max(first, finished)
    if min(first, finished) < _ENOUGH_FOR_FRONTEND or abs(first - finished) > most:
        return False
    queued = sum([step.after.get("waiting", 0.0) - step.before.get("waiting", 0.0) for step in window.steps])
    return abs(queued) <= most


def wait_for_running_step(window: Window, longest: float = inf) -> float | None:
    """Mean seconds that a request waits for the step that runs when it arrives, before vLLM stamps it as queued.

    Arrivals meet long steps more often: the sum of the steps' seconds squared / (2 x window). The steps that count are
    those of prompts: the longest prefills, as many as steps carried a prompt (several prompts share one). longest: a
    prefill that took longer took several steps. None without a finished request.
    """
    prefills = window.histograms.get("prefill")
    if prefills is None or mean(prefills) is None or window.seconds <= 0:
        return None
    unbooked = unfinished_prefill(window)
    carried, room, squares = prompt_steps(window), window.seconds - unbooked, unbooked * min(unbooked, longest)
    left = prefills.count if carried is None else carried
    for seconds, count in reversed(bucket_means(prefills)):
        count = min(count, left, max(0.0, room) / seconds if seconds > 0 else count)
        left, room = left - count, room - count * seconds
        squares += count * seconds * min(seconds, longest)
    return squares / (2 * window.seconds)


def unfinished_prefill(window: Window) -> float:
    """Seconds that the longest prompt took of those who have their first token and have not finished: prefill times
    come with the finish, yet others have waited for it. 0 where none is longer than those of the finished.

    Prompt tokens counted less those of the finished, and less a mean prompt for each other that runs, at the finished
    requests' seconds a token; at most the longest TTFT, of which it was a part.
    """
    prefill, ttft = window.histograms.get("prefill"), window.histograms.get("ttft")
    lengths = window.histograms.get("computed_prompt_length") or window.histograms.get("prompt_length")
    tokens = (
        computed_prompt_tokens(window)
        if "computed_prompt_length" in window.histograms
        else window.increases.get("prompt_tokens")
    )
    if prefill is None or lengths is None or tokens is None or ttft is None or ttft.count <= 0:
        return 0.0
    booked, length, running = mean(prefill), mean(lengths), window.gauges.get("running")
    if not booked or not length or lengths.total is None or running is None or running.last < 1:
        return 0.0
    beyond = tokens - lengths.total - (running.last - 1) * length
    slowest = slowest_edges(ttft)
    if beyond <= length or slowest is None:
        return 0.0
    return min(beyond * booked / length, slowest[1])


def longest_step(window: Window) -> float:
    """Upper edge of the longest gap's bucket, where streams felt every step that long; else inf.

    The steps of streams took (steps x mean gap): what the window has besides is too short for a longer step. Several
    API servers over-count steps.
    """
    itl, iterations = window.histograms.get("itl"), window.histograms.get("iteration_tokens")
    if itl is None or iterations is None or "start_time" not in window.gauges or (gap := mean(itl)) is None:
        return inf
    slowest = slowest_edges(itl)
    longest = inf if slowest is None else slowest[1]
    return longest if window.seconds - iterations.count * gap <= longest else inf


def phases(window: Window, thresholds: Thresholds) -> Phases:
    """Means of the requests that finished in the window, and each one's share of their whole time (e2e).

    What no phase accounts for is `unexplained`; in a steady window `frontend`, but for the wait for running steps,
    which is the engine's. Unknown where a phase is unknown.
    """
    names = ("queue", "prefill", "decode")
    means = {name: mean_of(window, name) for name in names}
    e2e = mean_of(window, "e2e")
    known = [value for value in means.values() if value is not None]
    if e2e is None or len(known) < len(names):
        return Phases(**{name: Phase(value, _share(value, e2e)) for name, value in means.items()})
    rest = max(0.0, e2e - sum(known))
    still = rest > 0 and steady(window, thresholds)
    step = wait_for_running_step(window, longest_step(window)) if still else None
    frontend = None if step is None else max(0.0, rest - step)
    parts = means | {"frontend": frontend, "unexplained": rest - (frontend or 0.0)}
    whole = sum(known) + rest
    return Phases(**{name: Phase(value, _share(value, whole)) for name, value in parts.items()})


def _share(part: float | None, whole: float | None) -> float | None:
    """None where the part is more than the whole, too: a contradiction."""
    return None if part is None or not whole or not 0 <= part <= whole else part / whole


def computed_prompt_tokens(window: Window | Step) -> float | None:
    """Prompt tokens that prefill really computed: the cached part costs nothing (prompt_tokens_total includes it)."""
    increases = window.increases
    if "computed_prompt_tokens" in increases:
        return increases["computed_prompt_tokens"]
    if "prompt_tokens" not in increases:
        return None
    # 0.8.5 counts prefix hits in blocks; the ratio is free of the unit.
    queries, hits = increases.get("prefix_queries", 0.0), increases.get("prefix_hits", 0.0)
    if hits > queries:
        return None
    return increases["prompt_tokens"] * (1 - hits / queries if queries > 0 else 1.0)


def prompt_steps(window: Window) -> float | None:
    """Engine steps that carried a prompt: iterations of more tokens than requests ever ran at once (one each)."""
    iterations, running = window.histograms.get("iteration_tokens"), window.gauges.get("running")
    if iterations is None or running is None:
        return None
    return above_covering_edge(iterations, max(running.max, _largest_batch(window)))


def _largest_batch(window: Window) -> float:
    """The most streams a step served on average in any interval: scrapes alone miss short-lived requests."""
    return max([_batch(one) if one.batch is None else one.batch for one in window.steps], default=0.0)


def _batch(step: Step) -> float:
    """0 where it is unknown."""
    itl, iterations = step.histograms.get("itl"), step.histograms.get("iteration_tokens")
    known = itl is not None and iterations is not None and iterations.counts[-1]
    batch = itl.counts[-1] / iterations.counts[-1] if known and itl and iterations else 0.0
    object.__setattr__(step, "batch", batch)  # the step itself stays what it is
    return batch


def shared(window: Window | Step) -> bool:
    """Whether streams may have shared steps with other requests' prompts. A request that runs alone computes its
    prompt before its stream begins: then no gap holds any prefill. Several API servers over-count iterations."""
    if isinstance(window, Window):
        return any(shared(one) for one in window.steps)
    if max(window.before.get("running", 0.0), window.after.get("running", 0.0)) > 1:
        return True
    itl, iterations = window.histograms.get("itl"), window.histograms.get("iteration_tokens")
    exact = iterations is not None and "start_time" in window.after
    return itl is not None and (not exact or iterations is None or itl.count > iterations.count)


def pace_without_prefill(window: Window, itl_mean: float | None, prefill_time_ratio: float | None) -> float | None:
    """Seconds per token if no prompt shared the engine: ITL mean x (1 - prefill_time_ratio)."""
    part = prefill_part(window, prefill_time_ratio)
    return None if itl_mean is None or part is None else itl_mean * (1 - part)


def prefill_part(window: Window, prefill_time_ratio: float | None) -> float | None:
    """Prefill's part of the streams' time: prefill_time_ratio, where they shared steps at all; at most what the gaps
    that shared a step are longer than the others."""
    if not shared(window):
        return 0.0
    itl = window.histograms.get("itl")
    took = None if itl is None else mean(itl)
    if not prefill_time_ratio or not took:
        return prefill_time_ratio
    plain = _plain_gap(window, prefill_time_ratio * window.seconds)
    return prefill_time_ratio if plain is None else min(prefill_time_ratio, max(0.0, 1 - plain / took))


def above_covering_edge(histogram: Histogram, value: float) -> float | None:
    """Observations above the lowest finite edge >= value; None where no finite edge covers it."""
    for edge, count in zip(histogram.bounds[:-1], histogram.counts[:-1], strict=True):
        if edge >= value:
            return histogram.count - count
    return None


def prefill_time_ratio(
    window: Window, seconds_per_token: float | None = None, step_seconds: float | None = None
) -> float | None:
    """Prefill's share of the engine's time, 0 to 1; None where it cannot be told.

    Computed prompt tokens per second x seconds per computed token. The latter is the engine's own past at
    running <= 1, else mean prefill time / (computed tokens / steps that carried a prompt). Several API servers
    over-count iterations: without a process start time on the page (single process) only the own past will do.
    step_seconds: an unloaded decode step, where known: the streams that share a prompt's step would have taken that
    long anyway, so each prompt counts only for what it adds.
    """
    computed = computed_prompt_tokens(window)
    if computed is None or window.seconds <= 0 or _unbooked_seconds(window) > _MUCH_UNBOOKED * window.seconds:
        return None
    if computed == 0:
        return 0.0
    shared_step = step_seconds or 0.0 if "running" in window.gauges and window.gauges["running"].max > 1 else 0.0
    if seconds_per_token is not None:
        spent = computed * seconds_per_token - count_of(window, "ttft") * shared_step
    else:
        prefill, carried = mean_of(window, "prefill"), prompt_steps(window)
        if prefill is None or not carried or "start_time" not in window.gauges:
            return None
        spent = carried * (prefill - shared_step)
    return _beside_plain_steps(window, min(1.0, max(0.0, spent / window.seconds)))


def _beside_plain_steps(window: Window, part: float) -> float:
    """Not more of the time than the steps without a prompt leave.

    The requests that finish now had their prompts computed earlier, many perhaps in one step: their mean says little of
    the steps of now. What a token cost where it cost least says what the prompts of now can have taken.
    """
    if not part:
        return part
    computed, least, carried = computed_prompt_tokens(window), _least_seconds_per_token(window), prompt_steps(window)
    if carried is None or computed is None or least is None:
        return part
    plain = _plain_gap(window, min(part * window.seconds, computed * least))
    if plain is None:
        return part
    steps = window.histograms["iteration_tokens"].count - carried
    left = 1 - steps * plain / window.seconds
    # Prompts were computed, so plain steps that would take all of the time were not that long: gaps count a step once
    # for each stream.
    return part if left < _SOME_TIME else min(part, left)


def _least_seconds_per_token(window: Window) -> float | None:
    """The least of the intervals that is above 0."""
    return min((one for one in seconds_per_token(window, 0.0) if one > 0), default=None)


def seconds_per_token(window: Window, beyond: float) -> list[float]:
    """Of each interval: prefill seconds beyond so many, by computed tokens, of the requests that finished in it."""
    found = []
    for step in window.steps:
        prefill, lengths = step.histograms.get("prefill"), step.histograms.get("computed_prompt_length")
        took = None if prefill is None else mean(prefill)
        if prefill is not None and took is not None and lengths is not None and lengths.total:
            found.append(max(0.0, took - beyond) * prefill.count / lengths.total)
    return found


def _plain_gap(window: Window, prefill_seconds: float) -> float | None:
    """Seconds between tokens in steps without a prompt; None where most steps may have had one.

    prefill_seconds: that prompts were computed for, at most. A chunk that is not a prompt's last one is booked nowhere,
    but its step took at least as long as the typical one.
    """
    itl, iterations, carried = (
        window.histograms.get("itl"),
        window.histograms.get("iteration_tokens"),
        prompt_steps(window),
    )
    if itl is None or mean(itl) is None or iterations is None or carried is None or iterations.count <= 0:
        return None
    typical = without_slowest(itl, itl.count / 2)
    share = max(carried, prefill_seconds / typical if typical > 0 else inf) / iterations.count
    return without_slowest(itl, share * itl.count) if share < _FEW_STEPS else None


def _unbooked_seconds(window: Window) -> float:
    """How long prompts have been computed by now that are not booked yet."""
    return sum(step.seconds for step in takewhile(unfinished_prompts, reversed(window.steps)))


def prefill_time_ratio_at_most(window: Window) -> float | None:
    """An upper bound of it: the prefill times of all first tokens one after the other, though they share steps."""
    prefill = mean_of(window, "prefill")
    if prefill is None or "ttft" not in window.histograms or window.seconds <= 0:
        return None
    return min(1.0, count_of(window, "ttft") * prefill / window.seconds)
