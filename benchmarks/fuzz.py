"""Odd pages by the thousand, from page to export: nothing may raise, and no number may leave its kind.

    python -m benchmarks.fuzz [--sequences 20000] [--first SEED]

A sequence is 5 to 20 pages of one to three servers, each a real page (tests/fixtures/pages) whose counters move, at
changing intervals, with mutations: values that are no values, lines lost, doubled, moved, cut or renamed, labels
swapped or with odd bytes, counters that step back, processes that alternate, families missing for a page, times that
repeat. Every sequence follows from its seed. Checked: that each page says the same alone as after the one before it,
and after some of the pages the values of the Fleet, the document as JSON, the exported families, and at the end these
as prometheus_client writes and reads them.
"""

import gzip
import json
import math
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from io import StringIO
from pathlib import Path
from traceback import extract_tb
from typing import Annotated

import typer
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from phasewatch.core.model import Estimate, Fleet, Page
from phasewatch.core.pages.catalog import CATALOG, PREFIXES
from phasewatch.core.pages.exposition import ExpositionError, PageReader, parse
from phasewatch.core.report.document import document
from phasewatch.core.report.families import families, metrics
from phasewatch.core.settings import Settings, parse_objectives
from phasewatch.core.watch import Watcher
from phasewatch.outputs import terminal
from phasewatch.sources.pages import PageError, page_text

PAGES = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "pages"
# Seeds that once failed, with what they found; run first.
FOUND: Mapping[int, str] = {
    2545: "KeyError: a model's engine lacked a gauge on its first page",
    3251: "KeyError: as 2545",
    9057: "an overflow where a part of a bucket holds next to nothing",
    4722: "an overflow by a bucket that holds next to nothing",
}

_ODD_VALUES = (
    "NaN", "+Inf", "-Inf", "-0", "0", "-1", "1", "0.5", "1.0000001", "1e300", "-1e300", "1e-300", "5e-324", "1e17",
    "9007199254740993", "9007199254740992", "1e9", "-1e9", "3e5", "1.7e9", "99999999999999999999", "0x1p3", "1_0", "",
)  # fmt: skip
_ODD_TEXTS = (
    "",
    "\x00",
    "\udcff\udcfe",
    "\u2028",
    "é",
    "\\n",
    '\\"',
    "a" * 300,
    "{}",
    "\U0001f600",
    "-1",
    "NaN",
    "/",
    "None",
)
_SETTINGS = (
    Settings(),
    Settings(windows=(20.0,), objectives=parse_objectives(["ttft_p50=100ms", "itl_mean=5ms", "e2e_p99=1s"])),
    Settings(
        objectives=parse_objectives(["ttft_mean=1ms", "itl_stall=100ms", "tpot_p90=1ms"]), estimator="interpolation"
    ),
)
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)\n?")
_WANTED = re.compile("|".join(
    (f"(?:{'|'.join(map(re.escape, PREFIXES))})" if row.prefixed else "") + re.escape(name.removesuffix("_total"))
    for row in CATALOG for name in row.names
))  # fmt: skip


# --- pages --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sample:
    """One line: everything up to its value, the family it is of, its value, and whether that only grows."""

    start: str
    family: str
    value: float
    grows: bool


@lru_cache
def _samples(path: Path) -> tuple[_Sample, ...]:
    """The lines of a real page that phasewatch reads."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    found = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is not None and _WANTED.match(match[1]):
            name = match[1]
            family = re.sub("_(bucket|sum|count|total|created)$", "", name)
            grows = name.endswith(("_bucket", "_sum", "_count", "_total"))
            found.append(_Sample(f"{name}{match[2] or ''} ", family, float(match[3]), grows))
    return tuple(found)


class _Server:
    """A page whose numbers move: what only grows, in proportion; gauges at random within what they can be."""

    def __init__(self, rng: random.Random, path: Path) -> None:
        self._rng = rng
        self._factor = rng.choice((0.0, 1.0, 1.0, 100.0))
        lost = rng.choice((0.0, 0.1, 0.3, 0.7))
        kept = {family: rng.random() >= lost for family in sorted({sample.family for sample in _samples(path)})}
        self._samples = [sample for sample in _samples(path) if kept[sample.family]]

    def page(self) -> list[str]:
        """Its lines after some more work."""
        rng = self._rng
        self._factor += rng.choice((0.0, 0.01, 0.2, 1.0, 10.0))
        level = rng.random()
        lines = []
        for sample in self._samples:
            value = sample.value
            if sample.grows:
                value = value * self._factor
                value = value if sample.start.partition("{")[0].endswith("_sum") else float(int(value))
            elif "requests" in sample.family:
                value = float(int(level * rng.choice((0, 1, 10, 100))))
            elif "usage" in sample.family:
                value = level
            lines.append(f"{sample.start}{value!r}\n")
        return lines


# --- mutations: each changes the lines of one page in place ---------------------------------------------------------


def _some(rng: random.Random, lines: list[str]) -> Iterator[int]:
    """Places in a page, few or many; those of a line at least."""
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        if lines:
            yield rng.randrange(len(lines))


def _odd_value(rng: random.Random, lines: list[str]) -> None:
    value = rng.choice(_ODD_VALUES)
    for at in _some(rng, lines):
        lines[at] = f"{lines[at].rpartition(' ')[0]} {value}\n"


def _odd_family(rng: random.Random, lines: list[str]) -> None:
    """One family's values all the same, or all some times as large."""
    value, times = rng.choice(_ODD_VALUES), rng.choice((None, -1.0, 1e-12, 0.3, 7.0, 1e12, 1e300))
    for at in _family(rng, lines):
        start, _, old = lines[at].rpartition(" ")
        lines[at] = f"{start} {value if times is None else _times(old, times)}\n"


def _times(text: str, factor: float) -> str:
    try:
        return repr(float(text) * factor)
    except ValueError:
        return text


def _family(rng: random.Random, lines: list[str]) -> list[int]:
    if not lines:
        return []
    name = re.sub("_(bucket|sum|count|total)$", "", lines[rng.randrange(len(lines))].partition("{")[0])
    return [at for at, line in enumerate(lines) if line.startswith(name)]


def _lost(rng: random.Random, lines: list[str]) -> None:
    for at in sorted(set(_some(rng, lines)), reverse=True):
        del lines[at]


def _lost_family(rng: random.Random, lines: list[str]) -> None:
    for at in reversed(_family(rng, lines)):
        del lines[at]


def _doubled(rng: random.Random, lines: list[str]) -> None:
    for at in _some(rng, lines):
        lines.insert(rng.randrange(len(lines) + 1), lines[at])


def _shuffled(rng: random.Random, lines: list[str]) -> None:
    rng.shuffle(lines)


def _exchanged(rng: random.Random, lines: list[str]) -> None:
    """Labels of one line on another."""
    for at in _some(rng, lines):
        name, brace, _ = lines[at].partition("{")
        _, other, rest = lines[rng.randrange(len(lines))].partition("{")
        if brace and other:
            lines[at] = f"{name}{{{rest}"


def _odd_label(rng: random.Random, lines: list[str]) -> None:
    odd = rng.choice(_ODD_TEXTS)
    label = rng.choice(("model_name", "engine", "le", "num_gpu_blocks", "block_size", "status", "WorkerId", "reason"))
    for at in _some(rng, lines):
        lines[at] = re.sub(f'{label}="[^"]*"', lambda _: f'{label}="{odd}"', lines[at])


def _odd_edge(rng: random.Random, lines: list[str]) -> None:
    edge = rng.choice((*_ODD_VALUES, "0.0", "1e-9", "0.30000000000000004"))
    for at in _some(rng, lines):
        lines[at] = re.sub(r'\ble="[^"]*"', lambda _: f'le="{edge}"', lines[at])


def _renamed(rng: random.Random, lines: list[str]) -> None:
    other = rng.choice(("vllm_", "ray_vllm:", "vllm:old_", "sglang:", ""))
    for at in range(len(lines)):
        lines[at] = lines[at].replace("vllm:", other)


def _another_name(rng: random.Random, lines: list[str]) -> None:
    """One family under the name of another."""
    if lines:
        new = lines[rng.randrange(len(lines))].partition("{")[0]
        for at in _family(rng, lines):
            lines[at] = new + lines[at][len(lines[at].partition("{")[0]) :]


def _cut(rng: random.Random, lines: list[str]) -> None:
    if lines:
        del lines[rng.randrange(len(lines)) :]
        if lines and rng.random() < 0.5:
            lines[-1] = lines[-1][: rng.randrange(len(lines[-1]))]


def _odd_bytes(rng: random.Random, lines: list[str]) -> None:
    for at in _some(rng, lines):
        where = rng.randrange(len(lines[at]) + 1)
        lines[at] = lines[at][:where] + rng.choice(_ODD_TEXTS) + lines[at][where:]


def _stepped_back(rng: random.Random, lines: list[str]) -> None:
    factor = rng.choice((0.0, 0.5, 0.999))
    for at in _family(rng, lines) if rng.random() < 0.5 else range(len(lines)):
        start, _, old = lines[at].rpartition(" ")
        lines[at] = f"{start} {_times(old, factor)}\n"


MUTATIONS = (
    _odd_value, _odd_value, _odd_family, _odd_family, _lost, _lost_family, _lost_family, _doubled, _shuffled,
    _exchanged, _odd_label, _odd_edge, _renamed, _another_name, _cut, _odd_bytes, _stepped_back, _stepped_back,
)  # fmt: skip


# --- a sequence ---------------------------------------------------------------------------------------------------


def sequence(seed: int) -> tuple[str, ...]:
    """What went wrong in the sequence of this seed: one line each, none where all is well."""
    rng = random.Random(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return tuple(dict.fromkeys(_run(rng)))
    except Exception as error:  # what a fuzz looks for: any of them is a finding
        last = extract_tb(error.__traceback__)[-1]
        return (f"crash: {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})",)


def _run(rng: random.Random) -> Iterator[str]:
    settings = rng.choice(_SETTINGS)
    watcher = Watcher(settings)
    paths = sorted(path for path in PAGES.iterdir() if path.suffix != ".md")
    targets = {
        f"gpu-{number}:8000": [_Server(rng, rng.choice(paths)) for _ in range(rng.choice((1, 1, 1, 1, 1, 2)))]
        for number in range(rng.choice((1, 1, 2, 3)))
    }
    readers = {target: PageReader() for target in targets}
    steady = rng.choice((None, 2.0, 5.0, 5.0, 10.0))
    oddness = rng.choice((0.03, 0.1, 0.3, 0.7))
    at, fleet = rng.choice((0.0, 1.7e9)), None
    for number in range(rng.randint(5, 20)):
        at += rng.choice((0.0, 1e-9, 0.5, 5.0, 5.0, 10.0, 61.0, 1e5)) if steady is None else steady
        for target, processes in targets.items():
            # Pages of several processes behind one address take turns.
            lines = processes[number % len(processes)].page()
            while rng.random() < oddness:
                rng.choice(MUTATIONS)(rng, lines)
            if rng.random() < 0.05:
                watcher.failure(target, at, "timeout")
            else:
                yield from _feed(watcher, readers[target], target, at, "".join(lines))
        if rng.random() < 0.2:
            fleet = watcher.evaluate(at + rng.choice((0.0, 0.1, 3.0)))
            yield from _checked(fleet, settings)
    fleet = watcher.evaluate(at)
    yield from _checked(fleet, settings)
    if rng.random() < 0.3:
        yield from _as_text(fleet, settings)


def _feed(watcher: Watcher, reader: PageReader, target: str, at: float, text: str) -> Iterator[str]:
    """As a scrape would: a page that cannot be trusted is a failure. Read in turn it says what it says alone."""
    try:
        read = page_text(text.encode("utf-8", "surrogateescape"))
    except PageError as error:
        watcher.failure(target, at, str(error))
        return
    page, alone = _said(reader.read, read, at), _said(parse, read, at)
    if page != alone:
        yield f"read in turn, a page of {target} is not what it is alone"
    if isinstance(page, Page):
        watcher.page(target, page)
    else:
        watcher.failure(target, at, page)


def _said(read: Callable[..., Page], text: str, at: float) -> Page | str:
    try:
        return read(text, at=at)
    except ExpositionError as error:
        return str(error)


# --- checks -------------------------------------------------------------------------------------------------------

_RATIO, _AMOUNT, _ANY, _FLAG = (0.0, 1.0), (0.0, math.inf), (-math.inf, math.inf), (0.0, 1.0)
# By the end of a name, the first that fits: what a value can be. Of fields and of exported series alike.
_KINDS: tuple[tuple[str, tuple[float, float]], ...] = (
    ("growth_per_second", _ANY),
    ("queue_growth_requests_per_second", _ANY),
    ("ratio", _RATIO),
    ("share", _RATIO),
    ("score", _RATIO),
    ("", _AMOUNT),
)
_FLAGS = frozenset({
    "diagnosis", "diagnosis_confidence", "engine_state", "expected_wait_censored", "objective_missed",
    "objective_missed_surely", "objective_judged", "target_up", "build_info", "remedy_info",
    "config_last_reload_successful", "model_diagnosis", "model_diagnosis_confidence", "model_expected_wait_censored",
    "model_objective_missed", "model_objective_missed_surely", "model_objective_judged",
})  # fmt: skip


def _outside(name: str, value: float) -> bool:
    low, high = next(kind for end, kind in _KINDS if name.endswith(end))
    return not (low <= value <= high and math.isfinite(value))


def _checked(fleet: Fleet, settings: Settings) -> Iterator[str]:
    for report in fleet.engines:
        if str(report.state) == "internal_error":
            yield f"internal error: {report.summary}"
    yield from _values("fleet", fleet)
    json.dumps(document(fleet), allow_nan=False).encode()
    for family in _exported(fleet, settings):
        for sample in family.samples:
            name = sample.name.removeprefix("phasewatch_")
            if _outside(name, sample.value) or (name in _FLAGS and sample.value not in (0.0, 1.0)):
                yield f"outside its kind: {sample.name} {sample.value!r}"


def _exported(fleet: Fleet, settings: Settings) -> Iterator[Metric]:
    return metrics(families(fleet, settings=settings, version="fuzz"))


def _values(path: str, value: object) -> Iterator[str]:
    """Every number in the Fleet that leaves its kind, by the path to it."""
    if isinstance(value, Estimate):
        high = math.inf if value.high is None else value.high
        if not (0 <= value.low <= value.value <= high and math.isfinite(value.value)):
            yield f"outside its kind: {path} {value}"
    elif is_dataclass(value):
        for field in fields(value):
            yield from _values(f"{path}.{field.name}", getattr(value, field.name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            # What evidence shows may be anything but endless.
            yield from _values(f"{path}.{key}" if path.rpartition(".")[2] != "evidence" else "evidence", item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _values(path, item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        wrong = not math.isfinite(value) if path == "evidence" else _outside(path, value)
        if wrong:
            yield f"outside its kind: {path} {value!r}"


class _Collected:
    def __init__(self, collected: Iterable[Metric]) -> None:
        self._collected = list(collected)

    def collect(self) -> list[Metric]:
        return self._collected


def _as_text(fleet: Fleet, settings: Settings) -> Iterator[str]:
    """The table that a terminal shows, and the families as a scraper reads them: all samples, none twice."""
    Console(file=StringIO(), width=100, markup=False, emoji=False).print(terminal.fleet(fleet))
    collected = _Collected(_exported(fleet, settings))
    text = generate_latest(collected).decode()
    read = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    if len(read) != sum(len(family.samples) for family in collected.collect()):
        yield "the exported text has other samples than were exported"
    series = Counter((sample.name, frozenset(sample.labels.items())) for sample in read)
    yield from (f"exported twice: {name}" for (name, _), times in series.items() if times > 1)


def main(
    sequences: Annotated[int, typer.Option(help="How many, from the first seed on.")] = 20_000,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    seconds: Annotated[float, typer.Option(help="Stop after this much CPU time; 0 is never.")] = 0.0,
) -> None:
    """Run mutated sequences; exit 1 where any of them finds something."""
    began, run = time.process_time(), 0
    failed: dict[int, tuple[str, ...]] = {}
    for seed in (*FOUND, *range(first, first + sequences)):
        if seconds and time.process_time() - began > seconds:
            break
        run += 1
        if found := sequence(seed):
            failed[seed] = found
            print(f"seed {seed}: {'; '.join(found)[:400]}", flush=True)
    lines = [line for found in failed.values() for line in found]
    crashes = sum(line.startswith(("crash", "internal error")) for line in lines)
    print(f"sequences {run}")
    print(f"crashes {crashes}")
    print(f"values outside their kind {len(lines) - crashes}")
    print(f"seeds that failed: {' '.join(map(str, failed)) or 'none'}")
    print(f"{time.process_time() - began:.0f} s of CPU")
    sys.exit(bool(failed))


if __name__ == "__main__":
    typer.run(main)
