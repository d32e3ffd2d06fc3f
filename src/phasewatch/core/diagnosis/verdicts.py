"""The closed set of verdicts, in the order that breaks ties (within 0.1 the earlier row wins)."""

VERDICTS: tuple[str, ...] = (
    "healthy",
    "unknown",
    "engine_stalled",
    "admission_stalled",
    "requests_failing",
    "queue_kv_cache",
    "queue_batch_limit",
    "queue_prefill_backlog",
    "kv_transfer",
    "prefill_cache_off",
    "prefill_long_prompts",
    "cold_start",
    "network",
    "frontend",
    "decode_preemption",
    "decode_interference",
    "decode_speculation",
    "decode_context",
    "decode_slow",
    "decode_batch",
    "decode_bandwidth",
    "output_length",
    "load_imbalance",
    "replica_outlier",
)

# Judged before everything else, taken at once, true even when the engine no longer counts as serving.
LIVENESS: tuple[str, ...] = ("engine_stalled", "admission_stalled")
