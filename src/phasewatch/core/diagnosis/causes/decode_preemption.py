"""Running requests were evicted for lack of KV blocks and computed again: their streams stop meanwhile."""

from phasewatch.core.diagnosis.causes._remedies import KV_ROOM
from phasewatch.core.diagnosis.causes._row import PACE, CauseRow, Finding, known
from phasewatch.core.diagnosis.causes._streams import gap_limit
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, seconds


def _decode_preemption(case: Case) -> Finding | None:
    view = case.view
    over = view.gaps_over(gap_limit(case))
    if not view.preemptions or not over:
        return None
    stopped = view.preempted_gaps()
    usage = view.window.gauges.get("kv_usage")
    return Finding(
        min(1.0, stopped / over),
        known(
            preemptions=view.preemptions,
            seconds_in_preempted_gaps=stopped,
            seconds_in_gaps_over_limit=over,
            kv_usage_max=None if usage is None else usage.max,
            itl_stalled_ratio=view.numbers.itl_stalled_ratio,
        ),
        f"The KV cache was full and requests were preempted {number(view.preemptions)}"
        f" time{'' if view.preemptions == 1 else 's'} and computed again."
        f" Streams stalled for {seconds(stopped)} in total around these preemptions.",
        "stalls that go on in intervals without preemptions.",
        easing=not any(step.increases.get("preemptions", 0.0) > 0 for step in view.window.steps[-3:]),
    )


CAUSE = CauseRow(
    verdict="decode_preemption",
    phase="decode",
    look="Preemptions in **Queue, batch and KV cache**, with stalls of **ITL** at the same moments.",
    rule=_decode_preemption,
    families=PACE,
    needs=("itl", "preemptions"),
    uses=("kv_usage",),
    watch="preemptions and KV cache usage",
    remedies=KV_ROOM,
)
