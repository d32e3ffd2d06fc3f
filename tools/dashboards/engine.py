"""Engine: one replica in full, next to the median of its peers."""

from tools.dashboards.looks import TIMELINE
from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import ENGINE as THIS
from tools.dashboards.queries import FLEET, OF_ENGINE, each, overall, phases, verdict_number
from tools.dashboards.shared import (
    BOUNDS,
    ENGINE,
    MODEL_NAME,
    NAMESPACE,
    WINDOW_OF,
    bounds,
    engine,
    limits,
    target,
)

_PEERS = "Dashed grey: the median of the model's other engines; it shows whether only this engine is slow."


def _peers(name: str, *, window: bool = True) -> Query:
    """The median over the other engines: a comparison of engines, no percentile of requests."""
    others = f"{each(name, FLEET, window=window)} unless on ({OF_ENGINE}) {each(name, THIS, window=window)}"
    return Query(f"quantile(0.5, {others})", "median of its peers")


def _one(name: str, title: str, reading: str, unit: str, label: str, no_value: str, window: bool = True) -> Panel:
    """One line, and that of the peers."""
    lines = (Query(overall("max", name, THIS, window=window), label), _peers(name, window=window))
    largest = 1.0 if unit == "percentunit" else None
    return Panel(
        "timeseries",
        title,
        f"{reading} {_PEERS}",
        lines,
        unit=unit,
        no_value=no_value,
        width=6,
        height=7,
        largest=largest,
    )


def _latency(kind: str, what: str, no_value: str) -> Panel:
    lines = bounds(*(overall("max", f"{kind}_{name}_seconds", THIS) for name in ("p50", "p99", "p99_low", "p99_high")))
    return Panel(
        "timeseries",
        kind.upper() if kind != "e2e" else "End to end",
        f"{what}. {BOUNDS} {_PEERS}",
        (*lines, _peers(f"{kind}_p99_seconds"), *limits(f"{kind}_p99")),
        unit="s",
        no_value=no_value,
    )


# Prometheus has these only where it scrapes vLLM itself; its `instance` is then the target's usual name.
_RAW = 'instance=~"$target",engine=~"$engine",model_name=~"$model_name"'


def _heatmap(title: str, *names: str) -> Panel:
    """names: the newest first; an older name is read only where the newer one is not there."""
    buckets = [f"sum by (le) (increase(vllm:{name}_bucket{{{_RAW}}}[$__rate_interval]))" for name in names]
    return Panel(
        "heatmap",
        title,
        "Observations per bucket, from vLLM's own histogram. Two separate bands mean two kinds of requests, which"
        " no percentile shows. Needs a Prometheus that scrapes vLLM, with `instance` equal to the target.",
        (Query(" or ".join(buckets), "{{le}}"),),
        unit="s",
        no_value="Prometheus has no vllm: buckets of this target (optional; phasewatch scrapes vLLM by itself)",
    )


NOW = Row(
    "Now",
    (
        Panel(
            "timeline",
            "Verdict",
            "The leading verdict of the first window, or the engine's state if there is no verdict.",
            (Query(verdict_number(THIS), "{{target}} / {{engine}}"),),
            values=TIMELINE,
            no_value="No such engine in this range",
            width=24,
            height=4,
        ),
    ),
)
LATENCY = Row(
    "Latency",
    (
        _latency("ttft", "Time to first token: queue, prefill and front end", "No first token in the window"),
        _latency("itl", "Time between two outputs of a request: decode alone", "No tokens in the window"),
        _latency("tpot", "Mean time per output token of each request", "No request finished in the window"),
        _latency("e2e", "From arrival to the last token; mostly the number of output tokens times ITL",
                 "No request finished in the window"),
        Panel(
            "stacked",
            "Phases",
            "Exact mean seconds per finished request in each phase. Start with the largest area.",
            phases(THIS),
            unit="s",
            no_value="No request finished in the window",
        ),
        Panel(
            "timeseries",
            "Shares of the phases",
            "Each phase's share of the whole time of finished requests. Unexplained: what no phase accounts for.",
            (Query(each("phase_share_ratio", THIS, "phase"), "{{phase}}"),),
            unit="percentunit",
            largest=1,
            no_value="No request finished in the window",
        ),
    ),
)  # fmt: skip
LOAD = Row(
    "Load",
    (
        _one("waiting_requests", "Waiting", "Requests waiting to be scheduled.", "short", "waiting",
             "The engine does not report", window=False),
        _one("running_requests", "Running", "Requests in the batch. Flat at its maximum: the limit is max_num_seqs.",
             "short", "running", "The engine does not report", window=False),
        _one("kv_cache_usage_ratio", "KV cache", "Share in use.", "percentunit", "KV cache",
             "The engine does not report", window=False),
        _one("preemptions_per_second", "Preemptions", "Requests removed from a full KV cache and computed again later.",
             "reqps", "preempted", "The engine does not report"),
        _one("arrivals_per_second", "Arrivals", "Requests that arrived.", "reqps", "arrivals",
             "The engine does not report"),
        _one("expected_wait_seconds", "Expected wait", "How long a new request waits.", "s", "expected wait",
             "The engine does not report"),
        _one("prompt_tokens_mean", "Prompt length", "Mean prompt tokens per request.", "short", "mean",
             "No requests in the window"),
        _one("output_tokens_mean", "Output length", "Mean output tokens per finished request.", "short", "mean",
             "No request finished in the window"),
    ),
)  # fmt: skip
SPEED = Row(
    "Speed",
    (
        _one("prefill_speed_tokens_per_second", "Prefill speed", "Computed prompt tokens per second of prefill.", "cps",
             "prefill", "No request finished in the window"),
        _one("decode_speed_tokens_per_second", "Decode speed", "Output tokens per second that one user sees.", "cps",
             "decode", "No request finished in the window"),
        _one("prefill_time_ratio", "Prefill's share of engine time", "Near 100 %: the engine is busy with prefill.",
             "percentunit", "prefill", "Unknown for this engine"),
        _one("itl_stalled_ratio", "Stalled", "Share of the streaming time in gaps above the objective itl_stall.",
             "percentunit", "stalled", "No tokens in the window"),
        _one("prefix_cache_hit_ratio", "Prefix cache hits", "Share of the prompt tokens found in the prefix cache.",
             "percentunit", "hits", "No prompts in the window, or prefix caching is off"),
        _one("speculation_acceptance_ratio", "Accepted drafts", "Share of the draft tokens that were accepted.",
             "percentunit", "accepted", "No speculative decoding"),
        _one("generation_tokens_per_second", "Output tokens", "Output tokens per second of the engine.", "cps",
             "output tokens", "The engine does not report"),
        _one("prompt_tokens_per_second", "Prompt tokens", "Prompt tokens per second, including cached ones.", "cps",
             "prompt tokens", "The engine does not report"),
    ),
)  # fmt: skip
RAW = Row(
    "vLLM's own histograms, where Prometheus has them",
    (
        _heatmap("TTFT buckets", "time_to_first_token_seconds"),
        _heatmap("ITL buckets", "inter_token_latency_seconds", "time_per_output_token_seconds"),
        _heatmap("Queue buckets", "request_queue_time_seconds"),
        _heatmap("End-to-end buckets", "e2e_request_latency_seconds"),
    ),
)

BOARD = Dashboard(
    uid=ENGINE,
    title="vLLM engine (phasewatch)",
    description="One engine in detail, compared with the median of its peers.",
    variables=(NAMESPACE, MODEL_NAME, target(single=True), engine(single=True), WINDOW_OF),
    rows=(NOW, LATENCY, LOAD, SPEED, RAW),
    since="now-1h",
)
