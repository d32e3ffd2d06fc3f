"""Whether what came, was answered and left adds up: figures that need the balance are unknown where it does not."""

from collections.abc import Iterable
from itertools import pairwise

from phasewatch.core.measures.window import scrapes
from phasewatch.core.model import Window

# A page may be written while a few are counted, and a web server answers a little after the engine has finished.
_FEW, _SHARE = 5.0, 0.01


def whole(window: Window, counters: Iterable[str], histograms: Iterable[str] = ()) -> bool:
    """Whether the window is one stretch of one process, each page of which has these parts."""
    if window.restarts or any(after.start != before.end for before, after in pairwise(window.steps)):
        return False
    counted, observed = tuple(counters), tuple(histograms)
    return all(
        all(name in step.increases for name in counted) and all(name in step.histograms for name in observed)
        for step in window.steps
    )


def unbalanced(window: Window) -> str | None:
    """What does not add up, in words; None where it does, or a part is not there to tell."""
    if not whole(window, ("finished",), ("ttft",)):
        return None
    pages, increases = scrapes(window), window.increases
    first, last = pages[0], pages[-1]
    if any(name not in page for page in (first, last) for name in ("running", "waiting")):
        return None
    begun = window.histograms["ttft"].count
    finished = increases["finished"]
    # Those that never got a first token.
    complete = finished - increases.get("finished_abort", 0.0) - increases.get("finished_error", 0.0)
    few = max(_FEW, _SHARE * max(begun, finished))
    if begun > 0 and complete - begun - first["running"] - first["waiting"] > few:
        return (
            f"{complete:.0f} requests finished, but only {begun:.0f} got a first token and"
            f" {first['running'] + first['waiting']:.0f} were in flight before."
        )
    answers = increases.get("http_finishes")
    if answers and whole(window, ("http_finishes",)) and finished <= answers + few:
        left = begun - answers - last["running"] - last["waiting"]
        if left > few:
            return (
                f"{begun:.0f} requests got a first token, but {answers:.0f} HTTP requests were answered and"
                f" {last['running'] + last['waiting']:.0f} are in flight."
            )
    return None
