"""What reading a page costs: in full, only its numbers where it kept its shape, and with prometheus_client's parser.

    python -m benchmarks.pages [RECORDINGS] [--pages N] [--repeat N]

RECORDINGS: a folder of recordings. Of each target so many pages that follow each other are read in turn, so often, and
each page's best time (of the processor) counts; the first page, which all read in full, is left out. `wide` are the
same pages as if the server had 8 engines. changed: lines that differ from the page before. kept: what a reader keeps of
a target whose replicas are read as well. Only ratios within one run mean something.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import ne
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.recorded import RECORDINGS, name_of, opened, recordings_in
from phasewatch.core.pages.exposition import PageReader, parse
from phasewatch.sources.recording import RecordingError

WIDE_ENGINES = 8
_ENGINE = 'engine="0"'


def pages_of(folder: Path, most: int) -> Iterator[tuple[str, list[str]]]:
    """Name and pages of each target of the recordings in the folder; of the middle, where the traffic is."""
    for path in recordings_in(folder):
        for target in opened(path).targets:
            texts = [entry.read() for entry in target.entries if entry.reason is None]
            start = max(0, (len(texts) - most) // 2)
            yield f"{name_of(path)}/{target.name}", texts[start : start + most]


def wide(text: str) -> str:
    """The page of a server with so many engines, each as the first."""
    lines: list[str] = []
    for first, run in groupby(text.split("\n"), key=lambda line: _ENGINE in line):
        block = list(run)
        engines = range(WIDE_ENGINES if first else 1)
        lines += (line.replace(_ENGINE, f'engine="{engine}"') for engine in engines for line in block)
    return "\n".join(lines)


def best(read: Callable[[], Callable[[str], object]], texts: Sequence[str], repeat: int) -> float:
    """Median over the pages, the first left out, of each one's best time in microseconds."""
    times = [float("inf")] * len(texts)
    for _ in range(repeat):
        reader = read()
        for at, text in enumerate(texts):
            begin = time.process_time()
            reader(text)
            times[at] = min(times[at], time.process_time() - begin)
    return median(times[1:]) * 1e6


def _ours() -> Callable[[str], object]:
    reader = PageReader()
    return lambda text: reader.read(text, at=0.0)


def _full() -> Callable[[str], object]:
    return lambda text: parse(text, at=0.0)


def _theirs() -> Callable[[str], object]:
    return lambda text: list(text_string_to_metric_families(text))


def kept_bytes(text: str) -> int:
    """What one more reader keeps of a page that others have read before."""
    readers = [PageReader() for _ in range(5)]
    readers[0].read(text, at=0.0)
    tracemalloc.start()
    for reader in readers[1:]:
        reader.read("".join(text), at=0.0)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return kept // (len(readers) - 1)


def line(name: str, texts: Sequence[str], repeat: int) -> tuple[str, float, float]:
    full, ours = best(_full, texts, repeat), best(_ours, texts, repeat)
    theirs = best(_theirs, texts, repeat)
    changed = median(sum(map(ne, before.split("\n"), after.split("\n"))) for before, after in pairwise(texts))
    kept = kept_bytes(texts[-1])
    return (
        f"{name:32} {len(texts[-1]) / 1000:7.0f} {changed:8.0f} {theirs:9.0f} {full:9.0f} {ours:9.0f}"
        f" {full / ours:9.1f} {theirs / ours:10.1f} {kept / 1000:8.0f}",
        full / ours,
        theirs / ours,
    )


def main(
    recordings: Annotated[Path, typer.Argument(help="Folder of recordings.")] = RECORDINGS,
    pages: Annotated[int, typer.Option(help="Pages of each target.")] = 20,
    repeat: Annotated[int, typer.Option(help="Times that each is read.")] = 5,
) -> None:
    try:
        found = [(name, texts) for name, texts in pages_of(recordings, pages) if len(texts) > 2]
    except (OSError, RecordingError) as error:
        sys.exit(f"{recordings}: {error}")
    if not found:
        sys.exit(f"{recordings}: no recordings with more than two pages; name a folder that holds some")
    print(f"{'target':32} {'kB':>7} {'changed':>8} {'client us':>9} {'full us':>9} {'ours us':>9}", end=" ")
    print(f"{'full/ours':>9} {'client/ours':>10} {'kept kB':>8}")
    ratios: list[tuple[float, float]] = []
    for name, texts in found:
        text, *ratio = line(name, texts, repeat)
        ratios.append((ratio[0], ratio[1]))
        print(text, flush=True)
    for name, texts in found[:: max(1, len(found) // 3)]:
        text, *_ = line(f"wide {name}", [wide(one) for one in texts], repeat)
        print(text, flush=True)
    print(f"median of full/ours {median(a for a, _ in ratios):.1f}, of client/ours {median(b for _, b in ratios):.1f}")


if __name__ == "__main__":
    typer.run(main)
