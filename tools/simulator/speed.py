"""Work on something that changes its speed or stands still."""

from bisect import bisect_right


class Speed:
    """A speed that is constant between given seconds (before the first: 1)."""

    def __init__(self, steps: tuple[tuple[float, float], ...] = ()) -> None:
        self._times = [float("-inf"), *(time for time, _ in steps)]
        self._speeds = [1.0, *(speed for _, speed in steps)]
        self._plain = not steps

    def at(self, time: float) -> float:
        return self._speeds[bisect_right(self._times, time) - 1]

    def finish(self, start: float, work: float) -> float:
        """When `work` seconds (at speed 1) begun at `start` are done; inf if it stands still for ever.

        Work of 0 is done at the first second at which it runs.
        """
        if self._plain:
            return start + work
        index = bisect_right(self._times, start) - 1
        while True:
            speed = self._speeds[index]
            end = self._times[index + 1] if index + 1 < len(self._times) else float("inf")
            if speed > 0 and start + work / speed < end:
                return start + work / speed
            if end == float("inf"):
                return end
            work -= (end - start) * speed
            start = end
            index += 1


def stop_and_go(
    start: float, end: float, run: float, stand: float, speed: float = 1.0
) -> tuple[tuple[float, float], ...]:
    """Speed steps of something that runs `run` seconds and stands still for `stand`, again and again."""
    steps: list[tuple[float, float]] = []
    at = start
    while at < end:
        steps += [(at, 0.0), (at + stand, 1.0)]
        at += run + stand
    return (*steps, (max(end, at), 1.0))
