"""Gaps between tokens: how much time the long ones hold, and how many streams a step served."""

from math import inf

from phasewatch.core.measures.histogram import edges, in_buckets
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
