"""Requests queue on some replicas while others have room (proof: peers.compare)."""

from phasewatch.core.diagnosis.causes._row import Advice, CauseRow
from phasewatch.core.formatting import number

REFUTED_BY = "no engine with room, or prompts that only some engines may serve."


def summary(waiting: float, named: str, free: int, engines: int) -> str:
    """named: the engines on which so many wait."""
    return (
        f"{'The pair differs: ' if engines == 2 else ''}{number(waiting)} requests wait on {named} while {free} of"
        f" {engines} engines have free capacity and no queue: the fleet has capacity, routing does not use it."
    )


# fmt: off
CAUSE = CauseRow(
    verdict="load_imbalance",
    phase="replicas",
    look="Fleet, the table of replicas: waiting on one while others have room.",
    remedies=(
        Advice("route by load (least waiting), not round robin or by session",
            "some replicas queue while others have room", "now", "TTFT and ITL even out between replicas"),
        Advice("loosen session or prefix affinity when the preferred replica queues",
            "affinity without a limit overloads some replicas", "now", "prefix cache hits fall a little"),
    ),
)
# fmt: on
