"""Variables and panels that several dashboards have."""

from tools.dashboards.panels import Panel, Query, Variable
from tools.dashboards.queries import FLEET, MODEL, WINDOW, limit

TRIAGE, ENGINE = "phasewatch-triage", "phasewatch-engine"

# Deployments without namespaces have no such label: All then means "whatever, or none".
NAMESPACE = Variable("namespace", "Namespace", "label_values(phasewatch_target_up, namespace)", all_value=".*")
_OF_NAMESPACE = 'namespace=~"$namespace"'
MODEL_NAME = Variable("model_name", "Model", f"label_values(phasewatch_engine_state{{{_OF_NAMESPACE}}}, model_name)")
# The shortest first: verdicts are judged over it.
_WINDOWS = "label_values(phasewatch_window_seconds, window)"
WINDOW_OF = Variable("window", "Window", _WINDOWS, single=True, descending=True)


def target(*, single: bool = False) -> Variable:
    return Variable("target", "Target", f"label_values(phasewatch_engine_state{{{FLEET}}}, target)", single)


def engine(*, single: bool = False) -> Variable:
    found = f'label_values(phasewatch_engine_state{{{FLEET},target=~"$target"}}, engine)'
    return Variable("engine", "Engine", found, single)


BOUNDS = (
    "The band is the histogram bucket that holds p99: the true value lies in it; the line is the estimate."
    " No upper edge: p99 is above the last finite bucket."
)


def bounds(p50: str, p99: str, low: str, high: str) -> tuple[Query, ...]:
    """Four lines, of which two are a band. The upper edge comes first: it is filled down to the lower one."""
    return Query(high, "p99 high"), Query(low, "p99 low"), Query(p99, "p99"), Query(p50, "p50")


def limits(objective: str) -> tuple[Query, ...]:
    return (
        Query(limit(objective), "limit (warning)"),
        Query(limit(objective, "critical"), "limit (critical)"),
    )


def model_latency(kind: str, what: str) -> Panel:
    """TTFT or ITL of one model: all its engines' histograms merged."""

    def of(name: str) -> str:
        return f"max (phasewatch_model_{kind}_{name}_seconds{{{MODEL},{WINDOW}}})"

    return Panel(
        "timeseries",
        f"{kind.upper()} of $model_name",
        f"{what} over all engines of the model, from their added histograms. {BOUNDS} Dashed: the configured limits.",
        (*bounds(of("p50"), of("p99"), of("p99_low"), of("p99_high")), *limits(f"{kind}_p99")),
        unit="s",
        no_value="No requests in the window",
    )
