"""Triage: where an alert links to. From top to bottom: what, where the time goes, what drives it."""

from phasewatch.core.diagnosis.causes._row import VerdictRow
from phasewatch.core.diagnosis.verdicts import REMEDIES, VERDICT_TABLE
from tools.dashboards.looks import TIMELINE
from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import (
    ENGINE,
    each,
    overall,
    phases,
    total,
    verdict_number,
    weighted,
    worst,
    worst_now,
)
from tools.dashboards.shared import (
    BOUNDS,
    MODEL_NAME,
    NAMESPACE,
    TRIAGE,
    WINDOW_OF,
    bounds,
    engine,
    limits,
    target,
)
from tools.dashboards.shared import ENGINE as ENGINE_BOARD


def _text(row: VerdictRow) -> Panel:
    remedies = REMEDIES.get(row.verdict, ())
    first = f"\n\nFirst: {remedies[0].change} ({remedies[0].when})." if remedies else ""
    return Panel(
        "text",
        row.verdict,
        f"What to look at when {row.verdict} is the leading verdict; see the runbook verdicts/{row.verdict}.md.",
        text=f"Look at: {row.look}{first}\n\nRunbook: `config/runbooks/verdicts/{row.verdict}.md`",
        width=8,
        height=6,
    )


_OF_CAUSE = "target, engine, verdict"
WHAT = Row(
    "What is slow, and since when",
    (
        Panel(
            "timeline",
            "Verdicts",
            "One line per engine, at most the 20 that were degraded longest in this range. Text: the leading"
            " verdict, or the state if there is none. Colours by phase: orange queue, blue prefill, purple decode,"
            " green front end.",
            (Query(worst(f"({verdict_number(ENGINE)})", ENGINE), "{{target}} / {{engine}}"),),
            values=TIMELINE,
            no_value="No engine is watched, or the selected variables match nothing in this range",
            width=24,
            height=7,
        ),
        Panel(
            "table",
            "Causes now, and what to do first",
            "Each cause found, the share of the time above the limit that it explains (proven from 50 %), and its"
            " first remedy: possible now, with a restart, or with more capacity.",
            (
                Query(
                    f"topk(20, max by ({_OF_CAUSE}) (phasewatch_diagnosis_score{{{ENGINE}}}) * on (verdict)"
                    " group_left (change, when) max by (verdict, change, when) (phasewatch_remedy_info))",
                    "Share of the excess",
                ),
            ),
            units={"Share of the excess": "percentunit"},
            names={
                "target": "target",
                "engine": "engine",
                "verdict": "cause",
                "change": "do first",
                "when": "takes",
            },
            links={"target": ENGINE_BOARD},
            sort="Share of the excess",
            no_value="No symptom, or cause unknown",
            width=24,
            height=5,
        ),
    ),
)
TIME = Row(
    "Where the time goes",
    (
        Panel(
            "stacked",
            "Phases",
            "Exact mean seconds per finished request in each phase, over all engines shown, weighted by requests."
            " Start with the largest area. Requests that still wait are not included: see expected wait.",
            phases(ENGINE),
            unit="s",
            no_value="No request finished in the window",
        ),
        Panel(
            "timeseries",
            "TTFT",
            f"The slowest of the engines shown. {BOUNDS} Dashed: limits. Select one engine to see only that one.",
            (
                *bounds(
                    overall("max", "ttft_p50_seconds", ENGINE),
                    overall("max", "ttft_p99_seconds", ENGINE),
                    overall("max", "ttft_p99_low_seconds", ENGINE),
                    overall("max", "ttft_p99_high_seconds", ENGINE),
                ),
                *limits("ttft_p99"),
            ),
            unit="s",
            no_value="No first token in the window",
        ),
        Panel(
            "timeseries",
            "ITL",
            "The slowest of the engines shown. p99 up and p50 unchanged: stalls (prefill of other requests,"
            " preemption). Both up: every step is slower (batch, context, the host). Stalled (right): share of the"
            " streaming time"
            f" in gaps longer than the objective itl_stall. {BOUNDS}",
            (
                *bounds(
                    overall("max", "itl_p50_seconds", ENGINE),
                    overall("max", "itl_p99_seconds", ENGINE),
                    overall("max", "itl_p99_low_seconds", ENGINE),
                    overall("max", "itl_p99_high_seconds", ENGINE),
                ),
                *limits("itl_p99"),
                Query(overall("max", "itl_stalled_ratio", ENGINE), "stalled"),
            ),
            unit="s",
            units={"stalled": "percentunit"},
            no_value="No tokens in the window",
        ),
        Panel(
            "timeseries",
            "Queue, batch and KV cache",
            "Requests of the engines shown, added; on the right the fullest KV cache and preemptions per second."
            " Waiting while the KV cache has room: batch limit or prefill. Waiting while it is full: KV cache.",
            (
                Query(total("waiting_requests", ENGINE, window=False), "waiting"),
                Query(total("waiting_deferred_requests", ENGINE, window=False), "deferred"),
                Query(total("running_requests", ENGINE, window=False), "running"),
                Query(overall("max", "kv_cache_usage_ratio", ENGINE, window=False), "KV cache, fullest"),
                Query(total("preemptions_per_second", ENGINE), "preempted"),
            ),
            units={"KV cache, fullest": "percentunit", "preempted": "reqps"},
            no_value="No engine reports",
        ),
        Panel(
            "timeseries",
            "Expected wait",
            "How long a new request waits: waiting / admissions per second, longest of the engines shown. It shows"
            " a growing queue at once; the histograms show it only after the waiting requests have finished.",
            (Query(overall("max", "expected_wait_seconds", ENGINE), "expected wait"), *limits("ttft_p99")),
            unit="s",
            no_value="No engine reports",
        ),
        Panel(
            "timeseries",
            "TTFT p99 by engine",
            "At most the 20 engines that were degraded longest. One far above the others: its host or routing. All"
            " together: demand or prompts.",
            (Query(worst(each("ttft_p99_seconds", ENGINE), ENGINE), "{{target}} / {{engine}}"),),
            unit="s",
            no_value="No first token in the window",
        ),
    ),
)
DRIVERS = Row(
    "What drives it",
    (
        Panel(
            "timeseries",
            "Prompt length",
            "Mean prompt tokens per request. Longer prompts need more prefill: TTFT rises, and running streams stall.",
            (Query(weighted("prompt_tokens_mean", "ttft_observations", ENGINE), "mean"),),
            unit="short",
            no_value="No requests in the window",
            width=8,
        ),
        Panel(
            "timeseries",
            "Output length",
            "Mean output tokens per finished request. Longer answers: e2e rises with the same TTFT and ITL.",
            (Query(weighted("output_tokens_mean", "e2e_observations", ENGINE), "mean"),),
            unit="short",
            no_value="No request finished in the window",
            width=8,
        ),
        Panel(
            "timeseries",
            "Arrivals",
            "Requests per second. Arrivals above admissions fill the queue. Failed requests and clients that gave"
            " up before the first token are separate symptoms.",
            (
                Query(total("arrivals_per_second", ENGINE), "arrivals"),
                Query(total("admissions_per_second", ENGINE), "admissions"),
                Query(total("failed_requests_per_second", ENGINE), "failed"),
                Query(overall("max", "gave_up_before_first_token_ratio", ENGINE), "gave up first"),
            ),
            unit="reqps",
            units={"gave up first": "percentunit"},
            no_value="No engine reports",
            width=8,
        ),
        Panel(
            "timeseries",
            "Prefill's share of engine time",
            "Share of engine time spent on prefill, highest of the engines shown. Near 100 %: prefill causes the"
            " queue. Low: the batch limit or the KV cache does.",
            (Query(overall("max", "prefill_time_ratio", ENGINE), "prefill"),),
            unit="percentunit",
            largest=1,
            no_value="Unknown for these engines",
            width=8,
        ),
        Panel(
            "timeseries",
            "Growth of the queue",
            "Change of waiting requests per second, engines added. Above zero for minutes: arrivals exceed capacity.",
            (Query(total("queue_growth_requests_per_second", ENGINE), "growth"),),
            unit="reqps",
            no_value="No engine reports",
            width=8,
        ),
        Panel(
            "table",
            "Most degraded engines",
            "At most 20 engines, with the verdict and numbers of the selected window. Click a target to compare it"
            " with its peers.",
            (
                Query(worst_now(f"max by ({_OF_CAUSE}) (phasewatch_diagnosis{{{ENGINE}}}) == 1", ENGINE), ""),
                Query(worst_now(each("ttft_p99_seconds", ENGINE), ENGINE), "TTFT p99"),
                Query(worst_now(each("itl_p99_seconds", ENGINE), ENGINE), "ITL p99"),
            ),
            unit="s",
            names={"target": "target", "engine": "engine", "verdict": "verdict"},
            links={"target": ENGINE_BOARD},
            sort="TTFT p99",
            no_value="No engine has traffic, and all of them answer",
            width=8,
        ),
    ),
)
VERDICT_TEXTS = Row("What to look at, verdict by verdict", tuple(_text(row) for row in VERDICT_TABLE), collapsed=True)

BOARD = Dashboard(
    uid=TRIAGE,
    title="vLLM triage (phasewatch)",
    description="Which phase is slow, since when and why: verdicts, phases and drivers on one time axis.",
    variables=(NAMESPACE, MODEL_NAME, target(), engine(), WINDOW_OF),
    rows=(WHAT, TIME, DRIVERS, VERDICT_TEXTS),
    since="now-1h",
)
