"""First tokens are slow because others' long prompts were being computed when the requests came."""

from phasewatch.core.diagnosis.causes._queue import has_room
from phasewatch.core.diagnosis.causes._remedies import PROMPT_THRESHOLD, SMALLER_BUDGET
from phasewatch.core.diagnosis.causes._row import TTFT, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.measures_view import Case, WindowView
from phasewatch.core.formatting import percent, seconds


def _prefill_blocking(case: Case) -> Finding | None:
    view, parts = case.view, case.ttft
    behind, longest = _behind(case), view.longest_prefill_at_least
    if not case.symptom.objective.startswith("ttft") or not parts.whole or longest is None or case.cold:
        return None
    share, own = behind / parts.whole, parts.by_phase.get("prefill", 0.0)
    step = view.numbers.itl_seconds.mean or 0.0
    if behind < max(own, parts.by_phase.get("outside", 0.0)) or longest <= view.thresholds.few_steps * step:
        return None
    return Finding(
        min(1.0, share),
        known(
            behind_prompts_seconds=behind,
            of_ttft_seconds=parts.whole,
            prefill_seconds=own,
            queue_seconds=parts.by_phase.get("queue"),
            running_step_wait_seconds=parts.by_phase.get("running_step"),
            longest_prefill_at_least_seconds=longest,
            prefill_time_ratio=view.numbers.prefill_time_ratio,
        ),
        f"Requests wait behind other requests' long prompts: {seconds(behind)} of {seconds(parts.whole)} TTFT"
        f" ({percent(min(1.0, share))}), while one of these is computed for {seconds(longest)} or more. Their own"
        f" prefill takes {seconds(own)}.",
        "the same TTFT in intervals in which no long prompt is computed.",
        at_most="medium",
    )


def _behind(case: Case) -> float:
    """Seconds of TTFT for which others' prompts were computed. A queue for want of room, of a slot, or of prompts that
    come faster than they are computed has causes of its own."""
    view, parts = case.view, case.ttft
    running_step = parts.by_phase.get("running_step", 0.0)
    if not view.queued:
        return max(running_step, parts.behind_prompts)
    return running_step if _other_queue(view) else parts.behind_prompts


def _other_queue(view: WindowView) -> bool:
    limits, prefill_ratio, ceiling = view.thresholds, view.numbers.prefill_time_ratio, view.at_ceiling
    full = view.kv_limited or (ceiling is not None and ceiling >= limits.at_ceiling)
    return full or (has_room(view) and prefill_ratio is not None and prefill_ratio >= limits.prefill_bound_ratio)


# fmt: off
CAUSE = CauseRow(
    verdict="prefill_blocking",
    phase="prefill",
    look="**TTFT** rises for all while **Prompt length** jumps; queue and prefill of most requests stay short.",
    rule=_prefill_blocking,
    families=TTFT,
    needs=("ttft", "queue", "prefill"),
    uses=("iteration_tokens",),
    remedies=(
        Advice("route long prompts to a replica of their own", "short prompts no longer wait behind them", "now",
            "ITL improves; TTFT of long prompts depends on that replica", effect="cures"),
        PROMPT_THRESHOLD,
        SMALLER_BUDGET,
    ),
)
# fmt: on
