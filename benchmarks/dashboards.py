"""How long each query of the dashboards takes at 200 engines, on Debian's pinned Prometheus.

    python -m benchmarks.dashboards > benchmarks/results/dashboards.txt

The history is an hour at a scrape every 30 s; a graph asks for 240 points over that hour, as a screen does.
Prints the slowest queries and their number of series. Takes two minutes and 2 GB of disk.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
# By name, since the tests' helpers are not held to the types of the source.
boards: Any = import_module("boards")
histories: Any = import_module("histories")
support: Any = import_module("support")

START = histories.START
SPAN, SCRAPE, POINTS = 3600, 30, 240
MOMENTS = range(0, SPAN + 1, SCRAPE)
REPEATS = 5


def main() -> None:
    page = histories.large_page()
    print(f"# {page.count(chr(10)):,} series, {len(MOMENTS)} scrapes", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        end = START + SPAN
        rules = _recorded(Path(folder) / "rules", page)
        text = "".join(histories.moved(page.removesuffix("# EOF\n") + rules, MOMENTS))
        server = support.start_prometheus(
            support.Tools(support.SUITES[0]), _made(Path(folder) / "large"), histories.CONFIG, openmetrics=text
        )
        try:
            measured = [_measure(histories.Filled(server, START, end), query) for query in boards.targets()]
        finally:
            server.stop()
    _print(sorted(measured, reverse=True))


def _recorded(folder: Path, page: str) -> str:
    """The recording rules' series, at one moment of a short history."""
    short = "".join(histories.moved(page, (0, 30, 60)))
    server = support.start_prometheus(
        support.Tools(support.SUITES[0]), _made(folder), histories.CONFIG, openmetrics=short
    )
    try:
        text: str = histories.text_of(histories.recorded(server, START + 60, START + 60))
        return text
    finally:
        server.stop()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _measure(filled: Any, query: Any) -> tuple[float, int, str]:
    """(seconds, the best of five; series; query)."""
    values = {"target": "gpu-3:8000", "model_name": "model-3"} if query.board == "phasewatch-engine" else {}
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        series = filled.ask(query, SPAN / POINTS, **values)
        seconds.append(time.perf_counter() - begin)
    return min(seconds), len(series), str(query)


def _print(measured: Sequence[tuple[float, int, str]]) -> None:
    print(f"200 engines, {SPAN // 60} minutes, {POINTS} points; {len(measured)} queries; seconds (best of {REPEATS})")
    print(f"over 1 s: {sum(seconds > 1 for seconds, _, _ in measured)}; most series: {max(n for _, n, _ in measured)}")
    for seconds, series, name in measured[:25]:
        print(f"{seconds:7.3f} s {series:4d} series  {name}")


if __name__ == "__main__":
    main()
