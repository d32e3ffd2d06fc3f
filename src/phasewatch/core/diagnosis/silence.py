"""What a silent engine's page bears: statistics that are off, and connections that nobody serves."""

from phasewatch.core.formatting import number
from phasewatch.core.measures.window import scrapes
from phasewatch.core.model import Advisory, Window
from phasewatch.core.settings import Thresholds


def unseen_text(answers: float, *, has_worked: bool) -> str:
    """The server answers, and no engine of it moves. has_worked: its counters once did."""
    head = f"{number(answers)} HTTP requests were answered while no engine counter moved:"
    if not has_worked:
        return f"{head} the engine's statistics are off (--disable-log-stats) or not attached. Nothing can be judged."
    return (
        f"{head} the engine's statistics have stopped, or it hangs and clients disconnect. Nothing can be judged; send"
        " it one request to tell."
    )


def connections_open(judged: Window | None, fewest: float | None, thresholds: Thresholds) -> Advisory | None:
    """Of an engine without a request in the window: nobody was in hand when it last made a step, so who has connected
    since and stays may wait for an answer. Those who were there already are a pool that clients or a gateway keep open.

    fewest: files that were open since its last step.
    """
    if judged is None or fewest is None:
        return None
    least = min((page.get("open_fds", 0.0) for page in scrapes(judged)), default=0.0)
    if least - fewest < thresholds.idle_connections:
        return None
    return Advisory(
        "open_connections",
        {"new_connections": least - fewest, "open_files": least, "open_files_fewest": fewest},
        f"No request in this window, yet about {number(least - fewest)} connections were opened since the engine's last"
        " step and stay open: clients may be waiting for an engine that no longer serves.",
        "Send it one request. If no answer comes, take it out of rotation, read its log and restart it.",
    )
