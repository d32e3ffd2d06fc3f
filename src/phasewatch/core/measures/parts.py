"""What TTFT and e2e are made of, of the measured whole: of all requests (means), or of those over a limit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from phasewatch.core.measures.histogram import count_above
from phasewatch.core.measures.phases import (
    count_of,
    longest_step,
    mean_of,
    prompt_steps,
    unfinished_prefill,
    wait_for_running_step,
)
from phasewatch.core.measures.slowest import Slowest, at_most, slowest, waits_for_steps
from phasewatch.core.model import Window

_RANKS = 64  # at so many places of a tail its parts are added up


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of the mean TTFT (or e2e), or of the mean of those over a limit, by where they went.

    whole: as measured; None without any. by_phase: queue, prefill, decode, running_step (the wait for the step that
    runs when a request arrives: in no phase's own time), and outside (what is left), of those that are known. Of a
    tail each phase has its own slowest requests, so together they can be more than the whole.
    behind_prompts: of queue and rest, what the computing of others' prompts explains, in one step or in many that take
    the whole token budget. outside_alone: of those over the limit, the share that no time in the engine could have
    brought over it.
    """

    whole: float | None = None
    by_phase: Mapping[str, float] = field(default_factory=dict)
    behind_prompts: float = 0.0
    outside_alone: float = 0.0

    def share(self, phase: str) -> float | None:
        """Of the measured whole, 0 to 1; None where either is unknown."""
        part = self.by_phase.get(phase)
        return None if part is None or not self.whole else min(1.0, part / self.whole)

    def with_queue(self, seconds: float) -> "Parts":
        """The same, with a queue of at least so many seconds."""
        if seconds <= self.by_phase.get("queue", 0.0):
            return self
        whole = max(self.whole or 0.0, seconds + self.by_phase.get("prefill", 0.0))
        rest = {"outside": 0.0, "running_step": 0.0} if "outside" in self.by_phase else {}
        return Parts(whole, {**self.by_phase, **rest, "queue": seconds}, self.behind_prompts)

    def largest(self, phase: str) -> bool:
        """Whether no other part is larger."""
        return phase in self.by_phase and self.by_phase[phase] >= max(self.by_phase.values())


@dataclass(frozen=True, slots=True)
class Tails:
    """What a tail of TTFT is explained by: the slowest of ttft, queue and prefill, where they are known; and the
    longest waits for running steps, and for others' prompts, None without a finished request."""

    slowest: Mapping[str, Slowest]
    steps: Slowest | None
    prompts: Slowest | None


def ttft_of_all(window: Window) -> Parts:
    """By the exact means."""
    whole = mean_of(window, "ttft")
    known = {name: mean for name in ("queue", "prefill") if (mean := mean_of(window, name)) is not None}
    if whole is None or len(known) < 2:
        return Parts(whole, known)
    rest = max(0.0, whole - sum(known.values()))
    step = min(rest, wait_for_running_step(window, longest_step(window)) or 0.0)
    behind = min(rest + known["queue"], wait_for_running_step(window) or 0.0)
    return Parts(whole, known | {"running_step": step, "outside": rest - step}, behind)


def ttft_over(window: Window, limit: float, found: Tails) -> Parts | None:
    """Of those over the limit, whose parts are those of as many slowest of each phase; None without any."""
    whole, count = found.slowest.get("ttft"), _over(window, "ttft", limit)
    if whole is None or count < 1:
        return None
    phases = {name: found.slowest[name] for name in ("queue", "prefill") if name in found.slowest}
    steps, prompts = found.steps, found.prompts
    known = {name: one.mean(count * one.count / whole.count) for name, one in phases.items()}
    mean = whole.mean(count)
    if len(known) < 2:
        return Parts(mean, known)
    rest = max(0.0, mean - sum(known.values()))
    step = min(rest, _mean_of(steps, count))
    behind = min(rest + known["queue"], _mean_of(prompts, count))
    alone = _not_by(tuple(phases.values()), steps, count, whole.count, limit)
    return Parts(mean, known | {"running_step": step, "outside": rest - step}, behind, alone)


def e2e_over(window: Window, limit: float) -> Parts | None:
    """The same of whole requests: ttft, decode, and outside: what comes late after the first token."""
    count = _over(window, "e2e", limit)
    if count < 1:
        return None
    phases = slowest(window, ("e2e", "ttft", "decode"))
    whole = phases.pop("e2e", None)
    if whole is None:
        return None
    known = {name: one.mean(count * one.count / whole.count) for name, one in phases.items()}
    mean = whole.mean(count)
    rest = {"outside": max(0.0, mean - sum(known.values()))} if len(known) == 2 else {}
    alone = _not_by(tuple(phases.values()), None, count, whole.count, limit) if rest else 0.0
    return Parts(mean, known | rest, outside_alone=alone)


def e2e_of_all(window: Window) -> Parts:
    """By the exact means, where first tokens and finishes are of about the same requests."""
    whole = mean_of(window, "e2e")
    known = {name: mean for name in ("ttft", "decode") if (mean := mean_of(window, name)) is not None}
    if whole is None or len(known) < 2:
        return Parts(whole, known)
    return Parts(whole, known | {"outside": max(0.0, whole - sum(known.values()))})


def _over(window: Window, name: str, limit: float) -> float:
    histogram = window.histograms.get(name)
    return 0.0 if histogram is None else count_above(histogram, limit).interpolated


def _mean_of(waits: Slowest | None, count: float) -> float:
    """Of the `count` longest waits; who did not wait counts 0."""
    return 0.0 if waits is None else waits.mean(count) * min(1.0, waits.count / count)


def _not_by(phases: tuple[Slowest, ...], waits: Slowest | None, count: float, whole: float, limit: float) -> float:
    """Of the `count` slowest, the share that stays within the limit even where the slowest of each phase are one."""
    within = 0
    for at in range(_RANKS):
        rank = count * (at + 0.5) / _RANKS
        engine = sum(one.value(rank * one.count / whole) for one in phases)
        within += engine + (0.0 if waits is None else waits.value(rank)) <= limit
    return within / _RANKS


def tails(window: Window) -> Tails:
    """Of the window, whatever the limit."""
    found = slowest(window, ("ttft", "queue", "prefill"))
    prefills = found.get("prefill")
    waits = (None, None) if prefills is None or window.seconds <= 0 else _waits_for_prompts(window, prefills)
    return Tails(found, *waits)


def _waits_for_prompts(window: Window, prefills: Slowest) -> tuple[Slowest, Slowest]:
    """How long those wait who arrive while a prompt is computed: until the running step ends (no phase counts that),
    and until the prompt is done, be it in one step or in many that take the whole token budget. prefills: the slowest.

    As many steps carried prompts as iterations had more tokens than requests ever ran at once: the longest prefills
    are taken for them, since several prompts share a step. A prompt may take several steps: where streams run all the
    time, their longest gap says how long a step is at most.
    """
    carried, longest = prompt_steps(window), longest_step(window)
    prompts = prefills if carried is None else prefills.first(carried)
    if (unfinished := unfinished_prefill(window)) > 0:
        prompts = prompts.with_one(unfinished)
    arrivals = count_of(window, "ttft") / window.seconds
    waits = waits_for_steps(prompts, arrivals, window.seconds)
    if longest >= prompts.value(0):
        return waits, waits
    return waits_for_steps(at_most(prompts, longest), arrivals, window.seconds), waits
