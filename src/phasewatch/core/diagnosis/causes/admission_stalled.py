"""Requests wait and nobody is let in while tokens flow (proof: progress.admission_stall)."""

from phasewatch.core.diagnosis.causes._row import Advice, CauseRow
from phasewatch.core.diagnosis.progress import Progress, Stall
from phasewatch.core.formatting import number, seconds
from phasewatch.core.model import Remedy, Snapshot

# fmt: off
END_LONGEST = Advice("find and end the longest running request (close its connection at the gateway)",
    "it holds the capacity that waiting requests need", "now", "its user gets no more tokens", effect="cures",
    where="requests run and no slot has been freed since")
MAX_TOKENS = Advice("set max_tokens in clients or at the gateway",
    "an unlimited answer can hold a batch slot without end", "now", "long answers are cut", effect="eases",
    where="requests run and no slot has been freed since")
TAKE_OUT = Advice("take this replica out of rotation", "new requests are not admitted here", "now",
    "its load moves to the others", effect="eases", where="requests have finished and their slots stay empty")
RESTART = Advice("restart the engine", "admission is broken: nothing is admitted although slots are free",
    "restart", "all requests in flight are lost", effect="cures",
    where="requests have finished and their slots stay empty")
CAUSE = CauseRow(
    verdict="admission_stalled",
    phase="progress",
    liveness=True,
    look="**Queue, batch and KV cache**: waiting above zero, **Arrivals** without admissions.",
    remedies=(END_LONGEST, MAX_TOKENS, TAKE_OUT, RESTART),
)
# fmt: on


def remedies(stall: Stall) -> tuple[Remedy, ...]:
    """Slots that stay empty are not held by a long request, and the other way round."""
    held = stall.why != "room left unused"
    return tuple(one.remedy for one in ((END_LONGEST, MAX_TOKENS) if held else (TAKE_OUT, RESTART)))


def texts(stall: Stall, progress: Progress, page: Snapshot) -> tuple[str, str]:
    """Summary, and what would refute it."""
    running, waiting = number(page.gauges.get("running", 0.0)), number(page.gauges.get("waiting", 0.0))
    deferred = page.gauges.get("waiting_deferred", 0.0)
    held = f" ({number(deferred)} of them deferred: for something else than room)" if deferred else ""
    unused = " Requests have finished since, and their slots stay empty." if stall.why == "room left unused" else ""
    return (
        f"{waiting} requests wait{held} and none has been admitted for {seconds(stall.seconds)}, while {running}"
        f" running still {'get' if progress.tokens_flow else 'got'} tokens.{unused}",
        "a first token, or no request waiting.",
    )
