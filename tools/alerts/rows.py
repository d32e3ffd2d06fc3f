"""The alerts, one row each, and the series that they need recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from phasewatch.core.measures.quantile import PERCENTILES
from phasewatch.core.settings import Thresholds
from tools.alerts.pieces import (
    ENGINE,
    FACTS,
    LEADING,
    ME,
    gauge,
    known,
    leading,
    limit,
    limit_shown,
    low_confidence,
    read_on,
    share_of_time,
    verdict,
    windowed,
)

PREFIX = "Phasewatch"
Severity = Literal["critical", "warning", "info", "none"]


@dataclass(frozen=True, slots=True)
class Alert:
    """name: without the prefix. says: the notification's first line; facts: keys of FACTS that follow it; cause: the
    lines about cause and remedy. of_engine: the text speaks of one engine and looks things up by it."""

    name: str
    severity: Severity
    kind: Literal["symptom", "cause", "heartbeat"]
    area: str
    summary: str
    expr: str
    says: str
    lasts: str = "5m"
    keeps: str = "5m"
    facts: tuple[str, ...] = ()
    cause: tuple[str, ...] = ()
    of_engine: bool = True

    @property
    def description(self) -> tuple[str, ...]:
        head = (ME, f"{ENGINE}{self.says}") if self.of_engine else (self.says,)
        return (*head, *(FACTS[fact].line for fact in self.facts), *self.cause)


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class RuleFile:
    """opening: the file's comment. rules: in order."""

    opening: str
    rules: tuple[Alert | Record, ...] = field(default=())


_COMMON = "../README.md says what the rules have in common."
_PERCENT = "{{ $value | humanizePercentage }}"
_SECONDS = "{{ $value | humanizeDuration }}"
_COUNT = '{{ $value | printf "%.0f" }}'
_STALL = '="itl_stall"'
_ANY_TTFT = '=~"ttft_.+"'
# How many requests it takes to wake somebody, and to open a ticket: the same as in phasewatch's own results.
_LEAST: Mapping[str, int] = {"critical": Thresholds().critical_over, "warning": Thresholds().min_over}


# --- latency: what users feel ------------------------------------------------------------------------------------


def _percentile(family: str, area: str, least: int, facts: tuple[str, ...]) -> tuple[Alert, Alert]:
    """Critical by what the buckets prove, warning by what is interpolated."""

    def expr(value: str, compared: str, severity: str, counter: str, missed: str) -> str:
        named, shown = f'="{family}_p99"', windowed(f"{family}_{value}_seconds")
        objective = f"objective{named}"
        judged = gauge("objective_judged", objective, gone="objective", over="max_over_time", span="[5m]")
        result = gauge(missed, f'{objective},severity="{severity}"', gone="objective, severity", over="max_over_time")
        return (
            f"{shown}\n{compared} on (model_name) group_left ()\n{limit(named, severity)}\nand\n(\n"
            f"  # At least {least} observations, and {_LEAST[severity]} of them over the limit, which a p99 over it makes"
            f" 1% or more;\n  # not where nothing could be judged all the while.\n"
            f"  {windowed(f'{family}_observations')} >= {least}\n  and\n"
            f"  max without (instance, job, objective, severity) (increase(phasewatch_objective_{counter}_total"
            f'{{{objective},severity="{severity}"}}[5m])) >= {_LEAST[severity]}\n  unless\n  {judged} == 0\n  or\n'
            "  # Or, on a quiet server, as many of its last 20 observations, however long those took.\n"
            f"  {result} == 1\n)"
        )

    shown, objective = family.upper(), f'="{family}_p99"'
    return (
        Alert(
            f"{shown}High", "critical", "symptom", area,
            f"{shown} p99 is above its critical limit.",
            expr("p99_low", ">=", "critical", "over_surely", "objective_missed_surely"),
            f": p99 {shown} of at least {_SECONDS} over 5 minutes; critical limit {limit_shown(objective, 'critical')}.",
            lasts="2m", facts=facts, cause=LEADING,
        ),
        Alert(
            f"{shown}High", "warning", "symptom", area,
            f"{shown} p99 is above its limit.",
            expr("p99", ">", "warning", "over", "objective_missed"),
            f": p99 {shown} of {_SECONDS} over 5 minutes; limit {limit_shown(objective, 'warning')}.",
            facts=facts, cause=LEADING,
        ),
    )  # fmt: skip


def _stalls(severity: Literal["critical", "warning"], lasts: str) -> Alert:
    missed = gauge(
        "objective_missed_surely",
        f'objective="itl_stall",severity="{severity}"',
        gone="objective, severity",
        over="max_over_time",
    )
    return Alert(
        "ITLStalls", severity, "symptom", "itl",
        "Token streams stall for longer than the limit.",
        f"{missed} == 1\nand\n{windowed('itl_observations')} >= 100",
        f": gaps of more than {limit_shown(_STALL, severity)} hold more than 1% of the streaming time.",
        lasts=lasts, facts=("stalled", "prefill", "preemptions", "running"), cause=LEADING,
    )  # fmt: skip


def _own_objective(severity: Literal["critical", "warning"], series: str) -> Alert:
    missed = gauge(
        series,
        f'objective!~"ttft_p99|itl_p99|itl_stall",severity="{severity}"',
        gone="severity",
        over="max_over_time",
    )
    return Alert(
        "ObjectiveMissed", severity, "symptom", "other",
        "An objective set in phasewatch.yml is missed.",
        "# There is no series where it could not be judged. Missed: at least two observations over the limit; critical:"
        f" {_LEAST['critical']} and 1%.\n{missed} == 1",
        f": objective {{{{ $labels.objective }}}} missed; limit {limit_shown('=%q', severity)}.",
        facts=("wait", "itl_p50", "prefill", "running"), cause=LEADING,
    )  # fmt: skip


_WAITING = gauge("waiting_requests", gone="")


def _unanswered(severity: Literal["critical", "warning"], lasts: str, summary: str) -> Alert:
    """Nothing need have finished: the age of what is in flight is proven by those that came before it."""
    many = f"\nand\n# So many that each of them will be over the limit: one request wakes nobody.\n{_WAITING} >= {_LEAST[severity]}"
    return Alert(
        "RequestsUnanswered", severity, "symptom", "ttft", summary,
        f"{gauge('oldest_unanswered_seconds', gone='')}\n> on (model_name) group_left ()\n"
        f"# The most lenient TTFT limit, the critical one in both severities.\n{limit(_ANY_TTFT, 'critical')}"
        + (many if severity == "critical" else ""),
        f": a request has waited {_SECONDS} or longer for its first token; critical limit of TTFT"
        f" {limit_shown(_ANY_TTFT, 'critical')}.",
        lasts=lasts, facts=("kv", "waiting", "running"), cause=LEADING,
    )  # fmt: skip


def _queue(severity: Literal["critical", "warning"], lasts: str) -> Alert:
    return Alert(
        "QueueGrowing", severity, "symptom", "ttft",
        "The queue grows, and a new request waits longer than the TTFT limit.",
        f"{windowed('expected_wait_seconds', '60s')}\n> on (model_name) group_left ()\n"
        "# The most lenient TTFT limit, as phasewatch itself holds a wait against it.\n"
        f"{limit(_ANY_TTFT, severity)}\nand\n{windowed('queue_growth_requests_per_second')} > 0\nand\n"
        f"# One request that waits is no queue, and a few wake nobody.\n{_WAITING} >= {_LEAST[severity]}",
        f": expected wait {_SECONDS} and rising; {severity} limit of TTFT {limit_shown(_ANY_TTFT, severity)}.",
        lasts=lasts, facts=("kv", "prefill", "waiting", "running"), cause=LEADING,
    )  # fmt: skip


_LATENCY = RuleFile(
    f"What users feel. {_COMMON}",
    (
        *_percentile("ttft", "ttft", 10, ("wait", "kv", "waiting", "running")),
        *_percentile("itl", "itl", 100, ("itl_p50", "prefill", "preemptions", "running")),
        _stalls("critical", "2m"),
        _stalls("warning", "5m"),
        _own_objective("critical", "objective_missed_surely"),
        _own_objective("warning", "objective_missed"),
        _queue("critical", "2m"),
        _queue("warning", "5m"),
        _unanswered("critical", "2m", "Many requests wait for their first token, the oldest beyond the critical limit."),
        _unanswered("warning", "5m", "A request waits for its first token beyond the critical limit."),
        Alert(
            "CauseUnknown", "info", "symptom", "other",
            "The cause of what users feel has been unknown for 30 minutes.",
            "# Half of the time and more: a cause that was proven now and then is named by the symptoms' alerts.\n"
            + gauge("diagnosis", 'verdict="unknown"', gone="verdict", over="avg_over_time", span="[10m]")
            + " > 0.5",
            f": cause unknown for {_PERCENT} of the last 10 minutes.",
            lasts="30m", facts=("kv", "waiting", "running"), cause=(read_on("unknown"),),
        ),
    ),
)  # fmt: skip

# --- budget: shares over the limit, and burn rates ---------------------------------------------------------------

_BUDGETS = {name: f"{1 - q:g}" for name, q in reversed(PERCENTILES)}


def _over(counter: str, function: str, span: str) -> str:
    return (
        f"sum by (model_name, objective) (max without (instance, job) ({function}(phasewatch_objective_{counter}_total"
        f'{{objective=~".+_p.+",severity="warning"}}[{span}])))'
    )


def _share(counter: str, span: str) -> Record:
    every = (
        "(sum by (model_name, objective) (max without (instance, job) (rate(phasewatch_objective_observations_total"
        f'{{objective=~".+_p.+"}}[{span}]))) > 0)'
    )
    name = f"model:phasewatch_objective_{counter}:ratio_rate{span}"
    return Record(name, f"{_over(counter, 'rate', span)}\n/\n{every}")


def _increase(counter: str, span: str) -> Record:
    return Record(f"model:phasewatch_objective_{counter}:increase{span}", _over(counter, "increase", span))


@dataclass(frozen=True, slots=True)
class _Speed:
    """How fast a budget burns: (factor, long span, short span) twice; Google's SRE workbook, chapter 5."""

    severity: Literal["critical", "warning"]
    counter: str
    burns: tuple[tuple[str, str, str], ...]
    lasts: str
    span: str
    summary: str
    counted: str
    held: str


_SPEEDS = (
    _Speed(
        "critical", "over_surely", (("14.4", "1h", "5m"), ("6", "6h", "30m")), "2m", "1h", "too fast",
        "25 in buckets over the limit", "hour",
    ),
    _Speed(
        "warning", "over", (("3", "1d", "2h"), ("1", "3d", "6h")), "1h", "1d", "faster than it lasts",
        "25 over the limit", "day",
    ),
)  # fmt: skip


def _burn(shown: str, families: str, what: str, speed: _Speed) -> Alert:
    def leg(factor: str, long: str, short: str) -> str:
        on, budget = "on (model_name, objective)", "model:phasewatch_objective_budget:ratio"
        series = f"model:phasewatch_objective_{speed.counter}"
        return (
            f'(\n  {series}:ratio_rate{long}{{objective=~"{families}_p.+"}} > {on} {factor} * {budget}\n  and {on}\n'
            f'  {series}:ratio_rate{short}{{objective=~"{families}_p.+"}} > {on} {factor} * {budget}\n  and {on}\n'
            f"  {series}:increase{long} >= 25\n)"
        )

    (fast, one, _), (slow, other, _) = speed.burns
    asked = (
        '{{ with printf "model:phasewatch_objective_budget:ratio{model_name=%q,objective=%q}" $labels.model_name'
        " $labels.objective | query }}{{ (first .).Value | humanizePercentage }}{{ end }}"
    )
    return Alert(
        f"{shown}BudgetBurn", speed.severity, "symptom", shown.lower(),
        f"The {shown} error budget burns {speed.summary}.",
        f"# {fast} times the budget for {one} or {slow} times for {other}, and still so in the short window. A p90 allows"
        " 10%: 14.4 times\n# that cannot happen, so its fast leg is silent by itself. Both a share and a count:"
        f" {speed.counted}.\n" + "\nor\n".join(leg(*burn) for burn in speed.burns),
        f"{{{{ $labels.model_name }}}}: {_PERCENT} of the {what} over the limit of {{{{ $labels.objective }}}},"
        f" {asked} allowed.",
        lasts=speed.lasts, keeps="15m", of_engine=False,
        cause=leading(
            average="avg", who="model_name=%q", of="$labels.model_name", span=speed.span,
            held=f"its engines' time in the last {speed.held}",
        ),
    )  # fmt: skip


_BUDGET = RuleFile(
    f"Error budgets: recorded shares, then burn rates. {_COMMON}\n\n"
    "An objective's name says its budget: p99 allows 1% over the limit, p95 5%, p90 10%, p50 half. Means and itl_stall have none.\n"
    "`_over_surely` counts whole histogram buckets above the warning limit and pages; `_over` interpolates and makes"
    " tickets.\n"
    "rate and increase ride over missed scrapes and restarts by themselves. Nothing is recorded without traffic (> 0): a\n"
    "share of nothing is NaN. One group, so that an alert sees what was recorded in the same round.",
    (
        Record(
            "model:phasewatch_objective_budget:ratio",
            "\nor\n".join(
                f"{share} * group by (model_name, objective) (last_over_time(phasewatch_objective_seconds"
                f'{{objective=~".+_{name}",severity="warning"}}[2m]))'
                for name, share in _BUDGETS.items()
            ),
        ),
        *(_share("over_surely", span) for span in ("5m", "30m", "1h", "6h")),
        *(_increase("over_surely", span) for span in ("1h", "6h")),
        *(_share("over", span) for span in ("2h", "6h", "1d", "3d")),
        *(_increase("over", span) for span in ("1d", "3d")),
        *(_burn("TTFT", "ttft", "first tokens", speed) for speed in _SPEEDS),
        *(_burn("ITL", "(itl|tpot)", "tokens", speed) for speed in _SPEEDS),
    ),
)

# --- causes with an alert of their own ---------------------------------------------------------------------------


def _standstill(
    name: str, cause: str, area: str, summary: str, does: str, facts: tuple[str, ...]
) -> tuple[Alert, Alert]:
    """Critical where it is proven, warning where /metrics alone cannot tell."""

    def alert(severity: Literal["critical", "warning"], lasts: str, doubt: int, comment: str, seems: str) -> Alert:
        return Alert(
            name, severity, "cause", area, summary,
            f"{verdict(cause)} == 1\nand\n# {comment}\n{low_confidence()} == {doubt}",
            f" {does}{seems}, {share_of_time(cause)}.",
            lasts=lasts, keeps="2m", facts=facts, cause=known(cause),
        )  # fmt: skip

    return (
        alert("critical", "1m", 0, "High or medium confidence only: who is woken must be told the right cause.", ""),
        alert(
            "warning", "2m", 1, "Low confidence: /metrics alone cannot tell; a probe request can.",
            " (confidence low)",
        ),
    )  # fmt: skip


def _kv(severity: Literal["critical", "warning"], summary: str, expr: str) -> Alert:
    return Alert(
        "KVCacheExhausted", severity, "cause", "ttft", summary, expr,
        f": requests wait because the KV cache has no room, {share_of_time('queue_kv_cache')}.",
        facts=("kv", "wait", "preemptions", "waiting", "running"), cause=known("queue_kv_cache"),
    )  # fmt: skip


def _most(series: str, label: str, how: str) -> tuple[str, ...]:
    window = 'window=\\"5m\\",' if series.endswith("_seconds") else ""
    return (
        f'{{{{- with printf "topk(1, max by (target, engine) (last_over_time(phasewatch_{series}{{{window}'
        f'model_name=%q}}[2m])))" $labels.model_name | query }}}}',
        f"{label}: {{{{ (first .).Labels.target }}}}/{{{{ (first .).Labels.engine }}}} ({{{{ (first .).Value | {how} }}}}).",
        "{{- end }}",
    )


def _of_peers(name: str) -> str:
    return share_of_time(name, series="model_diagnosis", who="model_name=%q", of="$labels.model_name")


_CAUSES = RuleFile(
    f"Causes that have an alert of their own. {_COMMON}",
    (
        *_standstill(
            "EngineStalled", "engine_stalled", "all", "An engine has stalled with requests in flight.",
            "has stalled", ("waiting", "running"),
        ),
        *_standstill(
            "AdmissionStalled", "admission_stalled", "ttft", "An engine generates tokens but admits no new request.",
            "admits no new request", ("kv", "waiting", "running"),
        ),
        _kv(
            "critical", "The KV cache is exhausted, and requests wait beyond the critical limit.",
            f"{verdict('queue_kv_cache')} == 1\nand\n{low_confidence()} == 0\nand\n(\n"
            f"  {windowed('expected_wait_seconds', '60s')}\n  > on (model_name) group_left ()\n"
            f"  {limit(_ANY_TTFT, 'critical')}\n)\nand\n# A few requests that wait wake nobody.\n"
            f"{_WAITING} >= {_LEAST['critical']}",
        ),
        _kv(
            "warning", "The KV cache is exhausted, and requests wait for it.",
            "# A full cache alone is no trouble; phasewatch says queue_kv_cache only where users wait for it.\n"
            f"{verdict('queue_kv_cache')} == 1\nand\n{gauge('waiting_requests', gone='', over='max_over_time')} >= 2",
        ),
        Alert(
            "PreemptionStorm", "warning", "cause", "itl",
            "Requests preempt each other for KV cache, and streams stall.",
            "# Three in five minutes; and a proven cause, since a preemption that nobody feels is how vLLM works.\n"
            f"{windowed('preemptions_per_second')} >= 0.01\nand\n"
            f"{verdict('decode_preemption', series='diagnosis_score')} >= 0.5",
            ': {{ $value | printf "%.2f" }} preemptions a second over 5 minutes.',
            facts=("stalled", "kv", "running"), cause=known("decode_preemption"),
        ),
        Alert(
            "FrontendSlow", "warning", "cause", "ttft",
            "Users wait for the API server, not for the engine.",
            f"{verdict('frontend')} == 1\nand\n{windowed('ttft_observations')} >= 10",
            f": the front end is the largest part of TTFT, {share_of_time('frontend')}.",
            facts=("frontend", "running"), cause=known("frontend"),
        ),
        Alert(
            "DecodeSlow", "warning", "cause", "itl",
            "An engine decodes slower than before at the same load.",
            "# Not a pace, but a pace that batch and context do not explain: longer contexts are slower and healthy.\n"
            f"{verdict('decode_slow')} == 1\nand\n{windowed('itl_observations')} >= 100",
            f": decode is slower than before at the same batch and context, {share_of_time('decode_slow')}.",
            facts=("itl_p50", "running"), cause=known("decode_slow"),
        ),
        Alert(
            "ReplicaOutlier", "warning", "cause", "fleet",
            "One replica is much slower than its peers at equal traffic.",
            f"{verdict('replica_outlier', series='model_diagnosis')} == 1\nand\n{windowed('model_ttft_observations')} >= 10",
            f"{{{{ $labels.model_name }}}}: one replica is much slower than its peers, {_of_peers('replica_outlier')}.",
            of_engine=False,
            cause=(
                *_most("itl_mean_seconds", "Slowest ITL", "humanizeDuration"),
                *_most("ttft_mean_seconds", "Slowest TTFT", "humanizeDuration"),
                *known("replica_outlier"),
            ),
        ),
        Alert(
            "LoadImbalance", "warning", "cause", "fleet",
            "Requests wait on one replica while another has capacity.",
            f"{verdict('load_imbalance', series='model_diagnosis')} == 1\nand\n"
            f"{gauge('model_waiting_requests', gone='', over='max_over_time')} >= 2",
            "{{ $labels.model_name }}: requests wait on some replicas while others have capacity,"
            f" {_of_peers('load_imbalance')}.",
            of_engine=False,
            cause=(
                *_most("waiting_requests", "Most requests waiting", 'printf "%.0f"'),
                *known("load_imbalance"),
            ),
        ),
    ),
)  # fmt: skip

# --- requests that fail, clients that leave ----------------------------------------------------------------------


def _failing(severity: Literal["critical", "warning"], share: str, shown: str, count: int, lasts: str) -> Alert:
    failed = windowed("failed_requests_per_second")
    return Alert(
        "RequestsFailing", severity, "symptom", "errors",
        f"More than {shown} of the requests fail.",
        "# Both a count (300 s are the window) and a share of the arrivals, where those are known.\n"
        f"{failed} * 300 >= {count}\nunless\n{failed} <= {share} * {windowed('arrivals_per_second')}",
        f": {_COUNT} requests failed in 5 minutes.",
        lasts=lasts, facts=("arrivals", "running"), cause=known("requests_failing"),
    )  # fmt: skip


def _leaving(severity: Literal["critical", "warning"], share: str, shown: str, count: int, lasts: str) -> Alert:
    left = windowed("gave_up_before_first_token_ratio")
    return Alert(
        "ClientsGivingUp", severity, "symptom", "ttft",
        f"More than {shown} of the clients disconnect before the first token.",
        f"# Both a share and a count (300 s are the window).\n{left} > {share}\nand\n"
        f"{left} * {windowed('arrivals_per_second')} * 300 >= {count}",
        f": {_PERCENT} of the clients disconnected before the first token, over 5 minutes. The latencies shown are those of"
        " the clients that stayed.",
        lasts=lasts, facts=("wait", "kv", "waiting", "running"), cause=LEADING,
    )  # fmt: skip


_ARRIVALS = ("model_arrivals_per_second", 'window="5m"')
_BEFORE = (
    "max without (instance, job, window)"
    ' (quantile_over_time(0.25, phasewatch_model_arrivals_per_second{window="5m"}[2h] offset 10m))'
)
_LEFT_OF_IT = f"0.01 * {_BEFORE}"

_STOPPED = Alert(
    "TrafficStopped", "warning", "symptom", "fleet",
    "Steady traffic has stopped while engines are ready.",
    "# Three quarters of the two hours before had 30 requests in each five minutes, or more: at that rate ten minutes"
    " without\n# one are no chance, and no evening either, which fades. So it ends half an hour later by itself.\n"
    f"{_BEFORE} >= 0.1\nand\n"
    f"{gauge(*_ARRIVALS, over='max_over_time', span='[5m]')}\n<=\n{_LEFT_OF_IT}\nand\n"
    "# Ready: scaled to zero, asleep or down has reasons of its own.\n"
    'sum without (state) (max without (instance, job) (last_over_time(phasewatch_model_engines{state=~"serving|idle"}'
    "[2m]))) > 0\nand on (model_name)\n# Without an objective (profile batch) nobody waits for an answer.\n"
    "max by (model_name) (last_over_time(phasewatch_objective_seconds[2m]))\nunless\n"
    "# Yesterday it stopped at this time as well, within half an hour.\n(\n"
    f"  {gauge(*_ARRIVALS, over='min_over_time', span='[1h] offset 23h30m')}\n  <=\n  {_LEFT_OF_IT}\n)",
    "{{ $labels.model_name }}: no requests for 10 minutes, after {{ $value | printf \"%.1f\" }} a second or more for hours."
    " The engines are ready: look at what sends the requests.",
    lasts="1m", keeps="10m", of_engine=False,
)  # fmt: skip

_REQUESTS = RuleFile(
    f"Requests that fail, clients that leave, traffic that stops. {_COMMON}",
    (
        _failing("critical", "0.1", "10%", 10, "2m"),
        _failing("warning", "0.01", "1%", 5, "5m"),
        _leaving("critical", "0.2", "20%", 10, "2m"),
        _leaving("warning", "0.01", "1%", 5, "5m"),
        _STOPPED,
    ),
)

# --- targets, engines and their scrapes --------------------------------------------------------------------------


def _of_target(
    name: str, summary: str, expr: str, says: str, *, lasts: str, keeps: str = "5m", severity: Severity = "warning"
) -> Alert:
    return Alert(name, severity, "cause", "fleet", summary, expr, says, lasts=lasts, keeps=keeps, of_engine=False)


def _down(severity: Severity, area: str, summary: str, least: str, lasts: str) -> Alert:
    return Alert(
        "TargetsDown", severity, "cause", area, summary,
        "# min: down is what all phasewatches say.\n"
        'sum without (state) (min without (instance, job) (last_over_time(phasewatch_model_engines{state="down"}[2m])))\n'
        "/\nsum without (state) (max without (instance, job) (last_over_time(phasewatch_model_engines[2m])))\n"
        f"{least}",
        f"{{{{ $labels.model_name }}}}: {_PERCENT} of the engines are down.",
        lasts=lasts, of_engine=False,
        cause=(
            '{{- with printf "topk(5, max by (target) (last_over_time(phasewatch_engine_state{state=\\"down\\",'
            'model_name=%q}[2m])) == 1)" $labels.model_name | query }}',
            'Down:{{ range sortByLabel "target" . }} {{ .Labels.target }}{{ end }}.',
            "{{- end }}",
        ),
    )  # fmt: skip


_UP = gauge("target_up", gone="")
_SERVED = "max by (target, model_name) (last_over_time(phasewatch_engine_state[1h]))"
_WATCHED = "max by (target) (last_over_time(phasewatch_target_up[2m]))"
_SERVED_AND_WATCHED = f"count by (model_name) (\n  {_SERVED}\n  and on (target)\n  {_WATCHED}\n)"
_SERVED_NOW = "max by (model_name) (last_over_time(phasewatch_model_engines[2m]))"

_FLEET = RuleFile(
    f"Targets, engines and their scrapes. {_COMMON}",
    (
        _down("critical", "all", "Half of a model's engines or more are down.", ">= 0.5", "2m"),
        _down("warning", "fleet", "Some of a model's engines are down.", "> 0", "5m"),
        _of_target(
            "AllTargetsDown", "No target answers, and none has since phasewatch started.",
            "# An empty list of targets is silent: that is how a fleet scaled to zero looks. With models known, TargetsDown"
            " pages. One\n# that may still be loading its model is not down.\n"
            "max(last_over_time(phasewatch_target_up[2m])) == 0\nunless on ()\n"
            "count(last_over_time(phasewatch_engine_state[2m]))\nunless on ()\n"
            "count(last_over_time(phasewatch_target_starting_seconds[2m]))",
            '{{ with query "count(max by (target) (last_over_time(phasewatch_target_up[2m])))" }}'
            '{{ (first .).Value | printf "%.0f" }} targets, none of them answers.{{ end }}',
            lasts="2m", severity="critical",
        ),
        _of_target(
            "TargetDown", "A target has not answered since phasewatch started.",
            "# Only targets whose model is not known; those of known models are counted by TargetsDown.\n"
            f"{_UP} == 0\nunless on (target)\nmax by (target) (last_over_time(phasewatch_engine_state[2m]))\n"
            "# Nor those that may still be loading their model: startup_grace in phasewatch.yml says how long.\n"
            "unless on (target)\nmax by (target) (last_over_time(phasewatch_target_starting_seconds[2m]))",            "Target {{ $labels.target }} does not answer; phasewatch has not seen its models yet.",
            lasts="10m",
        ),
        _of_target(
            "ModelGone", "A model is gone, though targets that served it are still watched.",
            f"# Served in the last hour, and by no target now.\n{_SERVED_AND_WATCHED}\nunless on (model_name)\n{_SERVED_NOW}",
            f"{{{{ $labels.model_name }}}}: {_COUNT} targets that served it in the last hour are watched, and none of them"
            " serves it now.",
            lasts="10m",
        ),
        _of_target(
            "ModelGone", "A model is gone, and so are the targets that served it.",
            "# Scaled to zero by plan looks the same: nobody is told, it is only shown.\n"
            f"count by (model_name) ({_SERVED})\nunless on (model_name)\n{_SERVED_AND_WATCHED}\nunless on (model_name)\n"
            f"{_SERVED_NOW}\nand on ()\nmax(last_over_time(phasewatch_build_info[2m]))",
            f"{{{{ $labels.model_name }}}}: the {_COUNT} targets that served it in the last hour are no longer in the list of"
            " targets.",
            lasts="10m", severity="info",
        ),
        _of_target(
            "ScrapesSlow", "The scrapes of a target take nearly as long as they may, or longer.",
            "# One in ten of those that succeed, or three in ten minutes that do not, where others do: a target that never"
            " answers\n# starts or is down. increase() stretches what it saw to the range.\n"
            "max without (instance, job) (quantile_over_time(0.9, phasewatch_target_scrape_duration_seconds[10m]))\n>\n"
            f"0.8 * {gauge('target_scrape_timeout_seconds', gone='')}\nor\n"
            "max without (instance, job, reason) (increase(phasewatch_target_scrape_failures_total"
            '{reason="timeout"}[10m])) > 2.5\nand on (target)\nmax by (target) (max_over_time(phasewatch_target_up[10m])) == 1',
            "Target {{ $labels.target }}:{{ with printf \"max(last_over_time(phasewatch_target_scrape_timeout_seconds"
            "{target=%q}[2m]))\" $labels.target | query }} a scrape may take {{ (first .).Value | humanizeDuration }}.{{ end }}"
            "{{ with printf \"max(max_over_time(phasewatch_target_scrape_duration_seconds{target=%q}[10m]))\" $labels.target"
            " | query }} The slowest of the last 10 minutes took {{ (first .).Value | humanizeDuration }}.{{ end }}"
            "{{ with printf \"max(increase(phasewatch_target_scrape_failures_total{reason=\\\"timeout\\\",target=%q}[10m]))\""
            " $labels.target | query }} {{ (first .).Value | printf \"%.0f\" }} were cut off.{{ end }}",
            lasts="5m", keeps="10m",
        ),
        _of_target(
            "TargetFlapping", "A target is flapping.",
            "max without (instance, job) (changes(phasewatch_target_up[15m])) >= 6",
            f"Target {{{{ $labels.target }}}} went down or came back {_COUNT} times in 15 minutes.",
            lasts="1m", keeps="10m",
        ),
        _of_target(
            "NoEngineMetrics", "A target answers, but with no engine metrics.",
            f"{_UP} == 1\nunless on (target)\n"
            'max by (target) (last_over_time(phasewatch_engine_state{state!="no_engine_metrics"}[2m])) == 1',
            "Target {{ $labels.target }} answers, but without vLLM's engine metrics: nothing can be said of its latency.",
            lasts="10m",
        ),
        _of_target(
            "SignalsLost", "A target's /metrics has lost signals that it had.",
            "# More missing than at the best moment of the last day; only of engines that serve, since some signals come"
            " with traffic.\n(\n"
            "  min without (instance, job) (min_over_time(phasewatch_target_missing_signals[10m]))\n  -\n"
            "  min without (instance, job) (min_over_time(phasewatch_target_missing_signals[1d]))\n) > 0\n"
            'and on (target)\nmax by (target) (last_over_time(phasewatch_engine_state{state="serving"}[2m])) == 1',
            f"Target {{{{ $labels.target }}}} lacks {_COUNT} signals that it had in the last day; verdicts that need them"
            " abstain.",
            lasts="15m", keeps="15m",
        ),
        _of_target(
            "RestartLoop", "An engine restarts repeatedly.",
            "# increase() stretches what it saw to the whole range: 2.5 are three restarts.\n"
            "max without (instance, job) (increase(phasewatch_target_restarts_total[30m])) > 2.5",
            f"Target {{{{ $labels.target }}}} restarted {_COUNT} times in 30 minutes.",
            lasts="1m", keeps="15m",
        ),
    ),
)  # fmt: skip

# --- phasewatch itself -------------------------------------------------------------------------------------------

_EVALUATED = "max by (instance, job) (last_over_time(phasewatch_last_evaluation_timestamp_seconds[2m]))"

_SELF = RuleFile(
    f"phasewatch itself, and the alerting pipeline's heartbeat. {_COMMON}",
    (
        Alert(
            "Down", "critical", "cause", "phasewatch",
            "phasewatch is down: no alert about the fleet can fire.",
            "# By its own heartbeat, whatever the scrape job is called.\nabsent(last_over_time(phasewatch_build_info[2m]))",
            "No phasewatch has been scraped for over 2 minutes: it is down, or Prometheus does not reach it.",
            lasts="1m", keeps="", of_engine=False,
        ),
        Alert(
            "Down", "warning", "cause", "phasewatch",
            "One of several phasewatch instances is down.",
            "# Still a target of Prometheus, and a phasewatch when it last answered; while another one answers.\n"
            "max by (instance, job) (max_over_time(up[2m])) == 0\nand on (instance, job)\n"
            "max by (instance, job) (last_over_time(phasewatch_build_info[1d]))\nand on ()\n"
            "max(last_over_time(phasewatch_build_info[2m]))",
            "{{ $labels.instance }} has not answered Prometheus for over 2 minutes. Another phasewatch still watches the"
            " fleet.",
            lasts="1m", keeps="5m", of_engine=False,
        ),
        Alert(
            "NotEvaluating", "critical", "cause", "phasewatch",
            "phasewatch is up but no longer evaluates the fleet.",
            "# Each instance by itself: what one that stands still goes on saying can hide what another one sees.\n"
            f"time() - {_EVALUATED} > 120\nor\n(\n"
            "  max by (instance, job) (last_over_time(phasewatch_build_info[2m]))\n  unless on (instance, job)\n"
            f"  {_EVALUATED}\n)",
            'Last evaluation of {{ $labels.instance }}:{{ with printf "time() -'
            ' max(last_over_time(phasewatch_last_evaluation_timestamp_seconds{instance=%q,job=%q}[2m]))" $labels.instance'
            " $labels.job | query }} {{ (first .).Value | humanizeDuration }} ago{{ else }} none since it started{{ end }}."
            " Its figures are stale.",
            lasts="2m", keeps="2m", of_engine=False,
        ),
        Alert(
            "InternalErrors", "warning", "cause", "phasewatch",
            "Errors of phasewatch's own cost the diagnosis of an engine.",
            "# Counted once an evaluation and engine, from 0 at the start.\n"
            "max without (instance, job) (increase(phasewatch_internal_errors_total[10m])) > 0",
            f"{_COUNT} evaluations of engines on {{{{ $labels.target }}}} failed in 10 minutes. While an engine's state is"
            " internal_error, it has no figures and no verdict; the other engines are not affected.",
            lasts="1m", keeps="10m", of_engine=False,
        ),
        Alert(
            "Watchdog", "none", "heartbeat", "phasewatch",
            "Alerting pipeline heartbeat.",
            "# Always fires, so that its absence shows that the pipeline from Prometheus to you is broken.\nvector(1)",
            "Always fires. An external dead-man's switch must alert when this stops.",
            lasts="", keeps="", of_engine=False,
        ),
    ),
)  # fmt: skip

FILES: Mapping[str, RuleFile] = {
    "latency": _LATENCY,
    "budget": _BUDGET,
    "causes": _CAUSES,
    "requests": _REQUESTS,
    "fleet": _FLEET,
    "self": _SELF,
}
