"""What an engine's windows no longer hold, kept coarsely, and only while they hold too few observations to judge by."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from phasewatch.core.measures.window import join
from phasewatch.core.model import Snapshot, Step

_COARSE_SECONDS = 60.0  # of a step that is kept: nothing older needs to be told to the second


class History:
    """The steps before those of the longest window, oldest first; a busy engine has none."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()

    def take(
        self, left: Iterable[Step], newer: Sequence[Step], last: Snapshot, families: Iterable[str], *, enough: int,
        oldest: float,
    ) -> None:  # fmt: skip
        """left: steps that have just left the longest window, whose steps `newer` are, up to the page `last`. families:
        of which `enough` observations are wanted, from `oldest` on."""
        short = [family for family in families if family in last.histograms]

        def few(steps: Sequence[Step]) -> bool:
            return not steps or any(_observed(steps[0], (*steps, *newer), last, family) < enough for family in short)

        if not short or not few(newer):
            self.steps.clear()
            return
        for one in left:
            before = self.steps[-1] if self.steps else None
            if before is not None and before.end == one.start and one.end - before.start <= _COARSE_SECONDS:
                self.steps[-1] = join(before, one)
            else:
                self.steps.append(one)
        while self.steps and (self.steps[0].start < oldest or not few(list(self.steps)[1:])):
            self.steps.popleft()


def _observed(first: Step, steps: Iterable[Step], last: Snapshot, family: str) -> float:
    """Observations from the first of the steps up to the page `last`; no restart lies between."""
    before = None if first.pages is None else first.pages[0].histograms.get(family)
    if before is not None:
        return last.histograms[family].count - before.count
    return sum(one.histograms[family].count for one in steps if family in one.histograms)


def reach(steps: Iterable[Step], family: str, start: float, *, wanted: float, oldest: float) -> float:
    """How far back a window that begins at `start` has to go to have so many more observations; as far as the steps
    do, where they have fewer. steps: the newest first, of one engine or of several."""
    begin = start
    for one in steps:
        if one.start >= begin:
            continue
        if (wanted <= 0 and one.start < start) or one.start < oldest:
            break
        start = one.start
        if family in one.histograms:
            wanted -= one.histograms[family].count
    return start


def of_this_process(steps: Iterable[Step]) -> Iterator[Step]:
    """The newest first, down to the one in which the process began."""
    for one in steps:
        yield one
        if one.restarted:
            return
