"""When targets are asked, and that none costs another; nothing here needs a server."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from phasewatch.service.poller import MOST_THREADS, Poller, next_round, offsets
from support import wait_until

INTERVAL = 0.2


class Asked:
    """A target: its calls, how many at once, and whether it was closed; it answers when `free`, or when closed."""

    def __init__(self, free: bool = True) -> None:
        self.calls = self.running = self.most = 0
        self.free, self.closed = threading.Event(), threading.Event()
        if free:
            self.free.set()

    def ask(self) -> None:
        self.running += 1
        self.calls, self.most = self.calls + 1, max(self.most, self.running)
        self.free.wait()
        self.running -= 1

    def close(self) -> None:
        self.closed.set()
        self.free.set()


@pytest.fixture
def poll() -> Iterator[Callable[..., Poller]]:
    """A started Poller of these targets; stopped after the test."""
    started: list[Poller] = []

    def make(targets: list[Asked], ask: Callable[[int], None] | None = None, **options: object) -> Poller:
        given = {"interval": INTERVAL, "spread": INTERVAL, **options}
        started.append(Poller(targets, ask or (lambda index: targets[index].ask()), **given))  # type: ignore[arg-type]
        started[-1].start()
        return started[-1]

    yield make
    for poller in started:
        poller.stop()


@pytest.mark.parametrize(
    ("now", "following"), [(100.0, 1), (100.1, 1), (104.9, 1), (105.0, 1), (105.1, 2), (117.0, 4), (120.0, 4)]
)
def test_rounds_keep_to_the_schedule_and_late_ones_are_left_out(now: float, following: int) -> None:
    assert next_round(100.0, 5.0, now) == following


def test_first_rounds_are_spread_evenly_and_never_meet_the_second() -> None:
    assert offsets(4, 10.0) == [0.0, 2.5, 5.0, 7.5]
    assert offsets(1, 10.0) == [0.0]
    assert offsets(0, 10.0) == []


def test_every_target_has_its_rounds_and_then_it_is_over(poll: Callable[..., Poller]) -> None:
    targets = [Asked() for _ in range(5)]
    missed: Counter[int] = Counter()
    poller = poll(targets, rounds=4, left_out=lambda index, rounds: missed.update({index: rounds}))
    assert poller.wait(30)
    assert [target.calls + missed[index] for index, target in enumerate(targets)] == [4] * 5
    assert all(target.calls >= 1 and target.most == 1 and target.closed.is_set() for target in targets)


def test_a_target_that_hangs_is_never_asked_twice_at_once_and_costs_no_other(poll: Callable[..., Poller]) -> None:
    slow, quick = Asked(free=False), Asked()
    missed: Counter[int] = Counter()
    poll([slow, quick], left_out=lambda index, rounds: missed.update({index: rounds}))
    wait_until(lambda: missed[0] >= 3 and quick.calls >= 3, "rounds of the slow one are left out")
    assert (slow.calls, slow.most) == (1, 1)
    slow.free.set()
    wait_until(lambda: slow.calls >= 3, "it is asked again when it is back")
    assert slow.most == 1


def test_a_bounded_number_of_threads_waits_and_the_rest_is_asked_later(poll: Callable[..., Poller]) -> None:
    targets = [Asked(free=False) for _ in range(MOST_THREADS + 20)]
    poll(targets, interval=3600.0, spread=0.0)
    wait_until(lambda: sum(target.calls for target in targets) == MOST_THREADS, "as many hang as may")
    for target in targets[:20]:
        target.free.set()
    wait_until(lambda: sum(target.calls for target in targets) == len(targets), "the rest comes to its turn")


def test_stopping_closes_what_hangs_and_leaves_no_thread(poll: Callable[..., Poller]) -> None:
    targets = [Asked(free=False) for _ in range(3)]
    poller = poll(targets, interval=3600.0, spread=0.0)
    wait_until(lambda: all(target.calls for target in targets), "all hang")
    before = time.monotonic()
    poller.stop()
    poller.stop()
    assert time.monotonic() - before < 5
    assert all(target.closed.is_set() for target in targets)
    assert poller.wait(5)
    wait_until(lambda: "poller" not in {thread.name for thread in threading.enumerate()}, "no thread is left")


def test_a_mistake_in_a_call_ends_it_all_and_is_raised_to_who_waits(poll: Callable[..., Poller]) -> None:
    hangs, wrong = Asked(free=False), Asked()

    def ask(index: int) -> None:
        if index == 1:
            raise RuntimeError("a bug")
        hangs.ask()

    poller = poll([hangs, wrong], ask)
    with pytest.raises(RuntimeError, match="a bug"):
        poller.wait(30)
    assert hangs.closed.is_set()
