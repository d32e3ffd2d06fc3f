"""Objectives: how much of the budget is burnt, how fast, and what is left."""

from tools.dashboards.looks import MET
from tools.dashboards.panels import Dashboard, Panel, Query, Row
from tools.dashboards.queries import FLEET, MODEL, not_judged
from tools.dashboards.shared import MODEL_NAME, NAMESPACE

_BY = "model_name, objective"
_NEEDS_RULES = "Needs the recording rules of config/prometheus/rules (`phasewatch export rules`)"
# Alerts page on the short ones, from what buckets prove; the long ones make tickets, from what interpolation says.
_BURN = (("over_surely", "5m"), ("over_surely", "1h"), ("over_surely", "6h"), ("over", "1d"), ("over", "3d"))


def _selector(family: str, *more: str) -> str:
    return ",".join((MODEL, f'objective=~"{family}_p.+"', *more))


def _counted(name: str, family: str, span: str, function: str, *more: str) -> str:
    selector = ",".join((FLEET, f'objective=~"{family}_p.+"', *more))
    return f"sum by ({_BY}) (max without (instance, job) ({function}(phasewatch_{name}{{{selector}}}[{span}])))"


def _share(kind: str, family: str, span: str, function: str) -> str:
    """Of all observations the part over the warning limit; nothing where nobody was observed."""
    over = _counted(f"objective_{kind}_total", family, span, function, 'severity="warning"')
    return f"{over} / ({_counted('objective_observations_total', family, span, function)} > 0)"


def _budget(family: str) -> str:
    return f"max by ({_BY}) (model:phasewatch_objective_budget:ratio{{{_selector(family)}}})"


def _burn(family: str) -> tuple[Query, ...]:
    budget = _budget(family)
    return tuple(
        Query(
            f"max by ({_BY}) (model:phasewatch_objective_{kind}:ratio_rate{span}{{{_selector(family)}}}) / {budget}",
            f"{{{{model_name}}}} {{{{objective}}}} {span}",
        )
        for kind, span in _BURN
    )


def _left(family: str) -> str:
    return f"clamp_min(1 - ({_share('over', family, '$__range', 'increase')}) / on ({_BY}) {_budget(family)}, 0)"


def _missed(selector: str) -> str:
    """By model, objective and severity: -1 cannot be judged, 0 met, 1 missed, 2 surely missed."""
    by = "max by (model_name, objective, severity)"
    missed = f"phasewatch_model_objective_missed{{{selector}}}"
    surely = f"phasewatch_model_objective_missed_surely{{{selector}}}"
    # Which 30 is settled once for the range: those that were ever missed first.
    few = f"topk(30, {by} (max_over_time({missed}[$__range] @ end())))"
    known = f"{by} ({missed}) + {by} ({surely}) and on (model_name, objective, severity) {few}"
    return f"({known}) or {not_judged(selector)}"


def _row(family: str, what: str) -> Row:
    named = "{{model_name}} {{objective}}"
    return Row(
        f"{family.upper()}: {what}",
        (
            Panel(
                "timeseries",
                f"Burn rates of {family.upper()}",
                "How many times faster than allowed the error budget is used, over five spans. At 1 it lasts"
                " exactly as long as the objective's period. Alerts need a short and a long span at once: only the"
                " short one is a short spike, only the long one is in the past. Spans up to 6h count what the"
                " buckets prove; longer ones interpolate.",
                _burn(family),
                unit="short",
                no_value=_NEEDS_RULES,
            ),
            Panel(
                "timeseries",
                f"Share of observations over the {family.upper()} limit",
                "Share of all observations above the warning limit. `surely` counts whole buckets above the limit;"
                " the other line interpolates. The true share lies at or above `surely`. Dashed: the share that the"
                " objective allows.",
                (
                    Query(_share("over", family, "$__rate_interval", "rate"), named),
                    Query(_share("over_surely", family, "$__rate_interval", "rate"), f"{named} surely"),
                    Query(f"max ({_budget(family)})", "budget"),
                ),
                unit="percentunit",
                no_value="No observations in this range",
            ),
            Panel(
                "bars",
                f"Budget of {family.upper()} left in this range",
                "1 - (share above the limit in this range / allowed share). Zero: the budget is used up; negative"
                " values are drawn as zero. Set the range to the objective's period, such as 30 days.",
                (
                    Query(
                        _left(family),
                        named,
                    ),
                ),
                unit="percentunit",
                largest=1,
                no_value="No observations in this range, or no recording rules",
                width=8,
            ),
            Panel(
                "timeline",
                f"{family.upper()} objectives, met or missed",
                "Each objective of each model, over the first window or as far back as it takes to judge. Surely"
                " missed: the buckets prove it. Cannot be judged: too few requests, or the buckets do not say.",
                (
                    Query(
                        _missed(f'{MODEL},objective=~"{family}_.+"'),
                        "{{model_name}} {{objective}} ({{severity}})",
                    ),
                ),
                values=MET,
                no_value="No objective was measured in this range",
                width=16,
            ),
        ),
    )


LIMITS = Row(
    "Limits",
    (
        Panel(
            "table",
            "Limits of every model",
            "The configured limits, by model. A percentile objective is missed only if at least two observations"
            " are above its limit.",
            (
                Query(
                    f"topk(60, max by (model_name, objective, severity) (phasewatch_objective_seconds{{{MODEL}}}))",
                    "limit",
                ),
            ),
            unit="s",
            names={"model_name": "model", "objective": "objective", "severity": "severity"},
            no_value="No model is known yet",
            width=24,
            height=7,
        ),
    ),
)

BOARD = Dashboard(
    uid="phasewatch-objectives",
    title="vLLM objectives (phasewatch)",
    description="Burn rates, budget left and share above the limit, for TTFT and ITL.",
    variables=(NAMESPACE, MODEL_NAME),
    rows=(_row("ttft", "time to first token"), _row("itl", "time between outputs"), LIMITS),
    since="now-24h",
)
