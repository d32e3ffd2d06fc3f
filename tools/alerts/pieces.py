"""What the rows are put together from: PromQL that rides over missed scrapes, and the lines of a notification."""

from collections.abc import Mapping
from dataclasses import dataclass

# Two missed scrapes of phasewatch in a row, 30 s apart at most: config/prometheus/README.md.
_RIDES_OVER = "[2m]"
_RUNBOOKS = "{{ with $externalLabels.runbooks }}{{ . }}{{ else }}config/runbooks{{ end }}"


# --- expressions -------------------------------------------------------------------------------------------------


def gauge(
    name: str, matchers: str = "", *, gone: str = "window", over: str = "last_over_time", span: str = _RIDES_OVER
) -> str:
    """An engine's gauge, whichever phasewatch says it. gone: the labels that the value loses. over: how the values of
    `span` become one."""
    block = f"{{{matchers}}}" if matchers else ""
    without = ", ".join(filter(None, ("instance, job", gone)))
    return f"max without ({without}) ({over}(phasewatch_{name}{block}{span}))"


def windowed(name: str, window: str = "5m") -> str:
    """The same, over one of phasewatch's windows."""
    return gauge(name, f'window="{window}"')


def verdict(name: str, *, series: str = "diagnosis") -> str:
    """1 while a verdict leads."""
    return gauge(series, f'verdict="{name}"', gone="verdict", over="max_over_time")


def low_confidence() -> str:
    return gauge("diagnosis_confidence", 'level="low"', gone="level", over="max_over_time")


def limit(objective: str, severity: str) -> str:
    """A model's limit in seconds; objective: a matcher such as `="ttft_p99"`."""
    return (
        f"max by (model_name) (last_over_time(phasewatch_objective_seconds{{objective{objective},"
        f'severity="{severity}"}}{_RIDES_OVER}))'
    )


# --- lines of a notification -------------------------------------------------------------------------------------

ME = '{{- $me := printf "model_name=%q,target=%q,engine=%q" $labels.model_name $labels.target $labels.engine -}}'
ENGINE = "Engine {{ $labels.engine }} on {{ $labels.target }} ({{ $labels.model_name }})"


def limit_shown(objective: str, severity: str) -> str:
    """The limit in the text; objective: as in `limit`, or `=%q` for the alert's own label."""
    own = " $labels.objective" if "%q" in objective else ""
    escaped = objective.replace('"', '\\"')
    return (
        f'{{{{ with printf "max(last_over_time(phasewatch_objective_seconds{{objective{escaped},'
        f'severity=\\"{severity}\\",model_name=%q}}[2m]))"{own} $labels.model_name | query }}}}'
        "{{ (first .).Value | humanizeDuration }}{{ end }}"
    )


def share_of_time(name: str, *, series: str = "diagnosis", who: str = "%s", of: str = "$me") -> str:
    """For how much of the last 10 minutes a verdict led."""
    return (
        f'{{{{ with printf "max(avg_over_time(phasewatch_{series}{{verdict=\\"{name}\\",{who}}}[10m]))" {of} | query }}}}'
        "{{ (first .).Value | humanizePercentage }}{{ end }} of the last 10 minutes"
    )


@dataclass(frozen=True, slots=True)
class Fact:
    """A number of the same engine that a notification adds. matchers: labels of the series besides the engine's."""

    series: str
    says: str
    matchers: str = ""

    @property
    def line(self) -> str:
        escaped = self.matchers.replace('"', '\\"') + "," if self.matchers else ""
        ask = f'printf "max(last_over_time(phasewatch_{self.series}{{{escaped}%s}}[2m]))" $me'
        return f"{{{{- with {ask} | query }}}} {self.says}{{{{ end }}}}"


_TIME = "{{ (first .).Value | humanizeDuration }}"
_SHARE = "{{ (first .).Value | humanizePercentage }}"
_WHOLE = '{{ (first .).Value | printf "%.0f" }}'
_5M = 'window="5m"'

FACTS: Mapping[str, Fact] = {
    "wait": Fact("expected_wait_seconds", f"Expected wait {_TIME}.", 'window="60s"'),
    "kv": Fact("kv_cache_usage_ratio", f"KV cache {_SHARE} full."),
    "waiting": Fact("waiting_requests", f"{_WHOLE} requests waiting."),
    "running": Fact("running_requests", f"{_WHOLE} running."),
    "itl_p50": Fact("itl_p50_seconds", f"Median ITL {_TIME}.", _5M),
    "prefill": Fact("prefill_time_ratio", f"Prefill takes {_SHARE} of the engine time.", _5M),
    "preemptions": Fact(
        "preemptions_per_second", '{{ (first .).Value | printf "%.2f" }} preemptions a second.', _5M
    ),
    "stalled": Fact("itl_stalled_ratio", f"{_SHARE} of the streaming time is spent in stalls.", _5M),
    "arrivals": Fact("arrivals_per_second", '{{ (first .).Value | printf "%.1f" }} arrivals a second.', _5M),
    "frontend": Fact(
        "phase_mean_seconds", f"{_TIME} a request outside the engine.", f'phase="frontend",{_5M}'
    ),
}  # fmt: skip


def _first(ask: str) -> tuple[str, ...]:
    return (
        f"{{{{- with {ask} }}}}",
        "First: {{ (first .).Labels.change }} ({{ (first .).Labels.when }}).",
        "{{- end }}",
    )


def leading(*, average: str, who: str, of: str, span: str, held: str) -> tuple[str, ...]:
    """The cause that led longest, looked up when the text is made: no label of an alert may depend on it."""
    remedy = 'printf "max by (change, when) (last_over_time(phasewatch_remedy_info{verdict=%q}[10m]))"'
    return (
        f'{{{{- with printf "topk(1, {average} by (verdict) (avg_over_time(phasewatch_diagnosis{{'
        f'verdict!~\\"healthy|unknown\\",{who}}}[{span}])) > 0)" {of} | query }}}}',
        "{{- $cause := first . }}",
        f"Cause: {{{{ $cause.Labels.verdict }}}} for {{{{ $cause.Value | humanizePercentage }}}} of {held}.",
        *_first(f"{remedy} $cause.Labels.verdict | query"),
        f"Read on: {_RUNBOOKS}/verdicts/{{{{ $cause.Labels.verdict }}}}.md",
        "{{- else }}",
        "Cause unknown.",
        "{{- end }}",
    )


LEADING = leading(average="max", who="%s", of="$me", span="10m", held="the last 10 minutes")


def known(name: str) -> tuple[str, ...]:
    """The lines of an alert about one verdict."""
    return (
        *_first(f'query "max by (change, when) (last_over_time(phasewatch_remedy_info{{verdict=\\"{name}\\"}}[10m]))"'),
        read_on(name),
    )


def read_on(name: str) -> str:
    return f"Read on: {_RUNBOOKS}/verdicts/{name}.md"


def runbook(alert: str) -> str:
    return f"{_RUNBOOKS}/alerts/{alert}.md"
