"""Whether what came, was answered and left adds up: figures that need the balance are unknown where it does not."""

from collections.abc import Iterable

from phasewatch.core.model import Window

# A page may be written while a few are counted, and a web server answers a little after the engine has finished.
_FEW, _SHARE = 5.0, 0.01
_IN_FLIGHT = {"running", "waiting"}


def whole(window: Window, counters: Iterable[str], histograms: Iterable[str] = ()) -> bool:
    """Whether the window is one stretch of one process, each page of which has these parts."""
    if window.restarts:
        return False
    counted, observed, end = frozenset(counters), frozenset(histograms), window.steps[0].start
    for step in window.steps:
        if step.start != end or not (step.increases.keys() >= counted and step.histograms.keys() >= observed):
            return False
        end = step.end
    return True


def unbalanced(window: Window) -> str | None:
    """What does not add up, in words; None where it does, or a part is not there to tell."""
    # Most windows add up: only of one that does not every page between is asked whether it has its part.
    increases, first, last = window.increases, window.steps[0].before, window.steps[-1].after
    if "finished" not in increases or "ttft" not in window.histograms:
        return None
    if not (first.keys() >= _IN_FLIGHT and last.keys() >= _IN_FLIGHT):
        return None
    begun = window.histograms["ttft"].count
    finished = increases["finished"]
    # Those that never got a first token.
    complete = finished - increases.get("finished_abort", 0.0) - increases.get("finished_error", 0.0)
    few = max(_FEW, _SHARE * max(begun, finished))
    beyond = begun > 0 and complete - begun - first["running"] - first["waiting"] > few
    if beyond and whole(window, ("finished",), ("ttft",)):
        return (
            f"{complete:.0f} requests finished, but only {begun:.0f} got a first token and"
            f" {first['running'] + first['waiting']:.0f} were in flight before."
        )
    answers = increases.get("http_finishes")
    if answers and finished <= answers + few:
        left = begun - answers - last["running"] - last["waiting"]
        if left > few and whole(window, ("finished", "http_finishes"), ("ttft",)):
            return (
                f"{begun:.0f} requests got a first token, but {answers:.0f} HTTP requests were answered and"
                f" {last['running'] + last['waiting']:.0f} are in flight."
            )
    return None
