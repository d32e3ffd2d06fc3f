"""What to change, by verdict: first what can be done now, then one change at a time. Flags and versions: the sources of
vLLM 0.8.5 to 0.33; the runbook of the verdict says how to check and how to see that it worked."""

from collections.abc import Mapping

from phasewatch.core.model import Remedy

# fmt: off
_SHED = Remedy("shed load: lower the rate limit, or route part of the traffic elsewhere",
    "demand is above capacity, and every flag only moves the wait", "now", "both phases ease")
_REPLICAS = Remedy("add a replica", "capacity is what is missing", "capacity", "both phases ease")
_SHORTER = Remedy("send shorter prompts", "prefill time grows with computed tokens", "now", "decode eases as well")
_PREFIX = Remedy(
    "keep prompt heads identical (system prompt first, nothing that changes before it) and route by prefix",
    "cached heads are not computed again", "now", "decode is not changed")
_FP8 = Remedy("--kv-cache-dtype fp8", "the same memory holds about twice the tokens", "restart",
    "decode reads less; check answer quality")
_GRAMMAR = Remedy(
    "ask whether requests use structured output (a JSON schema, a grammar); compare a few without it",
    "its masks are made token by token on the host's CPU, and no metric shows that", "now", "prefill is not changed")
_FEWER_SEQS = Remedy("--max-num-seqs down", "fewer requests share a step and the KV cache", "restart",
    "ITL eases, the queue and TTFT grow")

# An evicted request and one that waits for blocks want the same: room.
_KV_ROOM = (
    _SHED,
    _REPLICAS,
    Remedy("--gpu-memory-utilization up (default 0.92 since 0.20, 0.90 before)", "more memory for the KV cache",
        "restart", "both phases ease, until memory runs out at start"),
    _FP8,
    _FEWER_SEQS,
    Remedy("--tensor-parallel-size up", "weights shrink per card, the KV cache grows", "capacity", "both phases ease"),
)

_LINK = Remedy("check the interconnect (RDMA, UCX transport) where one transfer takes most of the wait",
    "bytes over transfer time is the bandwidth you really have", "now", "decode is not changed")

REMEDIES: Mapping[str, tuple[Remedy, ...]] = {
    "engine_stalled": (
        Remedy("take this replica out of rotation", "requests sent to it wait for ever", "now",
            "its load moves to the others"),
        Remedy("keep a stack trace of the engine core (py-spy dump --pid PID), then restart it",
            "it does not recover by itself, and the trace is gone after the restart", "restart",
            "all requests in flight are lost"),
    ),
    "admission_stalled": (
        Remedy("find and end the longest running request (close its connection at the gateway)",
            "it holds the room that the waiting ones need", "now", "its user gets no more tokens"),
        Remedy("set max_tokens in clients or at the gateway",
            "an answer without an end blocks a slot without an end", "now", "long answers are cut"),
        Remedy("restart the engine if nothing is admitted although slots are free", "admission accounting is broken",
            "restart", "all requests in flight are lost"),
    ),
    "requests_failing": (
        Remedy("read the API server's log for the error that the answers carry",
            "the page counts failures, it does not say why", "now", "none"),
        Remedy("--max-num-queued-reqs / --max-num-queued-tokens up, or shed load before the server does",
            "where requests are refused (503), the queue limit is what they meet", "restart",
            "TTFT grows with the queue that is let in", since="0.29.0"),
        Remedy("kv_load_failure_policy: recompute, where KV blocks from elsewhere cannot be loaded (P/D, offload)",
            "since 0.17 its default is to fail the request", "restart", "TTFT of those requests grows", since="0.13.0"),
    ),
    "queue_kv_cache": _KV_ROOM,
    "queue_batch_limit": (
        _SHED,
        _REPLICAS,
        Remedy("--max-num-seqs up", "more requests share a step; the KV cache has room for them", "restart",
            "TTFT eases, ITL grows with the batch"),
    ),
    "queue_prefill_backlog": (
        _SHED,
        _REPLICAS,
        _SHORTER,
        _PREFIX,
        Remedy("--max-num-batched-tokens up", "more prompt tokens a step", "restart",
            "TTFT eases, running streams stall longer"),
    ),
    "kv_transfer": (
        _LINK,
        Remedy("balance prefill and decode replicas (P:D ratio)",
            "the side that is short holds the blocks of the other", "capacity", "the other phase follows the ratio"),
        Remedy("send less through P/D: let the decode side prefill short prompts itself, where the router can",
            "a short prompt costs less than its transfer", "now", "decode streams share steps with those prompts"),
    ),
    "prefill_cache_off": (
        Remedy("--enable-prefix-caching (the default: somebody switched it off)",
            "what prompts share at their head is computed once; it helps only if they do share it", "restart",
            "decode is not changed"),
        _PREFIX,
    ),
    "prefill_long_prompts": (
        _SHORTER,
        _PREFIX,
        Remedy("--max-num-batched-tokens up", "a prompt needs fewer steps", "restart",
            "TTFT eases, running streams stall longer"),
        Remedy("more compute: a faster card, tensor parallel, or prefill replicas of their own",
            "prefill is bound by compute", "capacity", "decode gains little"),
    ),
    "cold_start": (
        Remedy("send a warm-up request before the replica is put into rotation",
            "kernels, graphs and caches are made by the first requests", "now", "decode is not changed"),
        Remedy("let readiness depend on one answered request, not on the open port",
            "users no longer meet the cold replica", "restart", "decode is not changed"),
    ),
    "network": (
        Remedy("switch off response buffering in the proxy (nginx: proxy_buffering off)",
            "a buffered stream arrives late and in bursts", "now", "the engine is not changed"),
        Remedy("measure from beside the server, then from outside", "the difference is the network's", "now",
            "the engine is not changed"),
        Remedy("keep connections open (keep-alive, TLS sessions) and serve from near the users",
            "each handshake is a round trip or two before the first token", "capacity", "the engine is not changed"),
    ),
    "frontend": (
        Remedy("give the API server more CPU (cores, no throttling) and keep neighbours off it",
            "tokenising, HTTP and streaming run there", "now", "the engine is not changed"),
        Remedy("--api-server-count up", "more processes share the work", "restart",
            "the engine is not changed; process metrics go away", since="0.9.1"),
        Remedy("VLLM_USE_FASTOKENS=1", "a faster tokeniser", "restart", "the engine is not changed", since="0.23.0"),
        Remedy("--renderer-num-workers up", "chat templates and tokenising get more threads", "restart",
            "the engine is not changed", since="0.19.0"),
        Remedy("--stream-interval above 1", "fewer chunks to send", "restart", "clients see tokens in small groups",
            since="0.11.1"),
    ),
    "decode_preemption": _KV_ROOM,
    "decode_interference": (
        Remedy("route long prompts to a replica of their own", "they no longer share steps with chats", "now",
            "their TTFT depends on that replica"),
        Remedy("--max-num-batched-tokens down (2048, then 1024)",
            "a smaller prefill chunk holds up running streams for less", "restart",
            "ITL eases, TTFT of long prompts stays or grows a little"),
        Remedy("--long-prefill-token-threshold (e.g. a quarter of the budget)",
            "one long prompt may not take the whole step", "restart", "ITL eases, TTFT of long prompts grows"),
        Remedy("split prefill and decode (P/D), only with two engines or more", "prompts and streams no longer meet",
            "capacity", "TTFT gains a KV transfer"),
    ),
    "decode_speculation": (
        Remedy("route part of the traffic to one replica without speculation and compare",
            "drafts that are rejected only cost", "now", "prefill is not changed"),
        Remedy("fewer draft tokens (num_speculative_tokens down), or none",
            "every rejected draft is a token computed for nothing", "restart", "prefill is not changed"),
        Remedy("draft tokens by batch size (num_speculative_tokens_per_batch_size)",
            "speculation pays at low load and costs at high load", "restart", "prefill is not changed", since="0.24.0"),
    ),
    "decode_context": (
        Remedy("shorter contexts: trim histories, retrieve less", "every token reads the whole context", "now",
            "prefill eases as well"),
        _FP8,
        Remedy("route long contexts to replicas of their own", "short chats no longer share steps with them",
            "capacity", "TTFT of long prompts depends on that replica"),
    ),
    "decode_slow": (
        Remedy("look at that host: CPU throttling or neighbours, GPU clocks and temperature, other processes on the"
            " card", "the same work took less time before", "now", "prefill is usually slowed as well"),
        _GRAMMAR,
        Remedy("take it out of rotation while you look, then restart it", "users need not wait for the reason",
            "restart", "its load moves to the others"),
    ),
    "decode_batch": (
        Remedy("cap concurrency at the gateway", "fewer requests share a step", "now",
            "ITL eases, the rest waits: TTFT grows"),
        _GRAMMAR,
        _REPLICAS,
        _FEWER_SEQS,
        Remedy("quantise weights, or a card with more memory bandwidth", "decode is bound by what a step reads",
            "capacity", "prefill gains less"),
    ),
    "decode_bandwidth": (
        Remedy("check the host's CPU and the card's clocks first", "a starved host looks the same", "now",
            "prefill gains as well if that was it"),
        Remedy("quantise weights to 8 bit", "a step reads half as much: the ceiling doubles", "restart",
            "prefill gains less; check answer quality"),
        Remedy("a smaller model", "a step reads less", "capacity", "prefill eases as well"),
        Remedy("--tensor-parallel-size up, or a card with more memory bandwidth (more compute does not help)",
            "decode is bound by what a step reads", "capacity", "prefill gains from more cards"),
    ),
    "output_length": (
        Remedy("ask for fewer sentences, or less thinking, in the prompt", "time grows with every generated token",
            "now", "TTFT and ITL are not changed"),
        Remedy("stream the answer", "users read while it is written", "now", "TTFT and ITL are not changed"),
        Remedy("a smaller or faster model", "every token costs less", "capacity", "TTFT eases as well"),
        Remedy("max_tokens", "a hard end; the blunt one: answers are cut", "now", "TTFT and ITL are not changed"),
    ),
    "load_imbalance": (
        Remedy("route by load (least waiting), not round robin or by session",
            "some replicas queue while others have room", "now", "both phases even out"),
        Remedy("loosen session or prefix affinity when the preferred replica queues",
            "affinity without a limit makes hot replicas", "now", "prefix cache hits fall a little"),
    ),
    "replica_outlier": (
        Remedy("take that replica out of rotation", "its peers do the same work faster", "now",
            "its load moves to the others"),
        Remedy("compare its host with a peer's: CPU, clocks, neighbours, vLLM version and flags",
            "equal work at unequal speed is a difference of hosts or settings", "now", "none"),
    ),
}
# fmt: on

# A quick link needs no faster one: the hand-over around the transfer is what is slow.
HAND_OVER: tuple[Remedy, ...] = tuple(remedy for remedy in REMEDIES["kv_transfer"] if remedy is not _LINK)
