"""Some replicas carry the load while others have room (proof: peers.compare)."""

from dataclasses import dataclass

from phasewatch.core.diagnosis.causes._row import Advice, CauseRow, Evidence, known
from phasewatch.core.formatting import number, percent
from phasewatch.core.model import Remedy

REFUTED_BY = "no engine with room, or prompts that only some engines may serve."


@dataclass(frozen=True, slots=True)
class Tokens:
    """A request on the loaded engine has this many tokens of a kind (prompt, output) on average, on its peers `usual`
    at equal requests."""

    kind: str
    value: float
    usual: float

    @property
    def times(self) -> float:
        return self.value / self.usual


@dataclass(frozen=True, slots=True)
class Uneven:
    """loaded: labels of the engines with the load, on which so many run and wait on average. free: engines with room,
    idle: those of them without any request. hits: hit ratio of the prefix cache where it is far above the others'."""

    loaded: tuple[str, ...]
    running: float
    waiting: float
    free: int
    idle: tuple[str, ...]
    engines: int
    hits: float | None
    tokens: Tokens | None

    @property
    def evidence(self) -> Evidence:
        return known(
            engines=", ".join(self.loaded),
            running_mean=self.running,
            waiting_mean=self.waiting,
            free_engines=float(self.free),
            idle_engines=float(len(self.idle)) or None,
            all_engines=float(self.engines),
            prefix_hit_ratio=self.hits,
            **tokens_evidence(self.tokens),
        )

    @property
    def summary(self) -> str:
        named = ", ".join(self.loaded)
        pair = "The pair differs: " if self.engines == 2 else ""
        room = f"{self.free} of {self.engines} engines {'has' if self.free == 1 else 'have'} free capacity and no queue"
        if self.idle:
            room += f" ({len(self.idle)} idle)" if len(self.idle) < self.free else " and no request at all"
        if self.waiting:
            said = f"{pair}{number(self.waiting)} requests wait on {named} while {room}"
        else:
            said = f"{pair}Only {named} {'is' if len(self.loaded) == 1 else 'are'} slow, while {room}"
        said += ": the fleet has capacity, routing does not use it."
        if self.tokens is not None:
            said += f" {tokens_summary(named, self.tokens)}"
        if self.hits is not None:
            said += (
                f" {percent(self.hits)} of its prompt tokens come from its prefix cache: prefix or session affinity"
                " sends requests there."
            )
        return said

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Those whose condition holds, what the evidence points to first."""
        wanted = (
            (self.tokens is not None, BALANCE_TOKENS),
            (self.hits is not None, LOOSEN_AFFINITY),
            (True, ROUTE_BY_LOAD),
            (self.hits is None and self.tokens is None, LOOSEN_AFFINITY),
            (bool(self.idle), PROBE_IDLE),
        )
        return tuple(advice.remedy for holds, advice in wanted if holds)


def tokens_evidence(tokens: Tokens | None) -> dict[str, float | str]:
    if tokens is None:
        return {}
    return {
        "tokens_of": tokens.kind,
        "tokens_mean": tokens.value,
        "peers_tokens_mean": tokens.usual,
        "times_the_tokens": tokens.times,
    }


def tokens_summary(named: str, tokens: Tokens) -> str:
    return (
        f"Requests are equal, tokens are not: {named} gets {number(tokens.times)} times the {tokens.kind} tokens"
        f" ({number(tokens.value)} a request, its peers {number(tokens.usual)})."
    )


# fmt: off
BALANCE_TOKENS = Advice("balance by tokens (those in flight, or KV cache usage), not by number of requests",
    "equal numbers of requests are unequal work here", "now", "TTFT and ITL even out between replicas")
LOOSEN_AFFINITY = Advice("loosen session or prefix affinity when the preferred replica queues",
    "affinity without a limit overloads some replicas", "now", "prefix cache hits fall a little")
ROUTE_BY_LOAD = Advice("route by load (least waiting), not round robin or by session",
    "some replicas queue while others have room", "now", "TTFT and ITL even out between replicas")
PROBE_IDLE = Advice("send each idle replica one request",
    "routers leave out replicas that they hold for dead, and a dead one looks idle", "now", "none")
CAUSE = CauseRow(
    verdict="load_imbalance",
    phase="replicas",
    look="Fleet, the table of replicas: waiting on one while others have room.",
    remedies=(ROUTE_BY_LOAD, LOOSEN_AFFINITY, BALANCE_TOKENS, PROBE_IDLE),
)
# fmt: on
