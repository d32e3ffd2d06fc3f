"""Signals that contradict themselves or each other are left out before anything is judged by them."""

from dataclasses import dataclass, replace

from phasewatch.core.measures.phases import count_of, mean_of, steady
from phasewatch.core.measures.quantile import estimate
from phasewatch.core.model import Window
from phasewatch.core.settings import Thresholds

# The first edge of vLLM's TTFT: no request is read, scheduled and computed in under a millisecond.
_IMPOSSIBLE_TTFT_SECONDS = 0.001
_PHASES = ("queue", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Contradiction:
    """signals: what was left out. summary: one sentence why."""

    signals: tuple[str, ...]
    summary: str


def consistent(window: Window, thresholds: Thresholds) -> tuple[Window, tuple[Contradiction, ...]]:
    """The window without the signals that cannot be true, and what was found."""
    found = [one for one in (_impossible_ttft(window), _swapped_phases(window, thresholds)) if one is not None]
    if not found:
        return window, ()
    dropped = {signal for one in found for signal in one.signals}
    steps = tuple(
        replace(step, pages=None, histograms={name: h for name, h in step.histograms.items() if name not in dropped})
        for step in window.steps
    )
    kept = {name: histogram for name, histogram in window.histograms.items() if name not in dropped}
    return replace(window, histograms=kept, steps=steps), tuple(found)


def _impossible_ttft(window: Window) -> Contradiction | None:
    """Every first token within a millisecond while requests take longer: an old release recorded zeros."""
    histogram, e2e = window.histograms.get("ttft"), mean_of(window, "e2e")
    slowest = None if histogram is None else estimate(histogram, 1.0)
    if slowest is None or slowest.high is None or slowest.high > _IMPOSSIBLE_TTFT_SECONDS:
        return None
    if e2e is not None and e2e <= _IMPOSSIBLE_TTFT_SECONDS:
        return None
    return Contradiction(("ttft",), "TTFT is implausible: every first token within 1 ms; it is not judged.")


def _swapped_phases(window: Window, thresholds: Thresholds) -> Contradiction | None:
    """A part above its whole: prefill far longer than TTFT, and decode far shorter than its tokens took."""
    ttft, prefill, decode, itl, output = (
        mean_of(window, name) for name in ("ttft", "prefill", "decode", "itl", "output_length")
    )
    if ttft is None or prefill is None or decode is None or itl is None or output is None:
        return None
    # Several tokens a step (speculation) make fewer gaps than tokens: count the gaps themselves.
    streamed = count_of(window, "itl") * itl / max(count_of(window, "e2e"), 1.0)
    if not steady(window, thresholds) or prefill <= 2 * ttft or decode >= streamed / 2:
        return None
    return Contradiction(
        _PHASES,
        f"The phases contradict each other (prefill {prefill:.3g} s is longer than TTFT {ttft:.3g} s, decode"
        f" {decode:.3g} s shorter than its {streamed:.3g} s of gaps): TTFT, ITL and e2e are used instead.",
    )
