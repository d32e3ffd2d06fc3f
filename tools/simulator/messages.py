"""What travels between clients, front end and engine."""

from dataclasses import dataclass, field

from tools.simulator.kv import Key


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way. Times: `sent` by the client; `arrival` in the front end; the rest in the engine."""

    number: int
    sent: float
    prompt: int
    output: int
    max_tokens: int
    head: tuple[str, int] | None = None
    flow: str = ""
    leave_after: int | None = None  # the client leaves after so many chunks
    fail: bool = False  # the engine ends it with "error" after its first token
    arrival: float = 0.0
    queued: float | None = None
    scheduled: float | None = None
    first_token: float | None = None
    computed: int = 0  # tokens whose KV is in the pool
    cached: int = 0  # prompt tokens that the prefix cache (or a transfer) supplied at admission
    external: int = 0
    generated: int = 0
    blocks: int = 0
    keys: list[Key] = field(default_factory=list)  # published blocks among them
    in_pool: bool = False  # KV has arrived from elsewhere
    preemptions: int = 0
    unreported_preemptions: int = 0
    delivered: int = 0  # tokens the front end has passed on
    delivered_first: float = 0.0  # engine clock
    delivered_last: float = 0.0
    chunks: list[float] = field(default_factory=list)  # seconds after `sent`, at the client
    closed: bool = False  # finished, failed or left, as the front end sees it
    target: str = ""
    status: int | None = None  # of the answer, where one came
    done: bool = False
    error: str | None = None
    ended: float | None = None  # seconds after `sent`, at the client


@dataclass(slots=True, eq=False)
class Output:
    """What a step says of one request. tokens: how many it emits."""

    request: Request
    tokens: int
    finish: str | None = None


@dataclass(slots=True, eq=False)
class StepResult:
    """One message of the engine to the front end: the gauges as the step left them, and what happened since the last.

    at: the engine's clock at the end of the step. transfers: (seconds, bytes) of KV that arrived. fetches:
    waiting_to_start, in_progress, completed_waiting. accepted: draft tokens by position.
    """

    at: float = 0.0
    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv_usage: float = 0.0
    outputs: list[Output] = field(default_factory=list)
    prefix_queries: int = 0
    prefix_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    transfers: list[tuple[float, int]] = field(default_factory=list)
    failed_transfers: int = 0
    fetches: tuple[int, int, int] = (0, 0, 0)
    drafts: int = 0
    draft_tokens: int = 0
    accepted: list[int] = field(default_factory=list)
