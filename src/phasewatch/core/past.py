"""An engine's own past, kept in the process: how fast it decoded and prefilled at which batch and context.

It survives restarts of the engine: that is when flags change, and the comparison is wanted most.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from phasewatch.core.model import Numbers, Window
from phasewatch.core.settings import Thresholds
from phasewatch.core.window import scrapes

_REMEMBERED = 2000  # windows: hours at one a round
_ENOUGH = 2  # windows: one alone may be a transition
# A low quartile: an hour of trouble in the past must not become what is normal.
_QUARTILE = 0.25


@dataclass(frozen=True, slots=True)
class Moment:
    """One window of one engine. pace: ITL seconds without prefill's share. batch: mean running while it ran."""

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

    unloaded_pace: at running <= 2. same_pace: at this batch and context. shorter_pace, shorter_context: at this batch
    with contexts at most half as long. tpot_without_speculation: at this batch. All in seconds.
    """

    unloaded_pace: float | None = None
    same_pace: float | None = None
    shorter_pace: float | None = None
    shorter_context: float | None = None
    tpot_without_speculation: float | None = None
    seconds_per_prompt_token: float | None = None


class Past:
    """A bounded memory of moments. Windows that overlap the one being judged are not its past."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=_REMEMBERED)

    def remember(self, moment: Moment) -> None:
        self._moments.append(moment)

    def seconds_per_prompt_token(self, before: float) -> float | None:
        """At running <= 1: nothing else took part in those prefills."""
        alone = (m for m in self._moments if m.at <= before and m.running_max <= 1)
        return _low(m.seconds_per_prompt_token for m in alone)

    def view(self, now: Moment, before: float, thresholds: Thresholds) -> PastView:
        """What is comparable with `now`, from windows that ended at or before `before`."""
        older = [moment for moment in self._moments if moment.at <= before]
        alike = thresholds.alike_ratio

        def near(one: float | None, other: float | None) -> bool:
            return one is not None and other is not None and max(one, other) <= alike * max(min(one, other), 1.0)

        same_batch = [m for m in older if near(m.batch, now.batch)]
        shorter = [
            m for m in same_batch if m.context is not None and now.context is not None and m.context <= now.context / 2
        ]
        plain = [m for m in same_batch if not m.speculating]
        return PastView(
            unloaded_pace=_low(m.pace for m in self._moments if m.running_max <= 2),
            same_pace=_low(m.pace for m in same_batch if near(m.context, now.context)),
            shorter_pace=_low(m.pace for m in shorter),
            shorter_context=_low(m.context for m in shorter),
            tpot_without_speculation=_low(m.tpot for m in plain),
            seconds_per_prompt_token=self.seconds_per_prompt_token(before),
        )


def _low(values: Iterable[float | None]) -> float | None:
    """The low quartile of the known values; None of too few."""
    known = sorted(value for value in values if value is not None)
    return known[int(_QUARTILE * (len(known) - 1))] if len(known) >= _ENOUGH else None


def moment(at: float, window: Window, numbers: Numbers) -> Moment:
    """The present window as a moment to compare and to remember."""
    running = [page["running"] for page in scrapes(window) if page.get("running", 0.0) > 0]
    tokens, itl = numbers.tokens, numbers.itl_seconds.mean
    lengths, prefill = window.histograms.get("computed_prompt_length"), window.histograms.get("prefill")
    known = lengths is not None and prefill is not None and numbers.phases.prefill.mean_seconds is not None
    return Moment(
        at=at,
        batch=sum(running) / len(running) if running else 0.0,
        running_max=window.gauges["running"].max if "running" in window.gauges else 0.0,
        context=arriving_context(window, numbers),
        pace=None if itl is None or numbers.rho is None else itl * (1 - numbers.rho),
        tpot=numbers.tpot_seconds.mean,
        speculating=window.increases.get("spec_drafts", 0.0) > 0,
        seconds_per_prompt_token=(
            prefill.total / lengths.total if known and lengths and prefill and lengths.total and prefill.total else None
        )
        if tokens.computed_prompt_per_second
        else None,
    )


def arriving_context(window: Window, numbers: Numbers) -> float | None:
    """Tokens a running request carries on average: prompt of those admitted (known at once, not only when they
    finish) + half the mean output."""
    first = window.histograms.get("ttft")
    prompts = window.increases.get("prompt_tokens")
    if first is None or first.count <= 0 or prompts is None:
        return numbers.tokens.context_mean
    return prompts / first.count + (numbers.tokens.output_mean or 0.0) / 2
