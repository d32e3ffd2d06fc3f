"""Gaps between tokens: how much time the long ones hold, what the others take, and how many streams a step served."""

from math import inf

from phasewatch.core.measures.histogram import bucket_means, edges, in_buckets
from phasewatch.core.model import Histogram, Step


def unfinished_prompts(step: Step) -> bool:
    """Whether prompts were computed all through an interval and are not booked yet: none was done in it (a prompt is
    booked whole, at its last chunk), so all that ran at both ends but got no token in a step is being prefilled.
    Several API servers over-count steps: then False."""
    return step.increases.get("prompt_tokens") == 0 and streams(step) + 1 <= ran_throughout(step)


def ran_throughout(step: Step) -> float:
    """Requests that ran at both ends, at most."""
    return min(step.before.get("running", 0.0), step.after.get("running", 0.0))


def streams(step: Step) -> float:
    """Tokens a step gave on average, one a stream; inf where that cannot be told."""
    itl, iterations = step.histograms.get("itl"), step.histograms.get("iteration_tokens")
    if itl is None or iterations is None or iterations.count <= 0 or "start_time" not in step.after:
        return inf
    return itl.count / iterations.count


def seconds_over(histogram: Histogram, limit: float) -> float:
    """Seconds held by observations over a limit: whole buckets above it at their middle (the open one at its edge).

    The bucket around the limit counts half its part above it. Never more than the sum where there is one.
    """
    seconds = 0.0
    for at, count in enumerate(in_buckets(histogram)):
        low, high = edges(histogram, at)
        if not count or high <= limit:
            continue
        low = max(low, limit)
        part = 1.0 if high == inf else (high - low) / (high - edges(histogram, at)[0])
        seconds += count * part * (low if high == inf else (low + high) / 2)
    return seconds if histogram.total is None else min(seconds, max(histogram.total, 0.0))


def without_slowest(itl: Histogram, slowest: float) -> float:
    """Mean of all gaps but so many of the slowest: what a gap takes that no prompt made longer, inside the edges of
    their buckets. Only gaps in buckets above the median's are visibly longer than others; each is taken at the middle
    of its bucket (of the open one, at its edge)."""
    total, count = itl.total or 0.0, itl.count
    buckets = in_buckets(itl)
    held, left, above = 0.0, slowest, 0.0
    for at in range(len(buckets) - 1, -1, -1):
        if left <= 0 or above + buckets[at] > count / 2:
            break
        low, high = edges(itl, at)
        taken = min(buckets[at], left)
        held += taken * (low if high == inf else (low + high) / 2)
        left, above = left - taken, above + buckets[at]
    fastest = next(edges(itl, at)[0] for at, many in enumerate(buckets) if many)
    return max(fastest, min(total / count, (total - held) / (count - (slowest - left))))


def fastest(itl: Histogram, share: float) -> float:
    """Mean of the fastest part of the gaps, whose `mean` is known. share: above 0, of their number."""
    left = share * itl.count
    held = 0.0
    for gap, count in bucket_means(itl):
        taken = min(count, left)
        held, left = held + taken * gap, left - taken
    return held / (share * itl.count)


def longest_gap(itl: Histogram | None) -> float:
    """Low edge of the slowest gap's bucket: at least that long."""
    if itl is None:
        return 0.0
    held = [at for at, count in enumerate(itl.counts) if count < itl.count]
    return itl.bounds[held[-1]] if held else 0.0
