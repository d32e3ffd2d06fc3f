"""Answers are long in tokens while every token comes in time."""

from phasewatch.core.diagnosis.causes._remedies import SPECULATE
from phasewatch.core.diagnosis.causes._row import Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, seconds


def _output_length(case: Case) -> Finding | None:
    if case.symptom.objective == "still_running":
        return _still_written(case)
    numbers = case.view.numbers
    output, itl, e2e = numbers.tokens.output_mean, numbers.itl_seconds.mean, numbers.e2e_seconds.mean
    if case.missed("ttft", "itl", "tpot") or output is None or itl is None or not e2e or output <= 1:
        return None
    pace = numbers.tpot_seconds.mean or itl
    # Every token comes in time, so what decode takes is the number of tokens.
    share = case.e2e.share("decode")
    return Finding(
        min(1.0, (output - 1) * pace / e2e) if share is None else share,
        known(
            output_tokens_mean=output,
            itl_mean_seconds=itl,
            e2e_mean_seconds=e2e,
            ttft_mean_seconds=numbers.ttft_seconds.mean,
        ),
        f"Answers are {number(output)} tokens long: at {seconds(pace)} a token that alone takes"
        f" {seconds((output - 1) * pace)}. TTFT and ITL are fine.",
        "shorter answers that are still slow, or TTFT or ITL over their objectives.",
    )


def _still_written(case: Case) -> Finding | None:
    """Tokens flow, in time, and yet somebody's answer does not end."""
    numbers, ran = case.view.numbers, case.symptom.value
    rate, itl = numbers.tokens.generation_per_second, numbers.itl_seconds.mean
    if case.missed("ttft", "itl", "tpot") or not rate or itl is None or not numbers.queue.running or ran is None:
        return None
    return Finding(
        1.0,
        known(
            oldest_running_seconds=ran.value,
            running=numbers.queue.running,
            generation_tokens_per_second=rate,
            itl_mean_seconds=itl,
            kv_usage_last=numbers.kv_cache.usage_ratio,
        ),
        f"A request has run for at least {seconds(ran.value)} and has not finished, while {number(rate)} tokens/s flow,"
        f" one every {seconds(itl)}: a long answer, still being written.",
        "a request that ends soon after its tokens stop, or ITL over its objective.",
        # Of several that run, which one is old cannot be told.
        at_most="high" if numbers.queue.running == 1 else "medium",
    )


# fmt: off
CAUSE = CauseRow(
    verdict="output_length",
    phase="answers",
    look="**Output length** up while **TTFT** and **ITL** are fine.",
    rule=_output_length,
    families=("e2e",),
    needs=("e2e", "itl", "output_length"),
    uses=("tpot",),
    remedies=(
        Advice("ask for fewer sentences, or less thinking, in the prompt", "time grows with every generated token",
            "now", "TTFT and ITL do not change", effect="eases"),
        Advice("stream the answer", "users read while it is written", "now", "TTFT and ITL do not change"),
        SPECULATE,
        Advice("a smaller or faster model", "every token costs less", "capacity", "TTFT improves as well"),
        Advice("max_tokens", "a hard limit: longer answers are truncated", "now", "TTFT and ITL do not change"),
    ),
)
# fmt: on
