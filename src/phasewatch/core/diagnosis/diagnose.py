"""Symptoms -> causes, ranked, and the one that leads. RULES: one row a cause, in order of precedence."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from phasewatch.core.diagnosis.causes import rules, rules_decode
from phasewatch.core.diagnosis.measures_view import Case, Finding
from phasewatch.core.diagnosis.objectives import family_of
from phasewatch.core.diagnosis.remedies import REMEDIES
from phasewatch.core.measures.past import PastView, no_past
from phasewatch.core.model import Cause, Confidence, Numbers, Symptom, Window
from phasewatch.core.pages.catalog import CORE_SIGNALS
from phasewatch.core.settings import Limits, Thresholds

_QUEUE = ("running", "waiting", "kv_usage", "ttft")
_RHO = ("prefill", "iteration_tokens", "prompt_tokens", "start_time")


@dataclass(frozen=True, slots=True)
class Rule:
    """verdict: explains symptoms of `families`. needs: signals without which it abstains. uses: signals without
    which confidence drops one step and `missing` names them."""

    verdict: str
    families: tuple[str, ...]
    needs: tuple[str, ...]
    uses: tuple[str, ...]
    check: Callable[[Case], Finding | None]


_TTFT = ("ttft",)
_PACE = ("itl", "itl_stall", "tpot")

RULES: tuple[Rule, ...] = (
    Rule("requests_failing", ("requests_failing",), (), (), rules.requests_failing),
    Rule("queue_kv_cache", _TTFT, _QUEUE, ("queue", "prefill", "preemptions", "prompt_length"), rules.queue_kv_cache),
    Rule("queue_batch_limit", _TTFT, _QUEUE, ("queue", *_RHO), rules.queue_batch_limit),
    Rule("queue_prefill_backlog", _TTFT, (*_QUEUE, "prefill"), ("queue", *_RHO), rules.queue_prefill_backlog),
    Rule("kv_transfer", _TTFT, ("ttft", "waiting_deferred"), (), rules.kv_transfer),
    Rule("prefill_cache_off", _TTFT, ("ttft", "prefill", "prompt_tokens"), ("queue",), rules.prefill_cache_off),
    Rule("prefill_long_prompts", _TTFT, ("ttft", "prefill", "prompt_tokens"), ("queue",), rules.prefill_long_prompts),
    Rule("cold_start", _TTFT, ("ttft",), ("queue", "prefill"), rules.cold_start),
    Rule("frontend", ("ttft", "e2e"), ("ttft", "queue", "prefill", "itl"), ("cpu_seconds",), rules.frontend),
    Rule("decode_preemption", _PACE, ("itl", "preemptions"), ("kv_usage",), rules_decode.decode_preemption),
    Rule("decode_interference", _PACE, ("itl", "running"), _RHO, rules_decode.decode_interference),
    Rule("decode_speculation", (*_PACE, "e2e"), ("itl", "spec_drafts"), ("tpot",), rules_decode.decode_speculation),
    Rule("decode_context", _PACE, ("itl", "running", *_RHO), ("output_length",), rules_decode.decode_context),
    Rule("decode_slow", _PACE, ("itl", "running", *_RHO), (), rules_decode.decode_slow),
    Rule("decode_batch", _PACE, ("itl", "running"), ("preemptions", *_RHO), rules_decode.decode_batch),
    Rule("decode_bandwidth", _PACE, ("itl", "running", *_RHO), (), rules_decode.decode_bandwidth),
    Rule("output_length", ("e2e",), ("e2e", "itl", "output_length"), ("tpot",), rules.output_length),
)

# Only deployments with the feature have these: their absence is no loss.
_OPTIONAL = ("waiting_deferred", "spec_drafts")
# What a full diagnosis reads: their absence is worth naming.
EXPECTED: tuple[str, ...] = tuple(
    name
    for name in dict.fromkeys((*CORE_SIGNALS, *(name for rule in RULES for name in (*rule.needs, *rule.uses))))
    if name not in _OPTIONAL
)


@dataclass(frozen=True, slots=True)
class Background:
    """What is known of the engine besides the window. first_request_at: since its start, where that was seen."""

    past: PastView = field(default_factory=no_past)
    first_request_at: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """causes: the leading one first, then the others by score. verdict "healthy" without a symptom."""

    verdict: str
    confidence: Confidence
    score: float | None
    causes: tuple[Cause, ...]
    surely: bool  # a surely missed objective is taken at once after "healthy"


def has(window: Window, signal: str) -> bool:
    """Whether any page of the window had the signal."""
    return signal in window.gauges or signal in window.histograms or signal in window.increases


def missing_signals(window: Window, names: Iterable[str] = EXPECTED) -> tuple[str, ...]:
    return tuple(name for name in names if not has(window, name))


def diagnose(
    symptoms: Mapping[Symptom, float],
    window: Window,
    numbers: Numbers,
    limits: Limits,
    thresholds: Thresholds,
    background: Background,
) -> Diagnosis:
    """symptoms: each with value / limit. At least one; none means healthy and is the caller's to say."""
    early_missed = any(family_of(one.objective) in ("ttft", *_PACE) for one in symptoms)
    found: dict[Symptom, list[Cause]] = {}
    for symptom in symptoms:
        # e2e is long for the reason that first tokens or the pace are slow, where they are.
        if family_of(symptom.objective) == "e2e" and early_missed:
            continue
        case = Case(
            symptom, window, numbers, limits, thresholds, tuple(symptoms), background.past, background.first_request_at
        )
        found[symptom] = [cause for cause in (_cause(rule, case) for rule in RULES) if cause is not None]
    leading = _leading(found, symptoms, numbers, thresholds)
    if leading is None:
        leading = _unknown(max(found, key=lambda one: symptoms[one]), window, found)
    others = sorted(
        (cause for causes in found.values() for cause in causes if cause is not leading), key=lambda c: -c.score
    )
    return Diagnosis(
        leading.verdict,
        leading.confidence,
        leading.score,
        (leading, *others),
        surely=next(one.surely for one in symptoms if one.objective == leading.symptom),
    )


def _leading(
    found: Mapping[Symptom, Sequence[Cause]],
    ratios: Mapping[Symptom, float],
    numbers: Numbers,
    thresholds: Thresholds,
) -> Cause | None:
    """A proven queue leads: demand is above capacity. Where prefill saturates the engine, the TTFT symptom's cause
    does. Else the cause of the symptom furthest over its limit."""
    best = {symptom: _best(causes, thresholds) for symptom, causes in found.items()}
    ranked = sorted(best, key=lambda one: -ratios[one])
    proven = [(symptom, cause) for symptom in ranked if (cause := best[symptom]) is not None]
    queues = [cause for _, cause in proven if cause.verdict.startswith("queue_")]
    if queues:
        return queues[0]
    if numbers.prefill_time_ratio is not None and numbers.prefill_time_ratio >= thresholds.saturated_prefill_ratio:
        for symptom, cause in proven:
            if family_of(symptom.objective) == "ttft":
                return cause
    return proven[0][1] if proven else None


def _best(causes: Sequence[Cause], thresholds: Thresholds) -> Cause | None:
    """The proven cause with the highest score; within 0.1 the earlier row wins (causes are in row order)."""
    proven = [cause for cause in causes if cause.score >= thresholds.proven_score]
    if not proven:
        return None
    highest = max(cause.score for cause in proven)
    return next(cause for cause in proven if cause.score >= highest - thresholds.tie_score)


def _cause(rule: Rule, case: Case) -> Cause | None:
    if family_of(case.symptom.objective) not in rule.families or missing_signals(case.window, rule.needs):
        return None
    finding = rule.check(case)
    if finding is None:
        return None
    missing = missing_signals(case.window, rule.uses)
    return Cause(
        verdict=rule.verdict,
        symptom=case.symptom.objective,
        score=finding.score,
        confidence=_confidence(finding, case, missing),
        evidence=finding.evidence,
        summary=finding.summary,
        remedies=REMEDIES[rule.verdict] if finding.remedies is None else finding.remedies,
        refuted_by=finding.refuted_by,
        easing=finding.easing,
        missing=missing,
    )


def _confidence(finding: Finding, case: Case, missing: Sequence[str]) -> Confidence:
    """high: symptom sure, every signal there, score >= 0.8. low: by elimination, capacity unknown, few finishes, or
    most of them gave up. Else medium."""
    thresholds = case.thresholds
    gave_up = case.numbers.queue.gave_up_ratio or 0.0
    finishes = max(case.finishes, case.window.increases.get("finished", 0.0))
    if finding.eliminated or finding.at_most == "low" or finishes < thresholds.few_finishes or gave_up > 0.5:
        return "low"
    if missing or finding.at_most == "medium" or not case.symptom.surely or finding.score < thresholds.sure_score:
        return "medium"
    return "high"


def _unknown(symptom: Symptom, window: Window, found: Mapping[Symptom, Sequence[Cause]]) -> Cause:
    """A symptom without a proven cause: says which signals would decide, and what came nearest."""
    family = family_of(symptom.objective)
    wanted = dict.fromkeys(name for rule in RULES if family in rule.families for name in (*rule.needs, *rule.uses))
    missing = missing_signals(window, wanted)
    near = max(found[symptom], key=lambda cause: cause.score, default=None)
    nearest = "" if near is None else f" Nearest: {near.verdict} explains {near.score * 100:.0f} % of it."
    lacking = f" Signals that would decide: {', '.join(missing)}." if missing else ""
    return Cause(
        "unknown",
        symptom.objective,
        0.0,
        "low",
        {"symptom_value": symptom.value.value} if symptom.value else {},
        f"{symptom.objective} is missed and no cause is proven.{nearest}{lacking}",
        (),
        "any cause that explains half of the excess.",
        missing=missing,
    )
