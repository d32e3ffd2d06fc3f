"""Each token reads a longer context than before, at the same batch."""

from phasewatch.core.diagnosis.causes._remedies import FP8_CACHE
from phasewatch.core.diagnosis.causes._row import (
    AS_WRITTEN,
    PACE,
    PREFILL_TIME_SIGNALS,
    Advice,
    CauseRow,
    Finding,
    Proposal,
)
from phasewatch.core.diagnosis.causes._streams import beyond_load, explains, rest, throughout
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, seconds


def _decode_context(case: Case) -> Finding | None:
    base, _, _, context, short = case.past.shorter
    pace = case.view.pace_without_prefill
    if base is None or short is None or pace is None or context is None or not throughout(case) or base > case.limit:
        return None
    if not explains(case, base) or beyond_load(case):
        return None
    return Finding(
        rest(case),
        {
            "context_mean_tokens": context,
            "earlier_context_tokens": short,
            "pace_without_prefill_seconds": pace,
            "earlier_pace_seconds": base,
            "running_mean": case.view.window.gauges["running"].mean,
        },
        f"A token takes {seconds(pace)} at contexts of about {number(context)} tokens; at the same batch with"
        f" {number(short)} tokens it took {seconds(base)}. Expected: a longer context costs more per token.",
        "the same pace with short contexts.",
    )


def _shorter_contexts(case: Case) -> Proposal | None:
    short, base = case.past.shorter.then_context, case.past.shorter.pace
    if short is None or base is None:
        return AS_WRITTEN
    return Proposal(
        f"shorter contexts, about {number(round(short))} tokens as before: trim histories, retrieve less",
        f"every token reads the whole context; with those it took {seconds(base)} (limit {seconds(case.limit)})",
    )


# fmt: off
CAUSE = CauseRow(
    verdict="decode_context",
    phase="decode",
    look="**Prompt length** and **Output length** up, ITL p50 up with them, running unchanged.",
    rule=_decode_context,
    families=PACE,
    needs=("itl", "running", *PREFILL_TIME_SIGNALS),
    uses=("output_length",),
    remedies=(
        Advice("shorter contexts: trim histories, retrieve less", "every token reads the whole context", "now",
            "TTFT improves as well", effect="cures", proposes=_shorter_contexts),
        FP8_CACHE,
        Advice("route long contexts to replicas of their own", "short chats no longer share steps with them",
            "capacity", "TTFT of long prompts depends on that replica"),
    ),
)
# fmt: on
