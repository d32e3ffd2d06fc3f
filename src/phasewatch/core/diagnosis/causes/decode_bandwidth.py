"""Even alone a request does not get its tokens in time: the step itself is over the objective."""

from phasewatch.core.diagnosis.causes._remedies import QUANTISE, SPECULATE
from phasewatch.core.diagnosis.causes._row import PACE, PREFILL_TIME_SIGNALS, Advice, CauseRow, Finding
from phasewatch.core.diagnosis.causes._streams import rest, throughout
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import seconds


def _decode_bandwidth(case: Case) -> Finding | None:
    unloaded, pace = case.past.unloaded_pace, case.view.pace_without_prefill
    if unloaded is None or pace is None or not throughout(case) or unloaded <= case.limit:
        return None
    return Finding(
        rest(case),
        {
            "unloaded_pace_seconds": unloaded,
            "limit_seconds": case.limit,
            "pace_without_prefill_seconds": pace,
            "running_max": case.view.running_max,
        },
        f"With two or fewer requests running a token already takes {seconds(unloaded)} (limit {seconds(case.limit)}):"
        " the model is too slow for this objective on this hardware, or its host is short of CPU.",
        "an unloaded step within the objective.",
    )


# fmt: off
CAUSE = CauseRow(
    verdict="decode_bandwidth",
    phase="decode",
    look="ITL p50 over its limit even with few running: the GPU's memory bandwidth.",
    rule=_decode_bandwidth,
    families=PACE,
    needs=("itl", "running", *PREFILL_TIME_SIGNALS),
    remedies=(
        Advice("check the host's CPU and the GPU's clocks first", "a host short of CPU looks the same", "now",
            "TTFT improves as well if that was it"),
        QUANTISE,
        SPECULATE,
        Advice("a smaller model", "a step reads less", "capacity", "TTFT improves as well"),
        Advice("--tensor-parallel-size up, or a GPU with more memory bandwidth (more compute does not help)",
            "decode is bound by what a step reads", "capacity", "TTFT gains from more GPUs"),
    ),
)
# fmt: on
