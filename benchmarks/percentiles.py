"""How far percentiles are from what clients measured: PromQL's interpolation against the estimator that uses the sums.

    python -m benchmarks.percentiles [RECORDINGS] [--half first|second] [-v]

RECORDINGS: a folder of recordings, each with a truth.json; this repository's where none is named. In it: `requests`,
each with `send` (seconds on the pages' clock) and `chunks` (seconds after send at which a streamed token came).
TTFT is the first chunk, ITL the gaps; an observation belongs to the window in which its chunk came.
Longer scrape intervals are made by skipping pages.

A client's figure outside the bucket that holds the percentile (its own lag, a page cut between two observations)
can be met by no estimator: such windows are counted as `outside` and left out of the errors. p99 of fewer than 20
observations is reported as `p99<20`. Where a client lags, the error has a floor that no estimator can go below.
--half: variants of the estimator were compared on the first, third, fifth, ... recording by name. The second half did
not choose among them, but it was looked at, and the first sketch was tried on all. What is expected of a bucket before
any sum, and where the r-th of n lies, are of physical grounds: compared on all of them, and on made-up latencies
(lognormal, exponential, normal, uniform, bimodal, cold tails, Pareto; with and without steps shared by streams).
benchmarks.percentile_bound says how much of the error no estimator can remove.
"""

import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, Literal, NamedTuple

import typer

from benchmarks.recorded import RECORDINGS, TRUTH, name_of, opened, recordings_in, truth_of
from phasewatch.core.measures import percentile_fit as sums
from phasewatch.core.measures.histogram import merge
from phasewatch.core.measures.quantile import PERCENTILES, estimate
from phasewatch.core.measures.window import step
from phasewatch.core.measures.window_arrays import alike
from phasewatch.core.model import Histogram, Page, Step
from phasewatch.core.pages.exposition import PageReader
from phasewatch.sources.recording import Recording, RecordingError

INTERVALS = (2.0, 4.0, 6.0, 10.0)
WINDOWS = (15.0, 30.0, 60.0)
SIGNALS = ("ttft", "itl")
FEW = 20
# Pages are taken a few milliseconds late.
LATE_SECONDS = 0.2


class Cell(NamedTuple):
    """One line of the table."""

    interval: float
    window: float
    signal: str
    percentile: str


@dataclass(frozen=True)
class Compared:
    """One window: relative errors, or outside where the client's figure lies outside the bucket."""

    recording: str
    cell: Cell
    outside: bool
    plain: float = 0.0
    ours: float = 0.0
    escaped: bool = False


class Observations(NamedTuple):
    """What clients measured, by the time it was measured."""

    times: list[float]
    values: list[float]

    def between(self, start: float, end: float) -> list[float]:
        return sorted(self.values[bisect_right(self.times, start) : bisect_right(self.times, end)])


def one_answer_each(truth: dict[str, Any] | None) -> bool:
    """Whether clients' figures are the server's: with n above 1 a stream's chunks are of several answers by turns."""
    return truth is not None and not any(
        isinstance(one, dict) and len(one.get("chunks") or ()) > one.get("max_tokens", inf) for one in truth["requests"]
    )


def measured(recording: Recording) -> Mapping[str, Observations]:
    """TTFT and ITL of the clients of a recording. Raises RecordingError for a truth that cannot be read."""
    found: dict[str, list[tuple[float, float]]] = {signal: [] for signal in SIGNALS}
    try:
        for request in (truth_of(recording) or {})["requests"]:
            send, chunks = request["send"], request.get("chunks") or []
            found["ttft"] += [(send + chunk, chunk) for chunk in chunks[:1]]
            found["itl"] += [(send + after, after - before) for before, after in pairwise(chunks)]
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordingError(f"{recording.path} has no record of what clients saw: {error!r}") from None
    return {
        signal: Observations([at for at, _ in sorted(rows)], [value for _, value in sorted(rows)])
        for signal, rows in found.items()
    }


def pages(recording: Recording) -> list[Page]:
    """The pages of a recording's one target, in time order."""
    targets = recording.targets
    if len(targets) > 1:
        raise RecordingError(f"{recording.path} has {len(targets)} targets; the truth of clients is of one")
    reader = PageReader()
    return [
        reader.read(entry.read(), at=entry.seconds, content_type=entry.content_type)
        for entry in targets[0].entries
        if entry.reason is None
    ]


def thinned(all_pages: Iterable[Page], interval: float) -> Iterator[Page]:
    last = -inf
    for page in all_pages:
        if page.at >= last + interval - LATE_SECONDS:
            last = page.at
            yield page


def windows(all_pages: Sequence[Page], interval: float, seconds: float) -> Iterator[list[list[Step]]]:
    """Each window as its scrapes, and each of those as its engines; none with a gap or a restart in it."""
    kept = list(thinned(all_pages, interval))
    scrapes = [
        [step(engine, after.engines[key]) for key, engine in before.engines.items() if key in after.engines]
        for before, after in pairwise(kept)
    ]
    for last, end in enumerate(kept[1:]):
        start = next(at for at, page in enumerate(kept) if page.at >= end.at - seconds - LATE_SECONDS)
        part = scrapes[start : last + 1]
        whole = end.at - seconds >= kept[0].at - LATE_SECONDS
        even = all(after.at - before.at < 1.5 * interval for before, after in pairwise(kept[start : last + 2]))
        if part and whole and even and all(part) and not any(one.restarted for engines in part for one in engines):
            yield part


def compared(path: Path) -> tuple[list[Compared], int, float]:
    """All windows of a recording; how many were fitted, and the CPU seconds that took."""
    recording = opened(path)
    seen, all_pages = measured(recording), pages(recording)
    kept: list[tuple[Cell, Histogram, list[Histogram], list[float]]] = []
    for interval in INTERVALS:
        for seconds in WINDOWS:
            for scrapes in windows(all_pages, interval, seconds):
                start, end = scrapes[0][0].start, scrapes[-1][0].end
                for signal in SIGNALS:
                    steps = [
                        one.histograms[signal] for engines in scrapes for one in engines if signal in one.histograms
                    ]
                    merged, values = merge(steps), seen[signal].between(start, end)
                    if merged is not None and merged.count > 0 and values:
                        kept.append((Cell(interval, seconds, signal, ""), merged, steps, values))
    began = time.process_time()
    by_sums = sums.percentiles([alike(steps) for _, _, steps, _ in kept], [q for _, q in PERCENTILES])
    busy = time.process_time() - began
    found = [
        row
        for (cell, merged, _, values), ours in zip(kept, by_sums, strict=True)
        for row in rows(name_of(path), cell, merged, ours, values)
    ]
    return found, len(kept), busy


def rows(name: str, cell: Cell, merged: Histogram, ours: sums.Values, values: Sequence[float]) -> Iterator[Compared]:
    for (percentile, q), by_sums in zip(PERCENTILES, ours, strict=True):
        plain = estimate(merged, q)
        if plain is None:
            continue
        few = percentile == "p99" and merged.count < FEW
        row = cell._replace(percentile=f"p99<{FEW}" if few else percentile)
        true, high = values[ceil(q * len(values)) - 1], inf if plain.high is None else plain.high
        if not plain.low <= true <= high:
            yield Compared(name, row, outside=True)
            continue
        value = plain.value if by_sums is None else by_sums
        yield Compared(
            name,
            row,
            outside=False,
            plain=abs(plain.value - true) / true,
            ours=abs(value - true) / true,
            escaped=not plain.low <= value <= high,
        )


def table(found: Sequence[Compared]) -> Iterator[str]:
    """One line a cell; then one line an interval, of all its windows and signals."""
    heads = "  ".join(f"{name + ' mean':>12} {'median':>7} {'worst':>7}" for name in ("interpolation", "sums"))
    yield f"{'scrapes':<8}{'window':<8}{'signal':<7}{'':<7}{heads}  {'windows':>7}  outside"
    by_cell: dict[Cell, list[Compared]] = defaultdict(list)
    for one in found:
        by_cell[one.cell].append(one)
    for cell in sorted(by_cell, key=lambda cell: (cell.interval, cell.signal, cell.percentile, cell.window)):
        yield (
            f"{cell.interval:<5g} s {cell.window:>4g} s  {cell.signal:<7}{cell.percentile:<7}" + numbers(by_cell[cell])
        )
    for interval in INTERVALS:
        for signal in SIGNALS:
            for percentile in (*(name for name, _ in PERCENTILES), f"p99<{FEW}"):
                of_all = [
                    one
                    for one in found
                    if (one.cell.interval, one.cell.signal, one.cell.percentile) == (interval, signal, percentile)
                ]
                if of_all:
                    yield f"{interval:<5g} s  all    {signal:<7}{percentile:<7}" + numbers(of_all)
    yield f"{'total':<30}" + numbers(found)


def numbers(found: Sequence[Compared]) -> str:
    inside = [one for one in found if not one.outside]
    outside = f"  {len(inside):>7}  {1 - len(inside) / len(found):>7.1%}"
    if not inside:
        return " " * 60 + outside
    columns = ([one.plain for one in inside], [one.ours for one in inside])
    return "  ".join(f"{fmean(errors):>13.1%} {median(errors):>7.1%} {max(errors):>7.0%}" for errors in columns) + (
        outside
    )


def by_recording(found: Sequence[Compared]) -> Iterator[str]:
    """Mean errors of each recording at the shortest interval: where the estimator is weak."""
    yield f"\nmean error at {INTERVALS[0]:g} s scrapes, all windows: sums (interpolation)"
    for name in sorted({one.recording for one in found}):
        cells = []
        for signal in SIGNALS:
            for percentile in ("p50", "p99"):
                inside = [
                    one
                    for one in found
                    if (one.recording, one.cell.interval, one.cell.signal) == (name, INTERVALS[0], signal)
                    and one.cell.percentile.startswith(percentile)
                    and not one.outside
                ]
                if inside:
                    errors = fmean(one.ours for one in inside), fmean(one.plain for one in inside)
                    cells.append(f"{signal} {percentile} {errors[0]:>5.1%} ({errors[1]:>5.1%})")
        yield f"{name:<20} " + "   ".join(cells)


def main(
    recordings: Annotated[Path, typer.Argument(help=f"Folder of recordings, each with a {TRUTH}.")] = RECORDINGS,
    half: Annotated[
        Literal["all", "first", "second"],
        typer.Option(help="Of the recordings: chosen on the first, looked at the second."),
    ] = "all",
    verbose: Annotated[bool, typer.Option("-v", help="Also each recording.")] = False,
) -> None:
    """Compare percentiles with what clients measured."""
    paths = [path for path in recordings_in(recordings) if one_answer_each(truth_of(opened(path)))]
    if not paths:
        raise RecordingError(f"{recordings} holds no recording with a {TRUTH}; name the folder that holds some")
    paths = {"all": paths, "first": paths[0::2], "second": paths[1::2]}[half]
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(compared, paths))
    found = [one for result, _, _ in results for one in result]
    if not found:
        raise RecordingError(f"{recordings}: no recording is {min(WINDOWS):g} s long and has traffic")
    print(f"{len(paths)} recordings, errors relative to the clients' figure\n")
    print(*table(found), sep="\n")
    if verbose:
        print(*by_recording(found), sep="\n")
    cells = {one.cell for one in found if not one.outside}
    worse = [
        cell
        for cell in sorted(cells)
        if fmean(one.ours for one in found if one.cell == cell and not one.outside)
        > fmean(one.plain for one in found if one.cell == cell and not one.outside)
    ]
    print(f"\nestimates outside [low, high]: {sum(one.escaped for one in found)}")
    print(f"cells in which the sums are worse than interpolation: {len(worse)} of {len(cells)}", *worse, sep="\n  ")
    fitted, busy = sum(count for _, count, _ in results), sum(seconds for _, _, seconds in results)
    print(f"CPU per histogram window, all of a recording at once (every percentile): {busy / fitted * 1000:.2f} ms")


if __name__ == "__main__":
    try:
        typer.run(main)
    except (OSError, ValueError) as error:
        print(f"percentiles: {error}", file=sys.stderr)
        sys.exit(2)
