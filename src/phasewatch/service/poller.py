"""When to ask: every target once an interval, spread over it; the one poller behind serve, diagnose and record.

One thread knows when which target is due, others, made as they are needed and at most MOST_THREADS, wait for servers:
one that hangs costs only itself. Never two requests of a target at once: what comes due meanwhile is left out, and
rounds missed are not made up for. All on the monotonic clock.
"""

import heapq
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

# Below this many targets, every one could hang at once without delaying another.
MOST_THREADS = 128
_STOP_SECONDS = 1.0


class Closable(Protocol):
    """What is asked: closing it, from any thread, ends a request under way."""

    def close(self) -> None: ...


class Poller:
    """Calls `ask(index of the target)` for each of `scrapers` once in `interval` seconds, from several threads.

    The first calls are spread evenly over `spread` seconds. left_out(index, how many): rounds in which a target was
    due and not asked, as the call before was not back or this process came too late. rounds: how often each target
    comes due; without end where None. An exception of `ask` or `left_out` ends it all, and is raised by `wait`.
    """

    def __init__(
        self,
        scrapers: Sequence[Closable],
        ask: Callable[[int], None],
        interval: float,
        *,
        spread: float,
        left_out: Callable[[int, int], None] = lambda *_: None,
        rounds: int | None = None,
    ) -> None:
        self._scrapers = scrapers
        self._ask, self._left_out = ask, left_out
        self._interval, self._rounds = interval, rounds
        self._offsets = offsets(len(scrapers), spread)
        self._in_flight = [False] * len(scrapers)
        self._waiting: SimpleQueue[int | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0  # threads that wait for work, less the work that waits for them
        self._threads: list[threading.Thread] = []
        self._ending, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._dispatcher: threading.Thread | None = None

    def start(self) -> None:
        """Begins at once and returns. A second call does nothing."""
        if self._dispatcher is None:
            self._dispatcher = threading.Thread(target=self._run, name="poller", daemon=True)
            self._dispatcher.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether all rounds are over, or it was stopped. Raises what went wrong in a call."""
        is_over = self._ended.wait(seconds)
        if self._error is not None:
            raise self._error
        return is_over

    def stop(self) -> None:
        """Ends within seconds whatever the targets do: requests under way are cut off. A second call does nothing."""
        self._ending.set()
        if self._dispatcher is not None:
            # A system's name look-up cannot be cut off; the threads are daemons, so that nobody waits for it.
            self._ended.wait(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._dispatch()
        except BaseException as error:
            self._fail(error)
        if self._ending.is_set():
            self._close()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._close()
        self._ended.set()

    def _dispatch(self) -> None:
        start = time.monotonic()
        # (when it is due, target, round): a sorted list is a heap.
        plan = [(start + offset, index, 0) for index, offset in enumerate(self._offsets)]
        while plan and not self._ending.is_set():
            due, index, number = plan[0]
            now = time.monotonic()
            if now < due:
                self._ending.wait(due - now)
                continue
            passed = next_round(due, self._interval, now)
            if self._rounds is not None:
                passed = min(passed, self._rounds - number)
            if number + passed == self._rounds:
                heapq.heappop(plan)
            else:
                heapq.heapreplace(plan, (due + passed * self._interval, index, number + passed))
            in_flight = self._in_flight[index]
            if not in_flight:
                self._in_flight[index] = True
                self._hand_out(index)
            if missed := passed - 1 + in_flight:
                self._left_out(index, missed)

    def _hand_out(self, index: int) -> None:
        self._waiting.put(index)
        with self._lock:
            self._idle -= 1
            if self._idle >= 0 or len(self._threads) >= MOST_THREADS:
                return
            self._idle += 1
        thread = threading.Thread(target=self._work, name=f"scrape-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (index := self._waiting.get()) is not None:
            try:
                if not self._ending.is_set():
                    self._ask(index)
            except BaseException as error:
                self._fail(error)
            finally:
                self._in_flight[index] = False
                with self._lock:
                    self._idle += 1

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._ending.set()

    def _close(self) -> None:
        for scraper in self._scrapers:
            scraper.close()


def offsets(count: int, spread: float) -> list[float]:
    """When each target's first round is due, in seconds from the start: even, and never two at once."""
    return [index / count * spread for index in range(count)]


def burst(interval: float) -> float:
    """A spread, in seconds, for rounds whose pages are looked at together: a tenth of the interval, at most 1 s."""
    return min(interval / 10, 1.0)


def next_round(due: float, interval: float, now: float) -> int:
    """How many rounds after the one due at `due` the next one is that is still to come: late ones are left out."""
    return max(1, -int(-(now - due) // interval))
