"""Random machines and the sums that size an incident: steady load, capacity, and what operators would ask for.

From queueing (Little's law) and the machine's two speeds only; nothing here knows phasewatch's rules.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tools.simulator.config import Flags, Flow, Length, Machine
from tools.simulator.metrics import EDGES

# Share of a long answer's stalls that any operator would mind: steps are kept shorter than this but for kinds about it.
_LONGEST_STEP_SECONDS = 0.6


@dataclass(frozen=True, slots=True)
class Class:
    """A kind of machine: ranges of step_seconds, prefill tokens/s, seconds per context token, KV tokens; block size."""

    name: str
    step: tuple[float, float]
    prefill: tuple[float, float]
    context: tuple[float, float]
    kv_tokens: tuple[float, float]
    block_size: int
    budgets: tuple[int, ...]


# A small model on CPUs; 8B-class models on inference cards; on A100 and H100 class cards, or larger ones over several.
CLASSES = (
    Class("cpu", (0.035, 0.06), (1_000, 3_000), (3e-7, 1e-6), (40_000, 120_000), 128, (2048,)),
    Class("small", (0.018, 0.045), (2_000, 8_000), (1e-7, 4e-7), (60_000, 200_000), 16, (2048,)),
    Class("a100", (0.010, 0.030), (8_000, 20_000), (4e-8, 1.2e-7), (100_000, 400_000), 16, (2048, 4096, 8192)),
    Class("h100", (0.008, 0.025), (15_000, 50_000), (2e-8, 8e-8), (150_000, 600_000), 16, (8192,)),
)


def log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


@dataclass(frozen=True, slots=True)
class Base:
    """A service in its usual state: the machine, its flags, and its light traffic (`busy` streams on average)."""

    machine: Machine
    flags: Flags
    prompt: float
    output: float
    busy: float

    @property
    def stream_seconds(self) -> float:
        """What one more stream adds to a decode step."""
        return (
            self.machine.per_request_seconds + (self.prompt + self.output / 2) * self.machine.per_context_token_seconds
        )

    def rate(self, busy: float, prompt: float | None = None, output: float | None = None) -> float:
        """Arrivals a second that keep `busy` streams decoding (Little's law with prefill taking its share)."""
        prompt = self.prompt if prompt is None else prompt
        output = self.output if output is None else output
        machine = self.machine
        return busy / (
            output * machine.step_seconds
            + busy * (prompt * machine.prefill_token_seconds + output * self.stream_seconds)
        )

    def pace(self, busy: float) -> float:
        """Seconds a decode step takes with `busy` streams and no prompt in it."""
        return self.machine.decode_seconds(busy, self.prompt + self.output / 2)

    def ttft(self, prompt: float) -> float:
        """Unloaded seconds to the first token, in chunks of the token budget."""
        chunks = math.ceil(prompt / self.flags.max_num_batched_tokens)
        return prompt * self.machine.prefill_token_seconds + chunks * self.pace(self.busy)

    def light(self, start: float = 0.0, end: float = float("inf"), busy: float | None = None) -> Flow:
        return Flow(
            Length(self.prompt, 0.4, 8, round(3 * self.prompt)), Length(self.output, 0.4, 4, round(3 * self.output)),
            rate=self.rate(busy or self.busy), start=start, end=end, name="usual",
        )  # fmt: skip

    def objectives(self) -> dict[str, float]:
        """What an operator would ask of it, in seconds: bucket edges well above the usual."""
        longest = 3 * self.prompt
        chunk = min(longest, self.flags.max_num_batched_tokens) * self.machine.prefill_token_seconds
        # A prompt may find two others before it, and the step under way.
        ttft = 2 * self.ttft(longest) + self.pace(2 * self.busy)
        return {
            "ttft_p99": edge_above("ttft", max(0.2, 1.5 * ttft)),
            "itl_p99": edge_above("itl", 1.5 * (chunk + self.pace(2 * self.busy))),
            "itl_stall": max(1.0, edge_above("itl", 2 * (chunk + self.pace(2 * self.busy)))),
        }


def edge_above(edges: str, seconds: float) -> float:
    return next(edge for edge in EDGES[edges] if edge >= seconds)


def draw(random: Random, classes: Sequence[str] = ("cpu", "small", "a100", "h100")) -> Base:
    """A machine of one of the classes, with flags as people set them, and light traffic."""
    kind = random.choice([each for each in CLASSES if each.name in classes])
    prefill = 1 / log_uniform(random, *kind.prefill)
    machine = Machine(
        step_seconds=log_uniform(random, *kind.step),
        prefill_token_seconds=prefill,
        # A token decoded costs the arithmetic of a prompt token, part of it hidden behind the weights' way from memory.
        per_request_seconds=prefill * random.uniform(0.4, 0.9),
        per_context_token_seconds=log_uniform(random, *kind.context),
        noise=random.uniform(0.01, 0.06),
    )
    budget = random.choice(kind.budgets)
    affordable = int(_LONGEST_STEP_SECONDS / prefill) // 256 * 256
    tokens = log_uniform(random, *kind.kv_tokens)
    flags = Flags(
        max_num_seqs=random.choice((16, 32, 64, 128, 256)),
        max_num_batched_tokens=max(256, min(budget, affordable)),
        block_size=kind.block_size,
        kv_blocks=round(tokens / kind.block_size),
        max_model_len=32768,
    )
    # Prompts and answers of a chat service; prompts short enough that prefill is quick here.
    prompt = log_uniform(random, 50, min(1200.0, max(80.0, 0.25 / prefill)))
    output = log_uniform(random, 40, 250)
    return Base(machine, flags, prompt, output, busy=random.uniform(0.8, 2.5))


def with_flags(base: Base, **flags: object) -> Base:
    return replace(base, flags=replace(base.flags, **flags))  # type: ignore[arg-type]


def with_machine(base: Base, **machine: object) -> Base:
    return replace(base, machine=replace(base.machine, **machine))  # type: ignore[arg-type]


def pool_of(base: Base, tokens: float) -> int:
    """kv_blocks that hold `tokens`, and the null block."""
    return max(2, round(tokens / base.flags.block_size)) + 1
