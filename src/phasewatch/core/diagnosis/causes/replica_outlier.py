"""One engine is slower than its peers at equal traffic (proof: peers.compare)."""

from phasewatch.core.diagnosis.causes._row import Advice, CauseRow
from phasewatch.core.formatting import number, seconds
from phasewatch.core.model import Remedy

REFUTED_BY = "traffic, prompts or contexts that differ between the replicas."


def summary(worst: str, what: str, value: float, usual: float, *, pair: bool) -> str:
    """what: "a token" or "a first token", which takes `value` seconds and `usual` at the peers' median."""
    return (
        f"{'The pair differs: on' if pair else 'On'} {worst} {what} takes {seconds(value)}, {number(value / usual)}"
        f" times its peers' median ({seconds(usual)}) at equal traffic."
    )


# fmt: off
TAKE_OUT = Advice("take that replica out of rotation", "its peers do the same work faster", "now",
    "its load moves to the others", effect="cures", where="its peers have no queue")
SMALLER_SHARE = Advice("give that replica a smaller share of the requests", "its peers do the same work faster, but"
    " they queue: without it they could not keep up", "now", "its peers get more", effect="eases",
    where="its peers queue")
COMPARE = Advice("compare its host with a peer's: CPU, clocks, neighbours, vLLM version and flags",
    "equal work at different speed means different hosts or settings", "now", "none")
CAUSE = CauseRow(
    verdict="replica_outlier",
    phase="replicas",
    look="Engine: this replica against the median of its peers; then its host.",
    remedies=(TAKE_OUT, SMALLER_SHARE, COMPARE),
)
# fmt: on


def remedies(*, peers_queue: bool) -> tuple[Remedy, ...]:
    return (SMALLER_SHARE if peers_queue else TAKE_OUT).remedy, COMPARE.remedy
