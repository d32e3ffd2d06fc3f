"""What a kind of incident gives, and the traffic that several kinds share."""

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from tools.simulator.config import Faults, Flow, FrontEnd, Length, Server
from tools.simulator.sizes import Base, edge_above

# An incident lasts this long after it can first be felt: two windows of 60 s.
LASTS = 120.0


@dataclass(frozen=True, slots=True)
class Judge:
    """From second to second, one of these verdicts (or states) is right, of this target or of its whole model."""

    start: float
    end: float
    accept: tuple[str, ...]
    level: Literal["engine", "model"] = "engine"
    target: str = "demo"


@dataclass(frozen=True, slots=True)
class Incident:
    """What a kind's function gives; the rest follows."""

    base: Base
    flows: tuple[Flow, ...]
    misses: str | None
    story: str
    accept: tuple[str, ...] = ()
    onset: float = 0.0
    settle: float = 15.0  # seconds from onset until users feel it
    lasts: float = LASTS
    objectives: dict[str, float] | None = None
    faults: Faults = field(default_factory=Faults)
    frontend: FrontEnd = field(default_factory=FrontEnd)
    warm: bool = True
    judge: tuple[Judge, ...] = ()
    servers: tuple[Server, ...] = ()
    weights: tuple[float, ...] = ()
    routing: Literal["round_robin", "least_loaded"] = "round_robin"  # where there are no weights
    felt_by: str | None = None


def draw_onset(random: Random) -> float:
    return float(random.randrange(60, 80, 2))


def more(base: Base, onset: float, rate: float, prompt: float | None = None, output: float | None = None) -> Flow:
    prompt, output = prompt or base.prompt, output or base.output
    return Flow(
        Length(prompt, 0.2, 8, round(2 * prompt)), Length(output, 0.3, 2, round(2.5 * output)),
        rate=rate, start=onset, name="more",
    )  # fmt: skip


def streams_of(
    base: Base, clients: int, output: float, start: float = 0.0, end: float = float("inf"), prompt: float | None = None
) -> Flow:
    prompt = prompt or base.prompt
    return Flow(
        Length(prompt, 0.2, 8, round(2 * prompt)), Length(output, 0.2, 2, round(2 * output)),
        clients=clients, ramp=3.0, start=start, end=end, name=f"streams{start:.0f}",
    )  # fmt: skip


def pace_limits(base: Base, pace: float, **more: float) -> dict[str, float]:
    """The usual pace is asked for, generously on the percentile and for first tokens."""
    worst = base.flags.max_num_batched_tokens * base.machine.prefill_token_seconds + 4 * pace
    return {
        "ttft_p99": edge_above("ttft", max(2.0, 3 * worst)),
        "itl_p99": edge_above("itl", 2 * worst),
        "itl_stall": max(1.0, edge_above("itl", 2 * worst)),
    } | more
