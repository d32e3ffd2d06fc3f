"""A verdict never depends on how often anybody looks: state moves with pages and time, asking changes nothing."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewatch.core.diagnosis.progress import Held, hold
from phasewatch.core.model import Fleet, Page
from phasewatch.core.pages.exposition import PageReader
from phasewatch.core.settings import Settings, parse_objectives
from phasewatch.core.watch import Watcher
from phasewatch.sources.recording import timeline
from phasewatch.sources.replaying import replay
from support import real_recording

STEP = 10.0
OBJECTIVES = parse_objectives(["ttft_p99=1s", "itl_p99=250ms"])
Seen = tuple[float, str, Page | str]


def seen(names: Iterable[str], interval: float) -> list[Seen]:
    """Pages and failures in time order, about one an interval; each recording is a target of its own."""
    found: list[Seen] = []
    for name in names:
        last: dict[str, float] = {}
        readers: dict[str, PageReader] = defaultdict(PageReader)
        for seconds, target, entry in timeline(real_recording(name)):
            if seconds - last.get(target, -interval) < interval - 0.5:
                continue
            last[target] = seconds
            page = entry.reason or readers[target].read(entry.read(), at=seconds, content_type=entry.content_type)
            found.append((seconds, f"{name}/{target}", page))
    return sorted(found, key=lambda one: one[0])


def at_steps(pages: Iterable[Seen], *, busybody: bool) -> Iterator[Fleet]:
    """What is said every STEP seconds. A busybody asks after every page as well, and at odd moments between them."""
    watcher = Watcher(Settings(objectives=OBJECTIVES))
    moments = count(STEP, STEP)
    moment = next(moments)
    for seconds, target, page in pages:
        while moment < seconds:
            yield watcher.evaluate(moment)
            moment = next(moments)
        if isinstance(page, Page):
            watcher.page(target, page)
        else:
            watcher.failure(target, seconds, page)
        for later in (0.0, 0.1, 0.7) if busybody else ():
            watcher.evaluate(seconds + later)
    for later in (moment, moment + 45, moment + 100):  # after the last page
        yield watcher.evaluate(later)


# The last: replicas of one model, one of them slow, with what is remembered of a model and its peers.
@pytest.mark.parametrize(
    ("names", "interval"),
    [
        (("preemption",), 2.0),
        (("interference",), 2.0),
        (("burst",), 6.0),
        (("restart",), 2.0),
        (("mass-abort", "slow-engine", "healthy"), 6.0),
    ],
)
def test_two_observers_of_the_same_pages_agree_at_every_common_moment(names: tuple[str, ...], interval: float) -> None:
    pages = seen(names, interval)
    once = list(at_steps(pages, busybody=False))
    often = list(at_steps(pages, busybody=True))
    assert len(once) > 8
    for one, other in zip(once, often, strict=True):
        assert one == other


def test_x4_preemption_is_judged_the_same_every_two_seconds_and_every_ten() -> None:
    recording = real_recording("preemption")
    by_step = {
        step: {round(fleet.at, 3): fleet for fleet in replay(recording, Settings(objectives=OBJECTIVES), step)}
        for step in (2.0, 10.0)
    }
    common = by_step[2.0].keys() & by_step[10.0].keys()
    assert len(common) > 8
    for at in common:
        assert by_step[2.0][at] == by_step[10.0][at]
    at_80 = min(common, key=lambda at: abs(at - 80))
    assert by_step[2.0][at_80].engines[0].verdict == by_step[10.0][at_80].engines[0].verdict


# --- agreement ----------------------------------------------------------------------------------------------------


def held_after(opinions: Iterable[tuple[float, str]]) -> Held:
    held = Held("healthy", 0.0)
    for at, verdict in opinions:
        held = hold(held, verdict, at, at_once=False, seconds=10.0)
    return held


@settings(deadline=None)
@given(interval=st.floats(0.2, 60))
def test_a_verdict_is_taken_after_ten_seconds_of_agreement_and_two_pages_at_least(interval: float) -> None:
    for pages in range(2, 60):
        held = held_after((100 + n * interval, "decode_batch") for n in range(pages))
        agreed = (pages - 1) * interval
        if agreed < 9.5:  # a scrape that comes a little early is one in time
            assert held.verdict == "healthy"
        elif agreed >= 10 or pages == 2:
            assert (held.verdict, held.since, held.previous) == ("decode_batch", 100, "healthy")


def test_one_opinion_that_differs_begins_the_ten_seconds_anew() -> None:
    opinions = [(float(at), "decode_batch" if at != 8 else "unknown") for at in range(0, 20, 2)]
    assert held_after(opinions).verdict == "healthy"
    held = held_after([*opinions, (20.0, "decode_batch")])
    assert (held.verdict, held.since, held.previous) == ("decode_batch", 10.0, "healthy")
