"""Remedies that several causes share, and the conditions of some: what was measured must not contradict an advice."""

from dataclasses import replace

from phasewatch.core.diagnosis.causes._row import Advice, always
from phasewatch.core.diagnosis.measures_view import WindowView

# Of a prompt's tokens, from the prefix cache: above it prefixes are kept and routed well already.
_HITS_HIGH = 0.8


def prefixes_can_gain(view: WindowView) -> bool:
    """Whether the prefix cache is on and misses enough for steadier prefixes to matter."""
    hits = view.numbers.tokens.prefix_hit_ratio
    return not view.prefix_caching_off and (hits is None or hits < _HITS_HIGH)


def caching_off(view: WindowView) -> bool:
    return view.prefix_caching_off


def room_for_more(view: WindowView) -> bool:
    """Whether the KV cache had room for one more mean prompt all the time that requests waited."""
    return not any(view.kv_short(page) for page in view.queue_pages)


def speculating(view: WindowView) -> bool:
    return view.window.increases.get("spec_drafts", 0.0) > 0


# fmt: off
SHED = Advice("shed load: lower the rate limit, or route part of the traffic elsewhere",
    "stops the queue growing while you apply the fix below", "now", "TTFT and ITL both improve")
REPLICA = Advice("add a replica", "capacity is what is missing", "capacity", "TTFT and ITL both improve")
SHORTER_PROMPTS = Advice("send shorter prompts", "prefill time grows with computed tokens", "now",
    "ITL improves as well")
SAME_PREFIXES = Advice(
    "keep prompt prefixes identical (system prompt first, nothing that changes before it) and route by prefix",
    "cached prefixes are not computed again", "now", "ITL does not change", fits=prefixes_can_gain)
# Beside caching that is off: what makes it pay once it is on.
STABLE_PREFIXES = replace(SAME_PREFIXES, fits=always)
ENABLE_CACHING = Advice("--enable-prefix-caching (on by default; it was turned off)",
    "prefixes that prompts share are computed once; it helps only if they do share them", "restart",
    "ITL does not change", fits=caching_off)
MORE_BATCHED_TOKENS = Advice("--max-num-batched-tokens up", "prompts need fewer steps", "restart",
    "TTFT improves, running streams stall longer")
FP8_CACHE = Advice("--kv-cache-dtype fp8", "the same memory holds about twice the tokens", "restart",
    "decode reads less; check answer quality")
WITHOUT_GRAMMAR = Advice(
    "ask whether requests use structured output (a JSON schema, a grammar); compare a few without it",
    "its masks are computed for every token on the host's CPU, and no metric shows that", "now", "TTFT does not change")
FEWER_SEQS = Advice("--max-num-seqs down", "fewer requests share a step and the KV cache", "restart",
    "ITL improves, the queue and TTFT grow")

# An evicted request and one that waits for blocks want the same: room.
KV_ROOM = (
    SHED,
    REPLICA,
    Advice("--gpu-memory-utilization up (default 0.92 since 0.20, 0.90 before)", "more memory for the KV cache",
        "restart", "TTFT and ITL both improve, until memory runs out at start"),
    FP8_CACHE,
    FEWER_SEQS,
    Advice("--tensor-parallel-size up", "weights take less memory per GPU, the KV cache grows", "capacity",
        "TTFT and ITL both improve"),
)
# fmt: on
