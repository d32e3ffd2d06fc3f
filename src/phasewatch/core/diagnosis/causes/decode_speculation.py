"""Drafts are computed and thrown away: steps cost more than the accepted tokens save."""

from phasewatch.core.diagnosis.causes._remedies import speculating
from phasewatch.core.diagnosis.causes._row import PACE, Advice, CauseRow, Finding, known
from phasewatch.core.diagnosis.causes._streams import rest, throughout
from phasewatch.core.diagnosis.measures_view import Case
from phasewatch.core.formatting import number, percent, seconds


def _decode_speculation(case: Case) -> Finding | None:
    view = case.view
    speculation, tpot = view.numbers.speculation, view.numbers.tpot_seconds.mean
    accepted, plain = speculation.mean_accepted_length, case.past.tpot_without_speculation
    if not speculating(view) or accepted is None or not throughout(case):
        return None
    worse = plain is not None and tpot is not None and tpot > plain
    if accepted >= view.thresholds.low_acceptance and not worse:
        return None
    return Finding(
        rest(case),
        known(
            mean_accepted_length=accepted,
            acceptance_ratio=speculation.acceptance_ratio,
            tpot_mean_seconds=tpot,
            tpot_without_speculation_seconds=plain,
        ),
        f"Speculative decoding does not pay off: a step yields {number(accepted)} tokens"
        f" ({percent(speculation.acceptance_ratio)} of the drafts accepted)"
        + (f"; without it a token took {seconds(plain)}, now {seconds(tpot)}." if worse else "."),
        "more than 1.5 tokens a step, or one replica without speculation that is no faster.",
    )


# fmt: off
CAUSE = CauseRow(
    verdict="decode_speculation",
    phase="decode",
    look="Accepted drafts on Engine: few accepted while ITL is worse than without.",
    rule=_decode_speculation,
    families=(*PACE, "e2e"),
    needs=("itl",),
    uses=("tpot",),
    feature=("spec_drafts",),
    remedies=(
        Advice("route part of the traffic to one replica without speculation and compare",
            "rejected drafts cost compute and bring nothing", "now", "TTFT does not change",
            where="drafts are made", fits=speculating),
        Advice("fewer draft tokens (num_speculative_tokens down), or none",
            "every rejected draft is a token computed for nothing", "restart", "TTFT does not change",
            where="drafts are made", fits=speculating),
        Advice("draft tokens by batch size (num_speculative_tokens_per_batch_size)",
            "speculation pays at low load and costs at high load", "restart", "TTFT does not change", since="0.24.0",
            where="drafts are made", fits=speculating),
    ),
)
# fmt: on
