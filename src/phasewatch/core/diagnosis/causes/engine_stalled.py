"""The engine makes no step although work is in hand. Proof: progress.engine_stall, and opinion for one that is over."""

from dataclasses import replace

from phasewatch.core.diagnosis.causes._row import Advice, CauseRow
from phasewatch.core.diagnosis.progress import Progress, Stall
from phasewatch.core.formatting import number, percent, seconds
from phasewatch.core.model import Remedy, Snapshot

# fmt: off
PROBE = Advice("send one probe request (max_tokens 1)", "whether it answers tells a hang from clients that have left",
    "now", "none", where="that cannot be told from /metrics")
TAKE_OUT = Advice("take this replica out of rotation", "requests sent to it never get an answer", "now",
    "its load moves to the others", effect="cures")
RESTART = Advice("keep a stack trace of the engine core (py-spy dump --pid PID), then restart it",
    "it does not recover by itself, and the trace is gone after the restart", "restart",
    "all requests in flight are lost", effect="cures", where="the probe is not answered, or the hang is certain")
CAUSE = CauseRow(
    verdict="engine_stalled",
    phase="progress",
    liveness=True,
    look="**Queue, batch and KV cache**: flat lines while requests are in progress; then the log.",
    watch="steps that stop again; then keep a stack trace (py-spy dump) before a restart",
    remedies=(TAKE_OUT, PROBE, RESTART),
)
# fmt: on


def remedies(stall: Stall) -> tuple[Remedy, ...]:
    """Where the hang is not certain, the probe decides whether the others are needed at all."""
    if stall.certain:
        return TAKE_OUT.remedy, RESTART.remedy
    if_silent = "if the probe is not answered: "
    return PROBE.remedy, *(replace(one.remedy, change=if_silent + one.change) for one in (TAKE_OUT, RESTART))


def texts(stall: Stall, progress: Progress, page: Snapshot) -> tuple[str, str]:
    """Summary, and what would refute it."""
    still = seconds(stall.seconds)
    if stall.why == "connections":
        return (
            f"Connections pile up ({number(progress.fds)} open, {number(progress.fds_at_move)} when the engine last"
            f" made a step) and there has been no progress for {still}. Either the engine hangs or clients hold"
            " connections without asking: send one probe request.",
            "one probe request that is answered.",
        )
    running, waiting = number(page.gauges.get("running", 0.0)), number(page.gauges.get("waiting", 0.0))
    usage = page.gauges.get("kv_usage")
    odd = ""
    if page.gauges.get("running") == 0 and page.gauges.get("waiting_capacity", 0.0) > 0 and usage is not None:
        odd = f" They wait for capacity with {percent(usage)} of the KV cache used: admission is broken."
    sure = f"No progress for {still} with {running} running and {waiting} waiting.{odd}"
    if stall.certain:
        return f"{sure} No request has finished either: the engine hangs.", "any token, step or finished request."
    return (
        f"{sure} Either the engine hangs, or all clients disconnected at once and the gauges are stale (/metrics does"
        " not say which): send one probe request.",
        "one probe request that is answered.",
    )


def texts_of_the_past(standing: float) -> tuple[str, str]:
    """The same of a standstill of so many seconds that is over."""
    return (
        f"The engine stalled for about {seconds(standing)} with requests in progress and runs again; the slow"
        " requests in this window are those it delayed.",
        "slow requests outside that time.",
    )
