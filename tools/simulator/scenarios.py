"""Kinds of incidents: a row each, with random sizes. The simulator judges phasewatch, so no size comes from its rules.

`scenario(kind, seed)` gives the configuration, what was asked of the service, when the trouble begins, and which
verdicts are right in which stretch. Benchmarks count an incident only if `judge.counts` says that users felt it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.simulator.config import Config, Server
from tools.simulator.incident import Incident, Judge
from tools.simulator.kinds_healthy import bursty, busy, one_slow, quiet, rolling_restart, seldom, wake_up
from tools.simulator.kinds_itl import (
    decode_bandwidth,
    decode_batch,
    decode_batch_cliff,
    decode_context,
    decode_interference,
    decode_pause,
    decode_preemption,
    decode_slow,
    decode_speculation,
    output_length,
)
from tools.simulator.kinds_other import (
    admission_stalled,
    engine_stalled,
    healthy,
    idle,
    load_affinity,
    load_imbalance,
    replica_outlier,
    requests_failing,
    restart,
    tokens_unequal,
)
from tools.simulator.kinds_ttft import (
    client_aborts,
    cold_start,
    frontend,
    kv_handovers,
    kv_held,
    kv_transfer,
    prefill_blocking,
    prefill_cache_misses,
    prefill_cache_off,
    prefill_long_prompts,
    prefill_slow,
    queue_batch_limit,
    queue_kv_cache,
    queue_prefill_backlog,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """objectives: limits in seconds. misses: which of them it must miss by 1.5x to count ("failing": requests fail;
    "progress": nothing moves; None: it must not miss any). onset: when it begins; felt: from when on users feel it.
    """

    kind: str
    seed: int
    config: Config
    objectives: dict[str, float]
    misses: str | None
    onset: float
    felt: float
    duration: float
    judge: tuple[Judge, ...]
    story: str
    felt_by: str | None = None  # only by users of this target


_KINDS: tuple[Callable[[Random], Incident], ...] = (
    idle, queue_batch_limit, queue_kv_cache, queue_prefill_backlog, prefill_long_prompts, prefill_cache_off,
    frontend, decode_interference, decode_pause, decode_batch, decode_preemption, decode_context, decode_slow,
    decode_bandwidth, decode_speculation, output_length, engine_stalled, admission_stalled, restart, client_aborts,
    load_imbalance, load_affinity, tokens_unequal, replica_outlier, requests_failing, cold_start, kv_transfer, kv_held,
    kv_handovers, prefill_slow, prefill_cache_misses, prefill_blocking, decode_batch_cliff,
)  # fmt: skip
# In which nobody may be accused.
_HEALTHY = (healthy, quiet, busy, bursty, seldom, one_slow, wake_up, rolling_restart)
KINDS: dict[str, Callable[[Random], Incident]] = {row.__name__: row for row in (*_HEALTHY, *_KINDS)}
HEALTHY: tuple[str, ...] = tuple(row.__name__ for row in _HEALTHY)


def scenario(kind: str, seed: int) -> Scenario:
    """One incident of that kind; the same for the same seed. Raises ValueError for a kind that is not in KINDS."""
    if kind not in KINDS:
        raise ValueError(f"no kind {kind!r}; there are: {', '.join(KINDS)}")
    made = KINDS[kind](Random(f"{kind}/{seed}"))
    felt = made.onset + made.settle
    end = felt + made.lasts
    judge = made.judge or (Judge(felt, end, made.accept),)
    if not made.judge and made.onset > 30:
        before = ("healthy",)
        judge = (Judge(30, made.onset, before), *judge)
    servers = made.servers or (Server(made.base.machine, made.base.flags, made.frontend, made.faults),)
    config = Config(
        servers,
        made.flows,
        routing="weighted" if made.weights else made.routing,
        weights=made.weights,
        warm=made.warm,
    )
    limits = made.objectives or made.base.objectives()
    return Scenario(
        kind, seed, config, limits, made.misses, made.onset, felt, round(end), judge, made.story, made.felt_by
    )
