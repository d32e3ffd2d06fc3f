"""One row a signal: its stable name, kind, unit and every name vLLM ever gave it, newest first.

A new vLLM name is one word in one row. Names are written without prefix (PREFIXES are tried for engine families) and
as exposed in text 0.0.4; counters are recognised with or without `_total`. Old and new names are never added: per page
and engine the newest name that has samples wins. Source of the names and versions: vLLM 0.8.5 to 0.33.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

# vLLM's own; the same where a colon is escaped (prometheus_client's OpenMetrics); Ray Serve's since and before 0.11.0;
# KServe's aggregation.
PREFIXES: tuple[str, ...] = ("vllm:", "vllm_", "ray_vllm_", "ray_vllm:", "kserve_vllm:")

# Handlers that end in generated tokens; embeddings, tokenise and the like are no requests of ours.
GENERATING_HANDLERS: tuple[str, ...] = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")

Kind = Literal["gauge", "counter", "histogram", "info", "labels"]
Unit = Literal[
    "seconds", "unix_seconds", "tokens", "requests", "ratio", "events", "files", "blocks", "flag", "bytes", "adapters"
]

# Every number on a page is a float: from here on it no longer counts one by one, so nothing was counted up to it. No
# process has run for as many seconds either (285 million years).
MOST = 2.0**53
# Seconds below the first (1973) count from a recording's own start; for a date later than the other there is no common
# way to be written.
EARLIEST_UNIX, LATEST_UNIX = 100_000_000.0, 253402300800.0
# A ratio that was summed up in another order is off by this much at most: 1.0000001 is 1.
_ROUNDING = 1e-6


class Bounds(NamedTuple):
    """The least and the most that a number of a kind can be; both can be."""

    low: float
    high: float

    def believed(self, value: float) -> float | None:
        """The value, free of rounding beyond the most it can be; None where it cannot be (NaN too)."""
        if self.high < value <= self.high * (1 + _ROUNDING):
            return self.high
        return value + 0.0 if self.low <= value <= self.high else None  # -0.0 is 0.0


# What a unit can be: a number outside is a fault of the page, whatever the family.
BOUNDS: Mapping[Unit, Bounds] = {
    "seconds": Bounds(0.0, MOST),
    "unix_seconds": Bounds(0.0, LATEST_UNIX),
    "tokens": Bounds(0.0, MOST),
    "requests": Bounds(0.0, MOST),
    "ratio": Bounds(0.0, 1.0),
    "events": Bounds(0.0, MOST),
    "files": Bounds(0.0, MOST),
    "blocks": Bounds(0.0, MOST),
    "flag": Bounds(0.0, 1.0),
    "bytes": Bounds(0.0, MOST),
    "adapters": Bounds(0.0, MOST),
}


@dataclass(frozen=True, slots=True)
class Signal:
    """name: ours. names: vLLM's, newest first. where: label values that select (empty: all are added).

    kind "info": a label read as a number; "labels": the labels themselves, as text.

    scope "engine": labels model_name, engine. "page": one value for the whole server (no engine label), stored in
    Page.http and, where the page has one engine, not attributable to another. merge says how series of one engine
    that differ in other labels join: "sum" for counters and split gauges, "max" where one process owns the truth.
    lazy: the server makes a child only at its first event, so a family that is there without it counts 0.
    """

    name: str
    kind: Kind
    unit: Unit
    names: tuple[str, ...]
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scope: Literal["engine", "page"] = "engine"
    merge: Literal["sum", "max", "latest"] = "max"
    lazy: bool = False
    prefixed: bool = True

    @property
    def bounds(self) -> Bounds:
        """Of one value, a bucket's count or an edge. A capacity of 0 is none: vLLM writes it where it knows none."""
        bounds = BOUNDS[self.unit]
        return bounds._replace(low=1.0) if self.kind == "info" and self.unit in ("tokens", "blocks") else bounds


def _gauge(name: str, unit: Unit, *names: str, **where: str) -> Signal:
    return Signal(name, "gauge", unit, names, {k: (v,) for k, v in where.items()})


def _counter(name: str, unit: Unit, *names: str, lazy: bool = False, **where: str) -> Signal:
    return Signal(name, "counter", unit, names, {k: (v,) for k, v in where.items()}, merge="sum", lazy=lazy)


def _histogram(name: str, unit: Unit, *names: str) -> Signal:
    return Signal(name, "histogram", unit, names, merge="sum")


def _http(name: str, **where: tuple[str, ...]) -> Signal:
    return Signal(
        name, "counter", "requests", ("http_requests_total",), {"handler": GENERATING_HANDLERS, **where},
        scope="page", merge="sum", lazy=True, prefixed=False,
    )  # fmt: skip


_ADAPTERS = ("running_lora_adapters", "waiting_lora_adapters")


def _process(name: str, kind: Kind, unit: Unit, family: str) -> Signal:
    return Signal(name, kind, unit, (family,), scope="page", prefixed=False)


CATALOG: tuple[Signal, ...] = (
    _gauge("running", "requests", "num_requests_running"),
    _gauge("waiting", "requests", "num_requests_waiting"),
    _gauge("waiting_capacity", "requests", "num_requests_waiting_by_reason", reason="capacity"),  # 0.20
    _gauge("waiting_deferred", "requests", "num_requests_waiting_by_reason", reason="deferred"),
    # gpu_* hidden in 0.11, gone in 0.12; 0.9.2 to 0.10.2 expose both.
    _gauge("kv_usage", "ratio", "kv_cache_usage_perc", "gpu_cache_usage_perc"),
    _gauge("awake", "flag", "engine_sleep_state", sleep_state="awake"),  # 0.11.1
    # Unix time at which the process made its metrics: a restart hint where process_start_time_seconds is missing.
    _gauge("created", "unix_seconds", "generation_tokens_created"),
    _counter("prompt_tokens", "tokens", "prompt_tokens_total"),
    _counter("computed_prompt_tokens", "tokens", "prompt_tokens_by_source_total", source="local_compute"),  # 0.16
    _counter("external_prompt_tokens", "tokens", "prompt_tokens_by_source_total", source="external_kv_transfer"),
    _counter("generation_tokens", "tokens", "generation_tokens_total"),
    _counter("preemptions", "events", "num_preemptions_total"),
    # 0.8.5 counts blocks, later tokens: only their ratio is used.
    _counter("prefix_queries", "tokens", "prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    _counter("prefix_hits", "tokens", "prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    _counter("external_prefix_hits", "tokens", "external_prefix_cache_hits_total"),  # 0.11.1
    _counter("finished", "requests", "request_success_total"),
    # Lazy in the Rust frontend only. error is not: before 0.13 its absence says nothing.
    _counter("finished_length", "requests", "request_success_total", lazy=True, finished_reason="length"),
    _counter("finished_abort", "requests", "request_success_total", lazy=True, finished_reason="abort"),
    _counter("finished_error", "requests", "request_success_total", finished_reason="error"),  # 0.13
    _counter("spec_drafts", "events", "spec_decode_num_drafts_total"),
    _counter("spec_draft_tokens", "tokens", "spec_decode_num_draft_tokens_total"),
    _counter("spec_accepted_tokens", "tokens", "spec_decode_num_accepted_tokens_total"),
    _histogram("ttft", "seconds", "time_to_first_token_seconds"),
    # The old name was per step too; both are there in 0.10.2 to 0.11.2.
    _histogram("itl", "seconds", "inter_token_latency_seconds", "time_per_output_token_seconds"),
    _histogram("tpot", "seconds", "request_time_per_output_token_seconds"),  # 0.11.0
    _histogram("e2e", "seconds", "e2e_request_latency_seconds"),
    _histogram("queue", "seconds", "request_queue_time_seconds"),
    _histogram("prefill", "seconds", "request_prefill_time_seconds"),
    _histogram("decode", "seconds", "request_decode_time_seconds"),
    _histogram("prompt_length", "tokens", "request_prompt_tokens"),
    _histogram("output_length", "tokens", "request_generation_tokens"),
    _histogram("computed_prompt_length", "tokens", "request_prefill_kv_computed_tokens"),  # 0.13
    # A histogram in spite of its name; cached prompt tokens are left out only since 0.23.
    _histogram("iteration_tokens", "tokens", "iteration_tokens_total"),
    # KV transfer between prefill and decode engines (P/D), each only with its connector.
    _gauge("kv_fetch_waiting", "requests", "num_requests_kv_fetch_by_stage", stage="waiting_to_start"),  # 0.32
    _gauge("kv_fetch_in_progress", "requests", "num_requests_kv_fetch_by_stage", stage="in_progress"),
    _histogram("kv_transfer", "seconds", "nixl_xfer_time_seconds", "mooncake_xfer_time_seconds"),
    # Transfers that failed: on the side that sends, and on the one that loads.
    _counter("kv_failed_transfers", "events", "mooncake_num_failed_transfers_total", "nixl_num_failed_transfers_total"),
    _counter("kv_failed_notifications", "events", "nixl_num_failed_notifications_total"),  # 0.11.1
    _counter(
        "kv_failed_loads",
        "events",
        "mooncake_num_failed_recvs_total",
        "hf3fs_num_failed_load_total",
    ),
    # On the prefill side: blocks that nobody collected within the lease.
    _counter("kv_expired", "requests", "mooncake_num_kv_expired_reqs_total", "nixl_num_kv_expired_reqs_total"),  # 0.15
    # From CPU memory (KV offload, 0.24).
    _counter("kv_load_seconds", "seconds", "kv_offload_load_time_total"),
    _counter("kv_load_bytes", "bytes", "kv_offload_load_bytes_total"),
    # Labels of cache_config_info read as numbers; "None" is absent.
    Signal("block_size", "info", "tokens", ("cache_config_info",), {"label": ("block_size",)}),
    Signal("kv_blocks", "info", "blocks", ("cache_config_info",), {"label": ("num_gpu_blocks",)}),
    Signal("kv_capacity_tokens", "info", "tokens", ("cache_config_info",), {"label": ("kv_cache_size_tokens",)}),
    Signal("prefix_caching", "info", "flag", ("cache_config_info",), {"label": ("enable_prefix_caching",)}),
    # Of the longest allowed request (--max-model-len), 0.24.
    Signal("kv_concurrency", "info", "requests", ("cache_config_info",), {"label": ("kv_cache_max_concurrency",)}),
    Signal("configuration", "labels", "flag", ("cache_config_info",)),
    Signal("kv_offload_configuration", "labels", "flag", ("kv_offload_config_info",)),  # 0.33
    # A series for each set of adapters that ever ran or waited together, its value the time when it last did.
    Signal("adapters", "labels", "adapters", ("lora_requests_info",), {"label": _ADAPTERS}, scope="page"),
    Signal(
        "waiting_adapters",
        "gauge",
        "adapters",
        ("lora_requests_info",),
        {"label": _ADAPTERS[1:]},
        scope="page",
        merge="latest",
    ),
    Signal("adapter_slots", "info", "adapters", ("lora_requests_info",), {"label": ("max_lora",)}, scope="page"),
    Signal(
        "rejections", "counter", "requests", ("admission_rejections_total",), scope="page", merge="sum", lazy=True
    ),  # 0.32; no engine label
    _http("http_finishes"),
    _http("http_2xx", status=("2xx",)),
    _http("http_5xx", status=("5xx",)),
    _process("start_time", "gauge", "unix_seconds", "process_start_time_seconds"),
    _process("open_fds", "gauge", "files", "process_open_fds"),
    _process("cpu_seconds", "counter", "seconds", "process_cpu_seconds_total"),
)

BY_NAME: Mapping[str, Signal] = {row.name: row for row in CATALOG}

# Without these a page cannot say whether users are served well: the five families of the design.
CORE_SIGNALS: tuple[str, ...] = ("ttft", "itl", "running", "waiting", "kv_usage")


def _spellings(row: Signal) -> tuple[str, ...]:
    forms = [
        prefix + form
        for name in row.names
        for prefix in (PREFIXES if row.prefixed else ("",))
        for form in ((name, name.removesuffix("_total")) if row.kind == "counter" else (name,))
    ]
    return tuple(dict.fromkeys(forms))


# Every full family name of a signal, the preferred first: newest name, vLLM's own prefix, with `_total`.
SPELLINGS: Mapping[str, tuple[str, ...]] = {row.name: _spellings(row) for row in CATALOG}
ENGINE_FAMILIES = frozenset(name for row in CATALOG if row.scope == "engine" for name in SPELLINGS[row.name])
HISTOGRAM_PARTS = frozenset(
    name + part
    for row in CATALOG
    if row.kind == "histogram"
    for name in SPELLINGS[row.name]
    for part in ("_bucket", "_sum", "_count")
)
# Of the samples that are no part of a histogram. Rows of one family have one unit (a test holds them to it). An info's
# value says nothing: it says it in its labels.
BOUNDS_BY_FAMILY: Mapping[str, Bounds] = {
    name: Bounds(-inf, inf) if row.kind in ("info", "labels") else row.bounds
    for row in sorted(CATALOG, key=lambda row: row.kind not in ("info", "labels"))
    if row.kind != "histogram"
    for name in SPELLINGS[row.name]
}
