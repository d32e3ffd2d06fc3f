"""Every step is slow because many requests share it."""

from phasewatch.core.diagnosis.causes._remedies import (
    CAP_CONCURRENCY,
    FEWER_SEQS,
    QUANTISE_FOR_BATCH,
    REPLICA_FOR_BATCH,
    WITHOUT_GRAMMAR,
)
from phasewatch.core.diagnosis.causes._row import PACE, PREFILL_TIME_SIGNALS, CauseRow, Finding, known
from phasewatch.core.diagnosis.causes._streams import beyond_load, rest, stalls, throughout
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.measures.phases import prefill_time_ratio_at_most


def _decode_batch(case: Case) -> Finding | None:
    view, unloaded = case.view, case.past.unloaded_pace
    mean_itl, prefill_ratio = view.numbers.itl_seconds.mean, view.numbers.prefill_time_ratio
    if view.running_max <= 2 or not throughout(case) or mean_itl is None:
        return None
    pace = view.pace_without_prefill
    if prefill_ratio is None:
        # The shape alone: slow throughout, not in stalls, and not for the prompts that are most of the tokens.
        most = prefill_time_ratio_at_most(view.window)
        prompts = view.prompt_heavy and (most is None or mean_itl * (1 - most) <= case.limit)
        if stalls(case) or prompts:
            return None
        pace = mean_itl
    elif pace is None or pace <= case.limit or stalls(case):
        return None  # stalls among quick steps can lift a mean above any limit
    if (unloaded is not None and unloaded > case.limit) or beyond_load(case) or _as_many_were_fast(case, pace):
        return None
    running = view.window.gauges["running"]
    alone = "" if unloaded is None else f"; with two or fewer running it takes {seconds(unloaded)}"
    prefill = "" if prefill_ratio is None else f" even without prefill ({percent(prefill_ratio)} of engine time)"
    return Finding(
        rest(case),
        known(
            itl_mean_seconds=mean_itl,
            pace_without_prefill_seconds=pace,
            running_mean=running.mean,
            running_max=running.max,
            prefill_time_ratio=prefill_ratio,
            unloaded_pace_seconds=unloaded,
        ),
        f"Each step serves {number(running.mean)} requests and takes {seconds(pace)}{prefill}{alone}.",
        "the same pace with two or fewer requests running (then it is the engine or the GPU, not the batch).",
        eliminated=unloaded is None or prefill_ratio is None,
    )


def _as_many_were_fast(case: Case, pace: float) -> bool:
    """Whether as many requests or more, whatever their contexts, once got their tokens in time and clearly faster."""
    then = case.past.bounds.larger_batch
    return then is not None and then <= case.limit and pace > case.view.thresholds.symptom_ratio * then


# fmt: off
CAUSE = CauseRow(
    verdict="decode_batch",
    phase="decode",
    look="Running in **Queue, batch and KV cache**, and ITL p50 with it: both high.",
    rule=_decode_batch,
    families=PACE,
    needs=("itl", "running"),
    uses=("preemptions", *PREFILL_TIME_SIGNALS),
    remedies=(CAP_CONCURRENCY, WITHOUT_GRAMMAR, FEWER_SEQS, REPLICA_FOR_BATCH, QUANTISE_FOR_BATCH),
)
# fmt: on
