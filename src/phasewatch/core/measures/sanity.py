"""Signals that contradict themselves or each other are left out before anything is judged by them."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from math import inf

from phasewatch.core.measures.flows import unbalanced
from phasewatch.core.measures.phases import count_of, mean_of, steady
from phasewatch.core.measures.quantile import estimate
from phasewatch.core.model import AnomalyKind, Histogram, Window
from phasewatch.core.settings import Thresholds

# The first edge of vLLM's TTFT: no request is read, scheduled and computed in under a millisecond.
_IMPOSSIBLE_TTFT_SECONDS = 0.001
_PHASES = ("queue", "prefill", "decode")
_SEVERAL = 2  # of anything: one may be of a page that was written while it was counted
# Part, whole, and what they count: vLLM counts both for the same requests at once.
_PARTS = (
    ("prefix_hits", "prefix_queries", "tokens found in the prefix cache", "those looked up"),
    ("spec_accepted_tokens", "spec_draft_tokens", "draft tokens accepted", "those drafted"),
)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """signals: the histograms left out. summary: one sentence why. remedy: what to do about it. kind: of the anomaly
    and the advisory that say it."""

    signals: tuple[str, ...]
    summary: str
    remedy: str = "Check the vLLM version."
    kind: AnomalyKind = "contradiction"


def consistent(window: Window, thresholds: Thresholds) -> tuple[Window, tuple[Contradiction, ...]]:
    """The window without the signals that cannot be true, and what was found."""
    found = [
        one
        for one in (
            _impossible_ttft(window),
            _swapped_phases(window, thresholds),
            _standing_still(window),
            _unbalanced(window),
            *(_part_above_whole(window, *names) for names in _PARTS),
        )
        if one is not None
    ]
    dropped = {signal for one in found for signal in one.signals}
    if not dropped:
        return window, tuple(found)
    steps = tuple(
        replace(step, pages=None, histograms={name: h for name, h in step.histograms.items() if name not in dropped})
        for step in window.steps
    )
    kept = {name: histogram for name, histogram in window.histograms.items() if name not in dropped}
    return replace(window, histograms=kept, steps=steps), tuple(found)


def _impossible_ttft(window: Window) -> Contradiction | None:
    """Every first token within a millisecond while requests take longer: an old release recorded zeros."""
    histogram = window.histograms.get("ttft")
    if histogram is None or not _within(histogram, _IMPOSSIBLE_TTFT_SECONDS):
        return None
    slowest, e2e = estimate(histogram, 1.0), mean_of(window, "e2e")
    if slowest is None or slowest.high is None or slowest.high > _IMPOSSIBLE_TTFT_SECONDS:
        return None
    if e2e is not None and e2e <= _IMPOSSIBLE_TTFT_SECONDS:
        return None
    return Contradiction(("ttft",), "TTFT is implausible: every first token within 1 ms; it is not judged.")


def _within(histogram: Histogram, limit: float) -> bool:
    """Whether all of it may lie at or below a limit: cheap to ask, and seldom true."""
    edges = bisect_right(histogram.bounds, limit)
    return edges > 0 and max(histogram.counts[:edges]) >= histogram.count


def _standing_still(window: Window) -> Contradiction | None:
    """Every token is a request's first, which TTFT counts, or ends a gap, which ITL counts: one that counts nothing
    while its tokens flow is not attached, and shows no latency that is met."""
    firsts, gaps, finished = count_of(window, "ttft"), count_of(window, "itl"), window.increases.get("finished", 0.0)
    tokens = window.increases.get("generation_tokens", 0.0)
    still = []
    # Those that finished and did not run before got their first token in the window.
    arrived = finished - window.increases.get("finished_error", 0.0) - window.steps[0].before.get("running", inf)
    uncounted = tokens - gaps - window.increases.get("spec_accepted_tokens", 0.0)
    if "ttft" in window.histograms and firsts == 0 and min(arrived, uncounted) >= _SEVERAL:
        still.append("ttft")
    if "itl" in window.histograms and gaps == 0 and tokens - max(firsts, finished) >= _SEVERAL:
        still.append("itl")
    if not still:
        return None
    names = " and ".join(name.upper() for name in still)
    verb = "stands" if len(still) == 1 else "stand"
    return Contradiction(tuple(still), f"{names} {verb} still while {tokens:.0f} tokens were generated: not judged.")


def _unbalanced(window: Window) -> Contradiction | None:
    """No signal is left out: the figures that need the balance are null anyway (numbers)."""
    found = unbalanced(window)
    if found is None:
        return None
    remedy = "Check that all API servers of the engine are on the page, and that no other server's counters are."
    return Contradiction((), f"Flows do not add up: {found}", remedy, "inconsistent_flows")


def _part_above_whole(window: Window, part: str, whole: str, counted: str, of: str) -> Contradiction | None:
    """No signal is left out: a ratio of the two is null anyway (numbers.ratio)."""
    less, more = window.increases.get(whole), window.increases.get(part)
    if less is None or more is None or more <= less:
        return None
    return Contradiction((), f"More {counted} ({more:.0f}) than {of} ({less:.0f}): their ratio is not used.")


def _swapped_phases(window: Window, thresholds: Thresholds) -> Contradiction | None:
    """A part above its whole: prefill far longer than TTFT, and decode far shorter than its tokens took."""
    ttft, prefill = mean_of(window, "ttft"), mean_of(window, "prefill")
    if ttft is None or prefill is None or prefill <= 2 * ttft:
        return None
    decode, itl, output = (mean_of(window, name) for name in ("decode", "itl", "output_length"))
    if decode is None or itl is None or output is None:
        return None
    # Several tokens a step (speculation) make fewer gaps than tokens: count the gaps themselves.
    streamed = count_of(window, "itl") * itl / max(count_of(window, "e2e"), 1.0)
    if not steady(window, thresholds) or decode >= streamed / 2:
        return None
    return Contradiction(
        _PHASES,
        f"The phases contradict each other (prefill {prefill:.3g} s is longer than TTFT {ttft:.3g} s, decode"
        f" {decode:.3g} s shorter than its {streamed:.3g} s of gaps): TTFT, ITL and e2e are used instead.",
    )
