"""Pieces of PromQL that several panels share. All aggregate the labels of the scrape away, so that two phasewatches
that watch one fleet (each with its own `instance`) draw one line."""

from collections.abc import Mapping

from phasewatch.core.diagnosis.verdicts import VERDICTS
from phasewatch.core.model import STATES, TROUBLE
from tools.dashboards.panels import Query

PHASES = ("queue", "prefill", "decode", "frontend", "unexplained")

# Of many engines so many are drawn or listed; which ones is settled once for the whole range, not anew at each step.
MOST_ENGINES = 20

MODEL = 'model_name=~"$model_name"'
FLEET = f'namespace=~"$namespace",{MODEL}'
ENGINE = f'{FLEET},target=~"$target",engine=~"$engine"'
TARGET = 'namespace=~"$namespace",target=~"$target"'
WINDOW = 'window="$window"'
OF_ENGINE = "target, engine"
OF_MODEL = "model_name, role"

# Numbers that stand for a state or a verdict in a timeline; the mapping to words is in the panel.
STATE_NUMBERS: Mapping[str, int] = {state: number for number, state in enumerate(STATES)}
VERDICT_NUMBERS: Mapping[str, int] = {verdict: number for number, verdict in enumerate(VERDICTS, 10)}


def series(name: str, selector: str, *, window: bool = True) -> str:
    """`phasewatch_NAME{...}`; window: of the chosen window (gauges of the moment have none)."""
    return f"phasewatch_{name}{{{selector}{',' + WINDOW if window else ''}}}"


def each(name: str, selector: str, by: str = OF_ENGINE, *, window: bool = True) -> str:
    """One series for each engine (or what `by` says)."""
    return f"max by ({by}) ({series(name, selector, window=window)})"


def total(name: str, selector: str, by: str = "", *, window: bool = True) -> str:
    """Added over engines: only for what can be added (requests, tokens), never for ratios or percentiles."""
    inner = f"{by}, {OF_ENGINE}" if by else OF_ENGINE
    return f"sum{f' by ({by})' if by else ''} ({each(name, selector, inner, window=window)})"


def overall(aggregation: str, name: str, selector: str, *, window: bool = True) -> str:
    """`max`, `min` or `avg` over engines."""
    return f"{aggregation} ({each(name, selector, window=window)})"


def weighted(mean: str, count: str, selector: str, label: str = "", value: str = "") -> str:
    """The mean of all observations of all engines: each engine's mean counts as often as it has observations.

    label, value: of the means, where they have one that the counts lack. Two phasewatches count twice above and below
    the line, so that nothing need be aggregated first.
    """
    means = series(mean, f'{selector},{label}="{value}"' if label else selector)
    times = f"* {f'ignoring ({label}) ' if label else ''}{series(count, selector)}"
    # `^ 0` counts only engines that have the mean; `> 0` leaves out what nobody observed.
    return f"sum ({means} {times}) / (sum ({means} ^ 0 {times}) > 0)"


def phases(selector: str) -> tuple[Query, ...]:
    """A series for each phase; four cheap queries instead of one dear one."""
    return tuple(
        Query(weighted("phase_mean_seconds", "e2e_observations", selector, "phase", phase), phase) for phase in PHASES
    )


def limit(objective: str, severity: str = "warning") -> str:
    """The strictest limit of the models shown, from the configuration."""
    return f'min (phasewatch_objective_seconds{{{MODEL},objective="{objective}",severity="{severity}"}})'


def not_judged(selector: str) -> str:
    """-1 for each objective of a model that could not be judged."""
    judged = f"max by (model_name, objective) (phasewatch_model_objective_judged{{{selector}}})"
    return f'(label_replace({judged} == 0, "severity", "warning", "", "") - 1)'


def troubled(selector: str) -> str:
    """How much of the range an engine was in trouble: 1 all of it. Down counts; idle and asleep do not."""
    counted = "|".join(("serving", *TROUBLE))
    bad = f'avg_over_time(phasewatch_engine_state{{{selector},state=~"{counted}"}}[$__range] @ end())'
    good = f'avg_over_time(phasewatch_diagnosis{{{selector},verdict="healthy"}}[$__range] @ end())'
    return f"sum by ({OF_ENGINE}) ({bad} or -{good})"


def worst(expr: str, selector: str) -> str:
    """`expr`, which is by engine, for the engines that were most in trouble in the range."""
    return f"{expr} and on ({OF_ENGINE}) topk({MOST_ENGINES}, {troubled(selector)})"


def worst_now(expr: str, selector: str) -> str:
    """`expr`, which is by engine, for the most degraded now: those that do not answer, then those with a verdict other
    than healthy, then by p99 of TTFT. Engines without traffic that answer are not listed."""
    gone = f'max by ({OF_ENGINE}) (phasewatch_engine_state{{{selector},state=~"{"|".join(TROUBLE)}"}}) * 1e6'
    judged = f'max by ({OF_ENGINE}) (phasewatch_diagnosis{{{selector},verdict!="healthy"}}) * 1e5'
    p99 = f"clamp_max({each('ttft_p99_seconds', selector)}, 9e4)"
    # From the left the first that is there: an engine that stands still has a verdict but no p99.
    rank = f"({gone} > 0) or {judged} + {p99} or {judged} or {p99}"
    return f"{expr} and on ({OF_ENGINE}) topk({MOST_ENGINES}, ({rank}) > 0)"


def _numbers(label: str, numbers: Mapping[str, int]) -> str:
    return " or ".join(
        f'label_replace(vector({number}), "{label}", "{name}", "", "")' for name, number in numbers.items()
    )


def verdict_number(selector: str) -> str:
    """By engine: the number of its leading verdict, else that of its state."""
    verdict = (
        f"max by ({OF_ENGINE}) ((phasewatch_diagnosis{{{selector}}} == 1)"
        f" * on (verdict) group_left () ({_numbers('verdict', VERDICT_NUMBERS)}))"
    )
    state = (
        f"max by ({OF_ENGINE}) ((phasewatch_engine_state{{{selector}}} == 1)"
        f" * on (state) group_left () ({_numbers('state', STATE_NUMBERS)}))"
    )
    return f"{verdict} or on ({OF_ENGINE}) {state}"


def completions(selector: str) -> str:
    """Finished requests a second, engines added. The window's length in seconds is first tokens / first tokens a
    second, so that it need not be known here; nothing where no first token came."""
    finished = series("e2e_observations", selector)
    length = f"({series('ttft_observations', selector)} > 0) / {series('admissions_per_second', selector)}"
    return f"sum (max by ({OF_ENGINE}) ({finished} / ({length})))"
