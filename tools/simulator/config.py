"""What is simulated: the machine, the server's flags, the front end, what breaks when, and who asks for what.

All times are seconds since the simulation began. Everything is frozen; a Config and a seed give one history.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds that parts of an engine step take.

    A step costs step_seconds (the weights are read once), per_request_seconds for each token verified or decoded
    (compute), per_context_token_seconds for each context token a decoding request holds (its KV is read) and
    prefill_token_seconds for each prompt token computed. noise: relative standard deviation of a step.
    cold_seconds: extra in each of the first cold_prefills steps that carry a prompt (kernels are compiled).
    uncaptured_seconds: extra in each step that decodes for more than captured_batch requests (no CUDA graph for it).
    """

    step_seconds: float
    prefill_token_seconds: float
    per_request_seconds: float = 0.0
    per_context_token_seconds: float = 0.0
    draft_token_seconds: float = 0.0
    noise: float = 0.03
    cold_seconds: float = 0.0
    cold_prefills: int = 0
    captured_batch: float = float("inf")
    uncaptured_seconds: float = 0.0

    def decode_seconds(self, batch: float, context: float) -> float:
        """A step of `batch` decoding requests of `context` tokens each, without any prompt."""
        smooth = self.step_seconds + batch * (self.per_request_seconds + context * self.per_context_token_seconds)
        return smooth + self.uncaptured(batch)

    def uncaptured(self, batch: float) -> float:
        """What a step of so many decoding requests takes longer because no graph was captured for it."""
        return self.uncaptured_seconds if batch > self.captured_batch else 0.0


@dataclass(frozen=True, slots=True)
class Speculation:
    """`drafts` tokens proposed a step; each is accepted with probability `acceptance` if those before it were.

    proposals: share of a request's steps for which the drafter finds anything (n-gram lookup often does not).
    """

    drafts: int
    acceptance: float
    proposals: float = 1.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """Prompts computed elsewhere (P/D): KV arrives over one link, `token_seconds` a token, `links` at a time."""

    token_seconds: float
    links: int = 1
    token_bytes: int = 131072


@dataclass(frozen=True, slots=True)
class Flags:
    """vLLM's own flags, by vLLM's names. kv_blocks counts the null block too, as num_gpu_blocks does."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32768
    block_size: int = 16
    kv_blocks: int = 8192
    prefix_caching: bool = True
    reserve_full_isl: bool = True
    long_prefill_token_threshold: int = 0
    max_num_queued_reqs: int | None = None
    speculation: Speculation | None = None
    transfer: Transfer | None = None
    data_parallel: int = 1
    api_servers: int = 1


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """Seconds of the API server: accepting a request, tokenising (base + per token), passing on one output.

    scrape_cpu_seconds and idle_cpu are only for process_cpu_seconds_total. network_seconds: one way to the client.
    """

    accept_seconds: float = 0.0005
    tokenise_seconds: float = 0.001
    tokenise_token_seconds: float = 2e-6
    output_seconds: float = 20e-6
    network_seconds: float = 0.0005
    scrape_cpu_seconds: float = 0.008
    idle_cpu: float = 0.02


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong on one server.

    engine_speed, frontend_speed: (from second, speed) steps; 1 is normal, 0 stands still. admission_stop: (from, to)
    in which the scheduler admits nobody. restart: (killed at, seconds until the port listens again).
    prefill_speed: the same of prompt tokens alone (another process takes compute that decode does not need).
    fail_5xx, fail_error: (from second, share of requests) answered with status 500, or ended by the engine with
    finish reason "error" after the first token. blocks_kept: (from second, mean seconds) for which the blocks of
    finished requests stay taken, as on a prefill engine whose decode side collects late. transfers_fail: (from second,
    share) of the prompts' KV that does not arrive, so that they are computed here.
    """

    engine_speed: tuple[tuple[float, float], ...] = ()
    frontend_speed: tuple[tuple[float, float], ...] = ()
    prefill_speed: tuple[tuple[float, float], ...] = ()
    admission_stop: tuple[float, float] | None = None
    restart: tuple[float, float] | None = None
    fail_5xx: tuple[float, float] | None = None
    fail_error: tuple[float, float] | None = None
    blocks_kept: tuple[float, float] | None = None
    transfers_fail: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Length:
    """Token counts: log-normal around `mean` with relative spread, cut at [low, high]."""

    mean: float
    spread: float = 0.0
    low: int = 1
    high: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Flow:
    """One kind of traffic between `start` and `end`.

    Open loop: `rate` Poisson arrivals a second. Closed loop: `clients` that ask again `think` seconds (exponential
    mean) after each answer, starting within `ramp` seconds. every: arrivals at fixed distance instead of Poisson.
    burst: that many arrivals at once at `start`. head: tokens of the prompt that all requests of the flow share
    (heads: that many different ones). repeat: a closed-loop client sends its one prompt again and again.
    stop: share of answers that end with "stop" before max_tokens (max_tokens is then twice as long).
    timeout: the client leaves that many seconds after sending. leave: share of clients that leave in mid-answer.
    target: the server that its requests go to, whatever the router does with others.
    """

    prompt: Length
    output: Length
    rate: float = 0.0
    every: float | None = None
    clients: int = 0
    think: float = 0.0
    ramp: float = 0.0
    burst: int = 0
    start: float = 0.0
    end: float = float("inf")
    head: int = 0
    heads: int = 1
    repeat: bool = False
    stop: float = 0.0
    timeout: float | None = None
    leave: float = 0.0
    target: str | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request whose time and size are given: what a recorded run sent. head: (name, tokens) shared. target: where
    it goes; None: where the router sends it."""

    send: float
    prompt: int
    output: int
    max_tokens: int | None = None
    head: tuple[str, int] | None = None
    timeout: float | None = None
    flow: str = ""
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """One simulated target."""

    machine: Machine
    flags: Flags = Flags()
    frontend: FrontEnd = FrontEnd()
    faults: Faults = Faults()
    name: str = "demo"
    model_name: str = "demo-llama"


@dataclass(frozen=True, slots=True)
class Config:
    """Servers behind a router and their traffic. weights: for routing "weighted", one a server."""

    servers: tuple[Server, ...]
    flows: tuple[Flow, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    routing: Literal["round_robin", "least_loaded", "weighted"] = "round_robin"
    weights: tuple[float, ...] = field(default=())
    # Requests served before second 0: operators warm a server up, and counters never begin at zero.
    warm: bool = True
    started_unix: float = 1_795_970_000.0
