"""Ages of requests in flight, against requests whose every moment is known."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random

import pytest

from phasewatch.core.measures.ages import Ages, InFlight
from phasewatch.core.model import Histogram, Snapshot


@dataclass
class Request:
    arrives: float
    starts: float = inf
    first: float = inf
    ends: float = inf
    leaves: float = inf  # its client, before the end


def served(random: Random, count: int, *, fifo: bool, leave: float) -> list[Request]:
    """Requests through eight slots, a prefill at a time; not first in, first out: whoever waits is next by chance.
    leave: the share of clients that hang up at some moment of their request."""
    at, requests = 0.0, []
    for _ in range(count):
        at += random.expovariate(0.8) * random.choice((0.2, 1.0, 3.0))
        if random.random() < 0.003:
            at += random.uniform(30.0, 300.0)
        requests.append(Request(at))
    slots, prefill_free, waiting, coming = [0.0] * 8, 0.0, [], list(reversed(requests))
    while coming or waiting:
        now = max(heapq.heappop(slots), prefill_free)
        if not waiting:
            now = max(now, coming[-1].arrives)
        while coming and coming[-1].arrives <= now:
            waiting.append(coming.pop())
        one = waiting.pop(0 if fifo else random.randrange(len(waiting)))
        one.starts, one.first = now, now + random.choice((0.05, 0.4, 20.0 if random.random() < 0.05 else 1.0))
        one.ends = one.first + random.choice((0.0, 2.0, 30.0))
        prefill_free = one.first
        if random.random() < leave:
            one.leaves = random.uniform(one.arrives, one.ends)
        heapq.heappush(slots, min(one.ends, one.leaves) if one.leaves > one.starts else now)
    return requests


def pages(requests: list[Request], interval: float, *, http: bool) -> Iterator[tuple[Snapshot, list[Request]]]:
    """A page an interval, and who is in flight then."""
    last = max(min(one.ends, one.leaves) for one in requests)
    upcoming, inside = list(reversed(requests)), []
    first = finished = answered = 0
    at = 0.0
    while at < last + 2 * interval:
        at += interval
        while upcoming and upcoming[-1].arrives <= at:
            inside.append(upcoming.pop())
        for one in inside:
            first += at - interval < one.first <= at and one.first < one.leaves
            finished += one.ends <= at and one.ends < one.leaves
            answered += min(one.ends, one.leaves) <= at
        inside = [one for one in inside if min(one.ends, one.leaves) > at]
        running = sum(one.starts <= at for one in inside)
        counters = {"finished": float(finished), "preemptions": 0.0}
        if http:
            counters |= {"http_2xx": float(answered)}
        gauges = {"running": float(running), "waiting": float(len(inside) - running)}
        yield Snapshot(at, gauges, counters, {"ttft": Histogram((1.0, inf), (0.0, float(first)), None)}), inside


def oldest(inside: list[Request], at: float) -> tuple[float, float]:
    """The truth: the longest wait for a first token so far, and the longest run."""
    return (
        max((at - one.arrives for one in inside if one.first > at), default=0.0),
        max((at - one.starts for one in inside if one.starts <= at), default=0.0),
    )


def over(inside: list[Request], at: float, seconds: float) -> int:
    return sum(one.first > at and at - one.arrives > seconds for one in inside)


@pytest.mark.parametrize("interval", [2.0, 5.0, 15.0])
@pytest.mark.parametrize(("fifo", "leave"), [(True, 0.0), (False, 0.0), (True, 0.2), (False, 0.2)])
def test_an_age_is_never_more_than_the_truth(interval: float, fifo: bool, leave: float) -> None:
    flight, claims = InFlight(), 0
    requests = served(Random(f"{interval}{fifo}{leave}"), 10_000, fifo=fifo, leave=leave)
    for page, inside in pages(requests, interval, http=True):
        flight.page(page)
        unanswered, running = oldest(inside, page.at)
        ages = flight.ages
        assert ages.oldest_unanswered is not None
        assert ages.oldest_running is not None
        assert ages.oldest_unanswered <= unanswered + 1e-6
        assert ages.oldest_running <= running + 1e-6
        for seconds in (2.5, 10.0, 60.0):
            assert ages.unanswered_over(seconds) <= over(inside, page.at, seconds)
        claims += ages.oldest_unanswered > 0
    assert claims > 50


@pytest.mark.parametrize("interval", [2.0, 5.0, 15.0])
def test_first_in_first_out_an_age_is_within_a_scrape_of_the_truth(interval: float) -> None:
    flight, looked = InFlight(), 0
    for page, inside in pages(served(Random(7), 10_000, fifo=True, leave=0.0), interval, http=False):
        flight.page(page)
        truth, _ = oldest(inside, page.at)
        assert flight.ages.oldest_unanswered is not None
        assert truth - flight.ages.oldest_unanswered <= interval + 1e-6
        looked += truth > 3 * interval
    assert looked > 50


def page(
    at: float,
    running: float,
    waiting: float,
    *,
    first: float = 0,
    finished: float = 0,
    gaps: float = 0,
    **counters: float,
) -> Snapshot:
    histograms = {"ttft": first, "itl": gaps, "iteration_tokens": gaps}
    return Snapshot(
        at,
        {"running": running, "waiting": waiting},
        {"finished": finished, **counters},
        {name: Histogram((1.0, inf), (0.0, float(count)), None) for name, count in histograms.items()},
    )


def ages_after(*pages: Snapshot) -> Ages:
    flight = InFlight()
    for one in pages:
        flight.page(one)
    return flight.ages


def test_a_request_that_runs_without_a_first_token_is_unanswered_though_nobody_waits() -> None:
    idle = page(0, 0, 0, first=100, finished=90)  # ten clients left, long ago
    ages = ages_after(idle, *(page(at, 1, 0, first=100, finished=90) for at in range(5, 100, 5)))
    assert (ages.oldest_unanswered, ages.oldest_running) == (90, 90)
    assert ages.unanswered_over(60) == 1
    assert ages.unanswered_over(95) == 0


def test_a_long_answer_is_running_and_not_unanswered() -> None:
    streaming = (page(at, 1, 0, first=11, finished=10, gaps=20.0 * at) for at in range(5, 100, 5))
    ages = ages_after(page(0, 0, 0, first=10, finished=10), *streaming)
    assert (ages.oldest_unanswered, ages.oldest_running) == (0, 90)


def test_who_left_unseen_is_not_claimed_beside_a_stream_that_goes_on() -> None:
    """One streams, one waits, and the client of the one who waits is gone: no HTTP counters tell it."""
    ages = ages_after(
        page(0, 0, 0),
        page(5, 1, 1, first=1, gaps=100),
        *(page(at, 1, 0, first=1, gaps=20.0 * at) for at in range(10, 100, 5)),
    )
    assert ages.oldest_unanswered == 0


def test_clients_that_hung_up_hold_no_age() -> None:
    """No step runs once nobody is left: the gauges stand still."""
    gone = [page(at, 2, 3, first=2, http_2xx=5.0) for at in range(5, 60, 5)]
    ages = ages_after(page(0, 2, 3, first=2, http_2xx=0.0), *gone)
    assert (ages.oldest_unanswered, ages.oldest_running) == (0, 0)
    some = [page(at, 2, 3, first=2, finished_abort=0.0, http_2xx=2.0) for at in range(5, 60, 5)]
    ages = ages_after(page(0, 2, 3, first=2, finished_abort=0.0, http_2xx=0.0), *some)
    assert (ages.oldest_unanswered, ages.unanswered_over(30)) == (55, 1)
    aborted = page(5, 1, 2, first=2, finished=2, finished_abort=2.0)
    assert ages_after(page(0, 2, 3, first=2, finished_abort=0.0), aborted).unanswered_over(1) == 1


def test_a_preempted_request_that_waits_again_is_not_unanswered() -> None:
    ages = ages_after(
        page(0, 0, 0, preemptions=0.0),
        page(5, 2, 0, first=2, preemptions=0.0, gaps=10),
        *(page(at, 1, 1, first=2, preemptions=1.0, gaps=10.0 * at) for at in range(10, 60, 5)),
    )
    assert ages.oldest_unanswered == 0


def test_requests_without_first_tokens_are_gone_when_they_finish() -> None:
    """A pooling model counts no first token at all."""
    ages = ages_after(*(page(at, 1, 2, finished=10 + at) for at in range(0, 60, 5)))
    assert ages.oldest_unanswered is not None
    assert ages.oldest_unanswered <= 5


def test_a_page_without_the_gauges_says_nothing_and_costs_nothing() -> None:
    flight = InFlight()
    for at in (0, 5, 10):
        flight.page(page(at, 1, 1))
    flight.page(Snapshot(15, {}, {}, {}))
    assert flight.ages == Ages()
    flight.page(page(20, 1, 1))
    assert flight.ages.oldest_unanswered == 20


def test_hours_of_a_standing_queue_take_little_memory() -> None:
    flight = InFlight()
    for at in range(20_000):
        flight.page(page(at, 4, 10.0 + at, first=at // 2, finished=at // 2))
    assert len(flight.waiting.entries) + len(flight.unanswered.entries) + len(flight.running.entries) < 800
    assert flight.ages.oldest_unanswered is not None
    assert 9_000 < flight.ages.oldest_unanswered < 10_100
