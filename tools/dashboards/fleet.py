"""Fleet: what a team looks at first."""

from tools.dashboards.looks import MET
from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import (
    FLEET,
    MODEL,
    OF_MODEL,
    each,
    limit,
    not_judged,
    overall,
    total,
    worst_now,
)
from tools.dashboards.shared import ENGINE, MODEL_NAME, NAMESPACE, TRIAGE, WINDOW_OF, model_latency

_OF_ROW = "model_name, target, engine"


def _model(name: str, *, window: bool = True) -> str:
    return f"topk(50, {each(f'model_{name}', MODEL, OF_MODEL, window=window)})"


def _engine(name: str, *, window: bool = True) -> str:
    return worst_now(each(name, FLEET, _OF_ROW, window=window), FLEET)


_STATES = Query(f"sum by (state) (max by (state, {OF_MODEL}) (phasewatch_model_engines{{{MODEL}}})) > 0", "{{state}}")

_MISSED = (
    f"max by (model_name, objective, severity) (phasewatch_model_objective_missed{{{MODEL}}})"
    f" + max by (model_name, objective, severity) (phasewatch_model_objective_missed_surely{{{MODEL}}})"
    f" or {not_judged(MODEL)}"
)
NOW = Row(
    "Now",
    (
        Panel(
            "table",
            "Models",
            "One line per model: the leading verdict of the first window, and the numbers of the selected window."
            " No verdict: no traffic. Percentiles come from the added histograms of all engines, never from"
            " averages. Click a model for triage.",
            (
                Query(f"topk(50, max by ({OF_MODEL}, verdict) (phasewatch_model_diagnosis{{{MODEL}}}) == 1)", ""),
                Query(_model("ttft_p99_seconds"), "TTFT p99"),
                Query(_model("itl_p99_seconds"), "ITL p99"),
                Query(_model("expected_wait_seconds"), "Expected wait"),
                Query(_model("running_requests", window=False), "Running"),
                Query(_model("waiting_requests", window=False), "Waiting"),
                Query(_model("kv_cache_usage_ratio", window=False), "Fullest KV cache"),
            ),
            unit="short",
            units={"TTFT p99": "s", "ITL p99": "s", "Expected wait": "s", "Fullest KV cache": "percentunit"},
            names={"model_name": "model", "role": "role", "verdict": "verdict"},
            links={"model": TRIAGE},
            no_value="No model is known yet",
            width=16,
            height=6,
        ),
        Panel(
            "bars",
            "Engines by state",
            "Number of engines in each state. Only serving engines have verdicts; stale and down engines do not"
            " answer; idle engines have no traffic in the window.",
            (_STATES,),
            no_value="No engine is watched",
            width=8,
            height=6,
        ),
        Panel(
            "table",
            "Objectives",
            "The objectives of each model: the limit, and whether it is met over the first window or as far back as it"
            " takes to judge. Surely missed: the histogram's buckets prove it. Cannot be judged: too few requests, or"
            " the buckets do not say. No line: there was no traffic.",
            (
                Query(f"topk(30, {_MISSED})", "Now"),
                Query(
                    f"max by (model_name, objective, severity) (phasewatch_objective_seconds{{{MODEL}}})"
                    f" and on (model_name, objective, severity) topk(30, {_MISSED})",
                    "Limit",
                ),
            ),
            units={"Limit": "s"},
            names={"model_name": "model", "objective": "objective", "severity": "severity"},
            values=MET,
            sort="Now",
            no_value="No objective was measured",
            width=16,
            height=8,
        ),
        Panel(
            "timeseries",
            "Engines by state over time",
            "A drop of serving: engines disappeared, became idle or stopped answering.",
            (_STATES,),
            no_value="No engine is watched",
            width=8,
        ),
    ),
)
EACH_MODEL = Row(
    "$model_name",
    (
        model_latency("ttft", "Time to first token"),
        model_latency("itl", "Time between two outputs of a request"),
        Panel(
            "timeseries",
            "Queue of $model_name",
            "Requests waiting and running, all engines added. If waiting keeps growing, arrivals exceed capacity;"
            " no flag changes that.",
            (
                Query(total("waiting_requests", FLEET, window=False), "waiting"),
                Query(total("running_requests", FLEET, window=False), "running"),
            ),
            no_value="No engine reports",
            width=8,
        ),
        Panel(
            "timeseries",
            "Expected wait of $model_name",
            "How long a new request waits before its prefill starts: waiting / admissions per second. Above the"
            " dashed limit it will miss the TTFT objective.",
            (
                Query(overall("max", "expected_wait_seconds", FLEET), "longest of an engine"),
                Query(limit("ttft_p99"), "limit (warning)"),
            ),
            unit="s",
            no_value="No engine reports",
            width=8,
        ),
        Panel(
            "timeseries",
            "KV cache of $model_name",
            "The fullest engine and the mean of all engines; ratios are never added. A full KV cache with good"
            " latency is healthy; a queue shows that it is too small.",
            (
                Query(overall("max", "kv_cache_usage_ratio", FLEET, window=False), "KV cache, fullest"),
                Query(overall("avg", "kv_cache_usage_ratio", FLEET, window=False), "KV cache, mean"),
            ),
            unit="percentunit",
            largest=1,
            no_value="No engine reports",
            width=8,
        ),
    ),
    repeat="model_name",
)
WORST = Row(
    "Replicas",
    (
        Panel(
            "table",
            "Most degraded replicas",
            "At most 20: first those that do not answer, then those with a verdict other than healthy, then by TTFT"
            " p99. Engines without traffic are left out. Click a target to compare it with its peers.",
            (
                Query(worst_now(f"max by ({_OF_ROW}, verdict) (phasewatch_diagnosis{{{FLEET}}}) == 1", FLEET), ""),
                Query(worst_now(f"max by ({_OF_ROW}, state) (phasewatch_engine_state{{{FLEET}}}) == 1", FLEET), ""),
                Query(_engine("ttft_p99_seconds"), "TTFT p99"),
                Query(_engine("itl_p99_seconds"), "ITL p99"),
                Query(_engine("expected_wait_seconds"), "Expected wait"),
                Query(_engine("running_requests", window=False), "Running"),
                Query(_engine("waiting_requests", window=False), "Waiting"),
                Query(_engine("kv_cache_usage_ratio", window=False), "KV cache"),
            ),
            units={"TTFT p99": "s", "ITL p99": "s", "Expected wait": "s", "KV cache": "percentunit"},
            names={
                "target": "target",
                "engine": "engine",
                "model_name": "model",
                "state": "state",
                "verdict": "verdict",
            },
            links={"target": ENGINE},
            sort="TTFT p99",
            no_value="No replica has traffic, and all of them answer",
            width=24,
            height=7,
        ),
    ),
)
THROUGHPUT = Row(
    "Throughput",
    (
        Panel(
            "timeseries",
            "Tokens",
            "Tokens per second, all engines added. Prompt tokens include those found in the prefix cache.",
            (
                Query(total("prompt_tokens_per_second", FLEET), "prompt tokens"),
                Query(total("generation_tokens_per_second", FLEET), "output tokens"),
            ),
            unit="cps",
            no_value="No engine reports",
        ),
        Panel(
            "timeseries",
            "Arrivals and admissions",
            "Requests per second. Arrivals above admissions fill the queue.",
            (
                Query(total("arrivals_per_second", FLEET), "arrivals"),
                Query(total("admissions_per_second", FLEET), "admissions"),
            ),
            unit="reqps",
            no_value="No engine reports",
        ),
    ),
)

BOARD = Dashboard(
    uid="phasewatch-fleet",
    title="vLLM fleet (phasewatch)",
    description="Every model now: verdict, objectives, latency with its bounds, queue, and the most degraded replicas.",
    variables=(NAMESPACE, MODEL_NAME, WINDOW_OF),
    rows=(NOW, WORST, EACH_MODEL, THROUGHPUT),
)
