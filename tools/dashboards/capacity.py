"""Capacity: what the fleet does, and how much more it can take."""

from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import ENGINE, MODEL, OF_ENGINE, completions, overall, series, total, weighted
from tools.dashboards.shared import MODEL_NAME, NAMESPACE, WINDOW_OF, engine, target

_NONE = "No engine reports"
# By engine: tokens that still fit, and how many mean requests those are.
_FREE = (
    f"(1 - {series('kv_cache_usage_ratio', ENGINE, window=False)})"
    f" * {series('kv_cache_capacity_tokens', ENGINE, window=False)}"
)
_REQUEST = f"({series('prompt_tokens_mean', ENGINE)} + {series('output_tokens_mean', ENGINE)} > 0)"
_TOKENS = f"max by ({OF_ENGINE}) ({_FREE})"
_REQUESTS = f"max by ({OF_ENGINE}) ({_FREE} / ignoring (window) {_REQUEST})"

_BUSIEST = (
    "topk(20, max by (model_name)"
    f" (max_over_time({series('model_generation_tokens_per_second', MODEL)}[$__range] @ end())))"
)

DEMAND = Row(
    "Demand",
    (
        Panel(
            "timeseries",
            "Tokens",
            "Tokens per second, engines added. Prompt tokens include those found in the prefix cache.",
            (
                Query(total("prompt_tokens_per_second", ENGINE), "prompt tokens"),
                Query(total("generation_tokens_per_second", ENGINE), "output tokens"),
            ),
            unit="cps",
            no_value=_NONE,
        ),
        Panel(
            "timeseries",
            "Arrivals, admissions, completions",
            "Requests per second. Arrivals above admissions fill the queue; admissions above completions fill the"
            " batch. In balance all three are equal. Requests of clients that gave up arrive but do not complete.",
            (
                Query(total("arrivals_per_second", ENGINE), "arrivals"),
                Query(total("admissions_per_second", ENGINE), "admissions"),
                Query(completions(ENGINE), "completions"),
            ),
            unit="reqps",
            no_value=_NONE,
        ),
        Panel(
            "timeseries",
            "Output tokens by model",
            "Output tokens per second, by model.",
            (
                Query(
                    f"{total('generation_tokens_per_second', ENGINE, 'model_name')} and on (model_name) {_BUSIEST}",
                    "{{model_name}}",
                ),
            ),
            unit="cps",
            no_value=_NONE,
        ),
        Panel(
            "timeseries",
            "Waiting and running",
            "Requests, engines added.",
            (
                Query(total("waiting_requests", ENGINE, window=False), "waiting"),
                Query(total("running_requests", ENGINE, window=False), "running"),
            ),
            no_value=_NONE,
        ),
    ),
)
HEADROOM = Row(
    "Headroom",
    (
        Panel(
            "timeseries",
            "Headroom in KV tokens",
            "Tokens that still fit into the KV caches: all engines added, and the engine with the fewest, since a"
            " request cannot be split. Zero: the next request waits or preempts another.",
            (Query(f"sum ({_TOKENS})", "all engines"), Query(f"min ({_TOKENS})", "engine with the least")),
            unit="short",
            no_value="These engines do not export the size of their KV cache",
        ),
        Panel(
            "timeseries",
            "Headroom in requests",
            "The same in requests of the current mean prompt and output length. Prefill or the batch limit may be"
            " reached earlier: see prefill's share of engine time, and running.",
            (Query(f"sum ({_REQUESTS})", "all engines"), Query(f"min ({_REQUESTS})", "engine with the least")),
            unit="short",
            no_value="No request finished in the window, or the size of the KV cache is unknown",
        ),
        Panel(
            "timeseries",
            "KV cache",
            "The fullest engine and the mean of all engines; ratios are never added.",
            (
                Query(overall("max", "kv_cache_usage_ratio", ENGINE, window=False), "KV cache, fullest"),
                Query(overall("avg", "kv_cache_usage_ratio", ENGINE, window=False), "KV cache, mean"),
            ),
            unit="percentunit",
            largest=1,
            no_value=_NONE,
        ),
        Panel(
            "timeseries",
            "Time until a KV cache is full",
            "For the engine that will be full first, if it keeps filling at the current rate. No line: no KV cache"
            " is filling.",
            (Query(overall("min", "kv_cache_time_to_full_seconds", ENGINE), "first one full"),),
            unit="s",
            no_value="No KV cache is filling",
        ),
        Panel(
            "timeseries",
            "Prefill's share of engine time",
            "Highest and mean share of engine time spent on prefill. Near 100 %, more requests only lengthen the"
            " queue.",
            (
                Query(overall("max", "prefill_time_ratio", ENGINE), "highest"),
                Query(overall("avg", "prefill_time_ratio", ENGINE), "mean"),
            ),
            unit="percentunit",
            largest=1,
            no_value="Unknown for these engines",
        ),
        Panel(
            "timeseries",
            "Prefix cache hits",
            "Share of the prompt tokens found in the prefix cache. A higher share is the cheapest way to more"
            " capacity.",
            (Query(overall("avg", "prefix_cache_hit_ratio", ENGINE), "mean of the engines"),),
            unit="percentunit",
            largest=1,
            no_value="No prompts in the window, or prefix caching is off",
        ),
    ),
)
SPEED = Row(
    "Speed",
    (
        Panel(
            "timeseries",
            "Prefill speed",
            "Computed prompt tokens per second of prefill: bound by compute. Mean over finished requests of all"
            " engines.",
            (Query(weighted("prefill_speed_tokens_per_second", "e2e_observations", ENGINE), "prefill"),),
            unit="cps",
            no_value="No request finished in the window",
        ),
        Panel(
            "timeseries",
            "Decode speed",
            "Output tokens per second that one user sees: bound by memory bandwidth; falls as the batch grows.",
            (Query(weighted("decode_speed_tokens_per_second", "tpot_observations", ENGINE), "decode"),),
            unit="cps",
            no_value="No request finished in the window",
        ),
    ),
)

BOARD = Dashboard(
    uid="phasewatch-capacity",
    title="vLLM capacity (phasewatch)",
    description="Tokens per second, demand against capacity, and headroom in KV tokens and requests.",
    variables=(NAMESPACE, MODEL_NAME, target(), engine(), WINDOW_OF),
    rows=(DEMAND, HEADROOM, SPEED),
    since="now-6h",
)
