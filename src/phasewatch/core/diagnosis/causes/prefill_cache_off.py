"""Prompts take long to compute, with prefix caching switched off: nothing that they share is reused."""

from phasewatch.core.diagnosis.causes._remedies import ENABLE_CACHING, STABLE_PREFIXES
from phasewatch.core.diagnosis.causes._row import TTFT, CauseRow, Finding
from phasewatch.core.diagnosis.causes.prefill_long_prompts import long_prompts
from phasewatch.core.diagnosis.measures_view import Case


def _prefill_cache_off(case: Case) -> Finding | None:
    found = long_prompts(case)
    if found is None or not case.view.prefix_caching_off:
        return None
    return Finding(
        found.score,
        found.evidence,
        f"{found.summary} Prefix caching is off: a prefix that prompts share is computed again every time.",
        "prompts that share no prefix (then caching cannot help and prefill_long_prompts is the cause).",
    )


CAUSE = CauseRow(
    verdict="prefill_cache_off",
    phase="prefill",
    look="**Prompt length**, and the prefix cache's hits on Engine: near zero.",
    rule=_prefill_cache_off,
    families=TTFT,
    needs=("ttft", "prefill", "prompt_tokens"),
    uses=("queue",),
    remedies=(ENABLE_CACHING, STABLE_PREFIXES),
)
