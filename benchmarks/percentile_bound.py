"""How much of the error of p99 lies in the histogram: the estimator against the best that is possible, by simulation.

    python -m benchmarks.percentile_bound [RECORDINGS] [--interval 2] [--windows 6]

Of each recording's windows some are taken at random, as the percentiles' benchmark has them. Columns, mean errors:

pages: the estimator on the server's pages, against the clients' p99 (the same as in the benchmark, of these windows).
clients': the estimator on pages that would show the clients' own latencies: buckets and exact sums. What `pages` has
above it lies between server and client (clocks, network), and no estimator can remove it.
redrawn: the estimator on such windows redrawn: as many steps in each scrape and bucket, each bucket's latencies spread
as those of a bucket of some recording's window are, drawn at random of those with like neighbours.
best: on the same windows, the best that is possible given the page, which knows how the latencies of buckets with such
neighbours can be spread, but not how these are: the median of p99 given the counts and sums.
known: the best of one that also knows how these are spread: what chance alone leaves. No page says as much.

Steps: tokens that came at once and took as long. Both best estimators are told how many tokens each step has, which
no page says, so they are better than any that reads pages; they are approximations themselves (few draws, sums as
Gaussian), so of a single recording they can be above ours.
How they are found: given how buckets are spread, scrapes do not depend on each other. Of each, candidates are drawn
step by step; one is set so that the sum is met, and weighs by its density. How buckets are spread is drawn by Gibbs
sampling, with sums of several steps as Gaussian.
"""

import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import ceil, inf, log
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.percentiles import FEW, SIGNALS, WINDOWS, Observations, measured, one_answer_each, pages, windows
from benchmarks.recorded import RECORDINGS, TRUTH, name_of, opened, recordings_in, truth_of
from phasewatch.core.measures import percentile_fit as sums
from phasewatch.core.measures.histogram import merge
from phasewatch.core.measures.quantile import estimate
from phasewatch.core.measures.window_arrays import Rows, alike
from phasewatch.sources.recording import RecordingError

Floats = NDArray[np.float64]
Whole = NDArray[np.intp]

Q = 0.99
# Tokens of one step come at once and took as long.
STEP_SECONDS, STEP_RATIO = 0.005, 1.05
# A distribution is shares of log-spaced cells of 2 %, from 0.1 ms to 10,000 s.
CELL = 0.02
FIRST, LAST = log(1e-4), log(1e4)
MIDDLES = np.exp(FIRST + CELL * (np.arange(round((LAST - FIRST) / CELL)) + 0.5))
# How a bucket is spread: shares of equal parts of it, smoothed, of at least so many steps.
PARTS, ENOUGH, MOST = 24, 8, 200
SMOOTH = np.array((1.0, 2.0, 3.0, 2.0, 1.0)) / 9
THIN = 0.01  # of a spread is even, so that nothing is impossible
BURN_IN = 10
CANDIDATES, DRAWS, EACH = 64, 16, 8
MANY = 8  # steps whose sum is taken as Gaussian


class Steps(NamedTuple):
    """The clients' latencies of one scrape, one a step: how long, and of how many tokens."""

    values: Floats
    sizes: Floats


class Window(NamedTuple):
    """One window of a recording: the server's page, the pages of the clients' latencies, and their true p99."""

    recording: str
    signal: str
    page: Rows
    clients: Rows
    scrapes: list[Steps]
    true: float


class Model(NamedTuple):
    """How each bucket is spread: the cells' cumulative shares, each bucket's first cell, their means and variances."""

    rising: Floats
    ends: Whole
    mean: Floats
    variance: Floats


def steps_of(seen: Observations, start: float, end: float, signal: str) -> Steps:
    first, last = bisect_right(seen.times, start), bisect_right(seen.times, end)
    rows = sorted(zip(seen.times[first:last], seen.values[first:last], strict=True))
    values: list[float] = []
    sizes: list[float] = []
    before = -inf
    for at, value in rows:
        like = bool(values) and 1 / STEP_RATIO < value / max(values[-1], 1e-9) < STEP_RATIO
        if signal == "itl" and at - before < STEP_SECONDS and like:
            sizes[-1] += 1
        else:
            values.append(max(value, 1e-4))
            sizes.append(1)
        before = at
    return Steps(np.array(values), np.array(sizes))


def shown(bounds: Sequence[float], scrapes: Sequence[tuple[Floats, Floats]]) -> Rows:
    """What a histogram would show of values and how often each came, scrape by scrape."""
    found = []
    for values, sizes in scrapes:
        counts = np.bincount(np.searchsorted(bounds, values), sizes, len(bounds))
        found.append([float((values * sizes).sum()), counts[-1], *counts[:-1]])
    return Rows(tuple(bounds), np.array(found))


def percentile(values: Floats, sizes: Floats) -> float:
    order = np.argsort(values)
    rising = np.cumsum(sizes[order])
    return float(values[order][np.searchsorted(rising, ceil(Q * rising[-1] - 1e-9))])


def windows_of(path: Path, interval: float, most: int, seed: int) -> tuple[list[Window], Mapping[str, int]]:
    """Some windows of each signal with p99 of at least FEW, inside its bucket; and how many there are."""
    recording = opened(path)
    seen, all_pages = measured(recording), pages(recording)
    found: dict[str, list[Window]] = defaultdict(list)
    for seconds in WINDOWS:
        for scrapes in windows(all_pages, interval, seconds):
            for signal in SIGNALS:
                grown = [one.histograms[signal] for engines in scrapes for one in engines if signal in one.histograms]
                merged, page = merge(grown), alike(grown)
                values = seen[signal].between(scrapes[0][0].start, scrapes[-1][0].end)
                if merged is None or page is None or merged.count < FEW or len(values) < FEW:
                    continue
                plain, true = estimate(merged, Q), values[ceil(Q * len(values)) - 1]
                if plain is None or plain.high is None or not plain.low <= true <= plain.high:
                    continue
                spans = [(engines[0].start, engines[0].end) for engines in scrapes]
                parts = [steps_of(seen[signal], *span, signal) for span in spans]
                parts = [part for part in parts if len(part.values)]
                own = [seen[signal].between(*span) for span in spans]
                clients = shown(page.bounds, [(np.array(one), np.ones(len(one))) for one in own if one])
                found[signal].append(Window(name_of(path), signal, page, clients, parts, true))
    rng = np.random.default_rng(seed)
    chosen = [every[at] for every in found.values() for at in sorted(rng.permutation(len(every))[:most])]
    return chosen, {signal: len(every) for signal, every in found.items()}


def spreads_of(every: Iterable[Window]) -> dict[tuple[int, int], Floats]:
    """How buckets are spread, by what their neighbours are: one row a bucket of a window, shares of its PARTS."""
    found: dict[tuple[int, int], list[Floats]] = defaultdict(list)
    for one in every:
        edges = (0.0, *one.page.bounds)
        values = np.concatenate([part.values for part in one.scrapes])
        sizes = np.concatenate([part.sizes for part in one.scrapes])
        at = np.searchsorted(one.page.bounds, values)
        kinds = neighbours(np.bincount(at, sizes, len(one.page.bounds)), edges)
        for bucket in np.unique(at[at < len(one.page.bounds) - 1]):
            inside = (values[at == bucket] - edges[bucket]) / (edges[bucket + 1] - edges[bucket])
            if len(inside) >= ENOUGH:
                shares = np.bincount(np.clip(inside * PARTS, 0, PARTS - 1).astype(int), minlength=PARTS)
                # Reflected at the edges.
                smooth = np.convolve(np.pad(shares / len(inside), 2, mode="symmetric"), SMOOTH, mode="valid")
                found[kinds[bucket]].append((1 - THIN) * smooth / smooth.sum() + THIN / PARTS)
    rng = np.random.default_rng(0)
    return {kind: np.array(rows)[rng.permutation(len(rows))[:MOST]] for kind, rows in found.items()}


def neighbours(counts: NDArray[Any], edges: Sequence[float]) -> list[tuple[int, int]]:
    """Of each bucket, whether the one below and the one above are empty (-1), thinner (0) or denser (1)."""
    dense = counts[:-1] / np.diff(edges[:-1])
    padded = np.pad(dense, 1)
    sides = [np.where(beside > 0, (beside > dense).astype(int), -1) for beside in (padded[:-2], padded[2:])]
    return [(int(below), int(above)) for below, above in zip(*sides, strict=True)] + [(-1, -1)]


class Spreads(NamedTuple):
    """How one bucket of a window can be spread: axis 0 the ways, then the cells of the bucket; means and variances."""

    cells: Floats
    means: Floats
    variances: Floats


def spreads_in(low: int, high: int, shares: Floats) -> Spreads:
    """shares: of the parts of a bucket of the cells low to high."""
    middles = MIDDLES[low:high]
    bottom, top = np.exp(FIRST + CELL * low), np.exp(FIRST + CELL * high)
    parts = np.clip((middles - bottom) / (top - bottom) * PARTS, 0, PARTS - 1).astype(int)
    cells = shares[:, parts] * middles
    cells /= cells.sum(axis=1, keepdims=True)
    means = cells @ middles
    return Spreads(cells, means, cells @ middles**2 - means**2 + (CELL * means) ** 2 / 12)


def model(ends: Whole, buckets: Sequence[int], spreads: Sequence[Spreads], which: Whole) -> Model:
    """Each bucket spread in one of its ways."""
    cells = np.zeros(len(MIDDLES))
    mean, variance = np.zeros(len(ends) - 1), np.zeros(len(ends) - 1)
    for bucket, one, way in zip(buckets, spreads, which, strict=True):
        cells[ends[bucket] : ends[bucket + 1]] = one.cells[way]
        mean[bucket], variance[bucket] = one.means[way], one.variances[way]
    return Model(np.concatenate(((0.0,), np.cumsum(cells))), ends, mean, variance)


def drawn_from(one: Model, buckets: Whole, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Latencies, each of its bucket (the last axis), even within a cell."""
    low, high = one.rising[one.ends[buckets]], one.rising[one.ends[buckets + 1]]
    at = low + (high - low) * rng.random(shape)
    cell = np.clip(np.searchsorted(one.rising, at, side="right") - 1, one.ends[buckets], one.ends[buckets + 1] - 1)
    return np.exp(FIRST + CELL * (cell + rng.random(shape)))


def density(one: Model, bucket: int, values: Floats) -> Floats:
    """Of a latency; 0 outside its bucket."""
    cell = ((np.log(np.maximum(values, 1e-4)) - FIRST) / CELL).astype(int)
    inside = (values > 1e-4) & (cell >= one.ends[bucket]) & (cell < one.ends[bucket + 1])
    cell = np.clip(cell, 0, len(one.rising) - 2)
    return np.where(inside, (one.rising[cell + 1] - one.rising[cell]) / np.maximum(values, 1e-9), 0.0)


class Drawn(NamedTuple):
    """A window drawn: values, buckets (by the cell, as the model has them) and sizes of each scrape's steps."""

    values: list[Floats]
    buckets: list[Whole]
    sizes: list[Floats]


def as_it_was(ends: Whole, scrapes: Sequence[Steps]) -> Drawn:
    """The clients' own latencies of a window, in the buckets that begin at these cells."""
    cells = [((np.log(part.values) - FIRST) / CELL).astype(int) for part in scrapes]
    buckets = [np.searchsorted(ends, cell, side="right") - 1 for cell in cells]
    return Drawn([part.values for part in scrapes], buckets, [part.sizes for part in scrapes])


def redrawn(one: Model, window: Drawn, rng: np.random.Generator) -> Drawn:
    """As many steps in each scrape and bucket as there were, their latencies drawn anew."""
    return window._replace(values=[drawn_from(one, buckets, rng, buckets.shape) for buckets in window.buckets])


def given_a_scrape(
    one: Model, buckets: Whole, sizes: Floats, total: float, top: int, rng: np.random.Generator
) -> Floats | None:
    """EACH draws of the latencies in bucket `top` of a scrape, given its sum; None where the sum cannot be."""
    asked = buckets == top
    spread = sizes * np.sqrt(one.variance[buckets])
    pivot = int(spread.argmax())
    number = np.bincount(buckets, minlength=len(one.mean))
    summed = ~asked & (number[buckets] > MANY)
    summed[pivot] = False
    single = ~summed
    single[pivot] = False
    values = np.empty((CANDIDATES, len(buckets)))
    values[:, single] = drawn_from(one, buckets[single], rng, (CANDIDATES, int(single.sum())))
    rest = values[:, single] @ sizes[single]
    if summed.any():
        scatter = float(np.sqrt((sizes[summed] ** 2 * one.variance[buckets[summed]]).sum()))
        rest = (
            rest + float((sizes[summed] * one.mean[buckets[summed]]).sum()) + scatter * rng.standard_normal(CANDIDATES)
        )
    values[:, pivot] = (total - rest) / sizes[pivot]
    weights = density(one, int(buckets[pivot]), values[:, pivot])
    if not weights.any():
        return None
    chosen = rng.choice(CANDIDATES, EACH, p=weights / weights.sum())
    found: Floats = values[chosen][:, asked]
    return found


def given_the_page(one: Model, window: Drawn, top: int, below: float, rng: np.random.Generator) -> Floats:
    """Draws of p99 of a window, given its counts, its sums and how it is spread. below: observations below `top`."""
    parts, sizes = [], []
    for values, buckets, many in zip(window.values, window.buckets, window.sizes, strict=True):
        asked = buckets == top
        if asked.any():
            found = given_a_scrape(one, buckets, many, float((values * many).sum()), top, rng)
            if found is None:
                found = drawn_from(one, buckets[asked], rng, (EACH, int(asked.sum())))
            parts.append(found[rng.permutation(EACH)])
            sizes.append(many[asked])
    every, weights = np.concatenate(parts, axis=1), np.concatenate(sizes)
    rank = ceil(Q * sum(many.sum() for many in window.sizes) - 1e-9) - below
    order = np.argsort(every, axis=1)
    rising = np.cumsum(weights[order], axis=1)
    at = np.minimum((rising < rank).sum(axis=1), every.shape[1] - 1)
    p99: Floats = np.take_along_axis(every, np.take_along_axis(order, at[:, None], axis=1), axis=1)[:, 0]
    return p99


def middle(values: Floats) -> float:
    """The value whose mean relative error is least: the median, each weighing by what one second of error costs."""
    order = np.argsort(values)
    rising = np.cumsum(1 / values[order])
    return float(values[order][np.searchsorted(rising, rising[-1] / 2)])


def spread_as(
    window: Drawn, ends: Whole, buckets: Sequence[int], spreads: Sequence[Spreads], rng: np.random.Generator
) -> Iterator[Model]:
    """How the buckets of a window can be spread given its counts and sums: DRAWS draws."""
    several = [len(steps) > 1 for steps in window.buckets]
    rows = list(zip(window.buckets, window.sizes, strict=True))
    number = len(ends) - 1
    counts = np.array([np.bincount(at, many, number) for at, many in rows])[several]
    squares = np.array([np.bincount(at, many**2, number) for at, many in rows])[several]
    totals = np.array([(x * many).sum() for x, many in zip(window.values, window.sizes, strict=True)])[several]
    # One step alone in its scrape is known.
    alone = []
    for bucket, one in zip(buckets, spreads, strict=True):
        known = [x[0] for x, at in zip(window.values, window.buckets, strict=True) if len(at) == 1 and at[0] == bucket]
        cells = ((np.log(known) - FIRST) / CELL).astype(int) - ends[bucket]
        alone.append(np.log(np.maximum(one.cells[:, np.clip(cells, 0, one.cells.shape[1] - 1)], 1e-12)).sum(axis=1))
    which = np.array([rng.integers(len(one.means)) for one in spreads])
    mean = sum(counts[:, b] * one.means[way] for b, one, way in zip(buckets, spreads, which, strict=True))
    variance = sum(squares[:, b] * one.variances[way] for b, one, way in zip(buckets, spreads, which, strict=True))
    for sweep in range(BURN_IN + DRAWS):
        for place, (bucket, one) in enumerate(zip(buckets, spreads, strict=True)):
            n, square, way = counts[:, bucket], squares[:, bucket], which[place]
            mean, variance = mean - n * one.means[way], variance - square * one.variances[way]
            means = mean + n * one.means[:, None]
            variances = np.maximum(variance, 0) + square * one.variances[:, None] + 1e-12
            logs = alone[place] - ((totals - means) ** 2 / variances + np.log(variances)).sum(axis=1) / 2
            weights = np.exp(logs - logs.max())
            way = which[place] = rng.choice(len(weights), p=weights / weights.sum())
            mean, variance = mean + n * one.means[way], variance + square * one.variances[way]
        if sweep >= BURN_IN:
            yield model(ends, buckets, spreads, which)


def best(of: Iterable[Model], window: Drawn, rng: np.random.Generator) -> float:
    """The best estimate of p99 by draws from these models, each as likely as it stands in the list."""
    buckets, sizes = np.concatenate(window.buckets), np.concatenate(window.sizes)
    counts = np.bincount(buckets, sizes)
    rising = np.cumsum(counts)
    top = int(np.searchsorted(rising, ceil(Q * rising[-1] - 1e-9)))
    below = float(rising[top] - counts[top])
    return middle(np.concatenate([given_the_page(one, window, top, below, rng) for one in of]))


def errors(window: Window, library: Mapping[tuple[int, int], Floats], seed: int) -> tuple[float, ...]:
    """Relative errors on the pages and on the clients' latencies; on the redrawn: ours, best, known."""
    rng = np.random.default_rng(seed)
    bounds = window.page.bounds
    ends = np.searchsorted(np.searchsorted(bounds, MIDDLES), np.arange(len(bounds) + 1))
    # The edges are those of cells.
    edges = (*np.exp(FIRST + CELL * ends[1:-1]).tolist(), inf)
    was = as_it_was(ends, window.scrapes)
    every, sizes = np.concatenate(was.buckets), np.concatenate(was.sizes)
    kinds = neighbours(np.bincount(every, sizes, len(bounds)), (0.0, *edges))
    buckets = [int(bucket) for bucket in np.unique(every)]
    anything = np.concatenate(list(library.values()))[:MOST]
    spreads = [spreads_in(ends[b], ends[b + 1], library.get(kinds[b], anything)) for b in buckets]
    true_ways = np.array([rng.integers(len(one.means)) for one in spreads])
    truth = model(ends, buckets, spreads, true_ways)
    drawn = redrawn(truth, was, rng)
    true = percentile(np.concatenate(drawn.values), sizes)
    page = shown(edges, list(zip(drawn.values, drawn.sizes, strict=True)))
    ours = [inf if value is None else value for (value,) in sums.percentiles([window.page, window.clients, page], [Q])]
    bounded = best(spread_as(drawn, ends, buckets, spreads, rng), drawn, rng)
    known = best([truth] * DRAWS, drawn, rng)
    pairs = zip((*ours, bounded, known), (window.true,) * 2 + (true,) * 3, strict=True)
    return tuple(abs(value - wanted) / wanted for value, wanted in pairs)


def of_signal(every: Sequence[Window], seed: int) -> list[tuple[float, ...]]:
    """The errors of all windows of a signal."""
    library = spreads_of(every)
    return [errors(one, library, seed + at) for at, one in enumerate(every)]


def lines(every: Sequence[Window], found: Sequence[tuple[float, ...]], many: Mapping[str, int]) -> Iterator[str]:
    """Each recording's mean errors; then their mean, where a recording weighs by its windows. many: of a recording."""
    by_recording: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for one, row in zip(every, found, strict=True):
        by_recording[one.recording].append(row)
    means = {name: np.mean(rows, axis=0) for name, rows in by_recording.items()}
    for name, mean in sorted(means.items()):
        yield f"{name:<24}{many[name]:>6}" + "".join(f"{error:>10.1%}" for error in mean)
    weights = np.array([many[name] for name in means])
    whole = np.average(list(means.values()), axis=0, weights=weights)
    yield f"{'all':<24}{weights.sum():>6}" + "".join(f"{error:>10.1%}" for error in whole)


def main(
    recordings: Annotated[Path, typer.Argument(help=f"Folder of recordings, each with a {TRUTH}.")] = RECORDINGS,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between scrapes.")] = 2.0,
    most: Annotated[int, typer.Option("--windows", min=1, help="Of each recording and signal.")] = 6,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 1,
) -> None:
    """Compare the errors of p99 with the least that any estimator could have."""
    paths = [path for path in recordings_in(recordings) if one_answer_each(truth_of(opened(path)))]
    with ProcessPoolExecutor() as pool:
        count = len(paths)
        read = list(pool.map(windows_of, paths, [interval] * count, [most] * count, range(seed, seed + count)))
        by_signal = {signal: [one for some, _ in read for one in some if one.signal == signal] for signal in SIGNALS}
        if not any(by_signal.values()):
            raise RecordingError(f"{recordings}: no window has {FEW} observations whose p99 lies in its bucket")
        found = list(pool.map(of_signal, by_signal.values(), [seed] * len(SIGNALS)))
    print(f"mean error of p99 of at least {FEW}, scrapes of {interval:g} s, up to {most} windows of each recording")
    for (signal, every), errors_ in zip(by_signal.items(), found, strict=True):
        if every:
            print(f"\n{signal:<23}windows     pages  clients'   redrawn      best     known")
            many = {name_of(path): counted.get(signal, 0) for path, (_, counted) in zip(paths, read, strict=True)}
            print(*lines(every, errors_, many), sep="\n")


if __name__ == "__main__":
    try:
        typer.run(main)
    except (OSError, ValueError) as error:
        print(f"percentile_bound: {error}", file=sys.stderr)
        sys.exit(2)
