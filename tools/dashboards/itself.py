"""phasewatch itself: is what the other dashboards show fresh and whole, and what does it cost?"""

from tools.dashboards.looks import UP
from tools.dashboards.panels import Dashboard, Panel, Query, Row, Variable
from tools.dashboards.queries import TARGET
from tools.dashboards.shared import NAMESPACE

_TARGET = Variable("target", "Target", 'label_values(phasewatch_target_up{namespace=~"$namespace"}, target)')


def _target(name: str, aggregation: str = "max") -> str:
    return f"{aggregation} by (target) (phasewatch_target_{name}{{{TARGET}}})"


_RESTARTS = f"sum by (target) (increase(phasewatch_target_restarts_total{{{TARGET}}}[$__range]))"
_OLDEST = (
    "bottomk(20, max by (target)"
    f" (last_over_time(phasewatch_target_last_success_timestamp_seconds{{{TARGET}}}[$__range] @ end())))"
)
# Prometheus' own series about scraping phasewatch, whatever the job is called.
_OURS = "and on (instance, job) phasewatch_build_info"

SCRAPES = Row(
    "Scrapes of vLLM",
    (
        Panel(
            "stat",
            "Targets up",
            "Targets whose last scrape succeeded, and all watched targets.",
            (
                Query(f"sum ({_target('up')})", "up"),
                Query(f"count ({_target('up')})", "watched"),
            ),
            no_value="No target is watched",
            width=8,
            height=5,
        ),
        Panel(
            "stat",
            "Last evaluation",
            "Age of the last evaluation. Much more than the interval: phasewatch is late or has stopped, and all"
            " other dashboards show old data.",
            (Query("time() - min by (instance) (phasewatch_last_evaluation_timestamp_seconds)", "{{instance}}"),),
            unit="s",
            no_value="No evaluation yet, or Prometheus does not scrape phasewatch",
            width=8,
            height=5,
        ),
        Panel(
            "stat",
            "Versions",
            "Version of phasewatch; one line per version that runs.",
            (Query("count by (version) (phasewatch_build_info)", "{{version}}"),),
            no_value="Prometheus does not scrape phasewatch",
            width=8,
            height=5,
        ),
        Panel(
            "timeline",
            "Targets, up or down",
            "At most 20 targets: those that were down longest in this range.",
            (
                Query(
                    f"{_target('up', 'min')} and on (target) bottomk(20, min by (target)"
                    f" (avg_over_time(phasewatch_target_up{{{TARGET}}}[$__range] @ end())))",
                    "{{target}}",
                ),
            ),
            values=UP,
            no_value="No target is watched",
            width=12,
            height=9,
        ),
        Panel(
            "timeseries",
            "Failures by reason",
            "Failed scrapes per second by reason. connect, timeout: server or network. authentication, status:"
            " configuration. not_metrics: wrong URL.",
            (
                Query(
                    f"sum by (reason) (rate(phasewatch_target_scrape_failures_total{{{TARGET}}}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            unit="cps",
            no_value="No scrape has failed",
            height=9,
        ),
    ),
)
FRESHNESS = Row(
    "Freshness and completeness",
    (
        Panel(
            "timeseries",
            "Lateness of evaluations",
            "Age of the last evaluation when Prometheus scraped. A sawtooth up to the interval is normal; above it,"
            " evaluations are late.",
            (Query("time() - min by (instance) (phasewatch_last_evaluation_timestamp_seconds)", "{{instance}}"),),
            unit="s",
            no_value="No evaluation in this range",
        ),
        Panel(
            "timeseries",
            "Age of the last successful scrape",
            "The 20 oldest. Above three intervals: the target is down, and its numbers are not exported.",
            (
                Query(
                    f"time() - {_target('last_success_timestamp_seconds')} and on (target) {_OLDEST}",
                    "{{target}}",
                ),
            ),
            unit="s",
            no_value="No target has answered yet",
        ),
        Panel(
            "table",
            "Missing signals",
            "Number of signals that a target's scrape lacks; some verdicts then abstain or have lower confidence."
            " `phasewatch diagnose --format json` names them.",
            (Query(f"topk(20, {_target('missing_signals')} > 0)", "missing"),),
            names={"target": "target"},
            sort="missing",
            no_value="No signal is missing",
        ),
        Panel(
            "table",
            "Restarts seen",
            "Engine restarts seen in this range.",
            (
                Query(
                    f"topk(20, round({_RESTARTS}) > 0)",
                    "restarts",
                ),
            ),
            names={"target": "target"},
            sort="restarts",
            no_value="No restart in this range",
        ),
        Panel(
            "timeseries",
            "Scrape anomalies by kind",
            "Anomalies per second by kind: lines that cannot be read, impossible values. They are left out, so numbers"
            " may be missing. `phasewatch diagnose --format json` quotes the last one.",
            (
                Query(
                    f"sum by (kind) (rate(phasewatch_target_anomalies_total{{{TARGET}}}[$__rate_interval]))",
                    "{{kind}}",
                ),
            ),
            unit="cps",
            no_value="No target has been scraped",
            width=24,
        ),
    ),
)
COST = Row(
    "Cost",
    (
        Panel(
            "timeseries",
            "Duration of scrapes",
            "The slowest scrape of vLLM and the mean. Rendering /metrics blocks the API server's event loop. Slow"
            " scrapes mean a busy front end; a longer scrape interval reduces its load.",
            (
                Query(f"max ({_target('scrape_duration_seconds')})", "slowest"),
                Query(f"avg ({_target('scrape_duration_seconds')})", "mean"),
            ),
            unit="s",
            no_value="No scrape has succeeded",
        ),
        Panel(
            "timeseries",
            "Series exported",
            "Series that Prometheus stores with each scrape of phasewatch.",
            (Query(f"scrape_samples_post_metric_relabeling {_OURS}", "{{instance}}"),),
            unit="short",
            no_value="Prometheus does not scrape phasewatch",
            width=6,
        ),
        Panel(
            "timeseries",
            "Scrapes of phasewatch",
            "How long Prometheus waits for phasewatch's /metrics. It is rendered once per evaluation, so this is"
            " transfer time.",
            (Query(f"scrape_duration_seconds {_OURS}", "{{instance}}"),),
            unit="s",
            no_value="Prometheus does not scrape phasewatch",
            width=6,
        ),
    ),
)

BOARD = Dashboard(
    uid="phasewatch-itself",
    title="phasewatch itself",
    description="Scrapes, lateness, failures by reason, missing signals, and the cost of watching.",
    variables=(NAMESPACE, _TARGET),
    rows=(SCRAPES, FRESHNESS, COST),
)
