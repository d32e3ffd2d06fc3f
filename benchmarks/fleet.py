"""What watching a fleet costs: phasewatch beside Prometheus on the same pages, in the same run.

    python -m benchmarks.fleet [--targets 10,50,200,500] [--intervals 5,10] [--seconds 90] [--warm-up 70]
                              [--mixes incidents,healthy]

For each interval and number of targets, one after the other (--side-by-side: at the same time): phasewatch as a user
runs it, `phasewatch serve` with a configuration file, and Debian's Prometheus in both versions, which scrapes the same
targets and records p50 and p99 of TTFT and ITL and the means of queue, prefill and decode, per target and per model,
every interval (--rule-windows 1m,5m: over the windows that phasewatch has; the default, 1m, is half of its work).
benchmarks.fleet_server is the fleet; each contender has one of its own. In mix `incidents` two of three servers have an
incident all the time, in mix `healthy` one of ten. Measured over --seconds, after --warm-up in which windows fill:

CPU        seconds of the process, all its threads (/proc/PID/stat), per 1000 scrapes that came to the servers
server     the same of the fleet's server, which is no part of the contender
memory     resident (VmRSS), the mean of one look a second; below the table its growth for each further target
lateness   of requests as they come to the server. A target's schedule is the grid `first moment + n x interval`
           through its own earliest arrival (the one with the least delay); an arrival is late by its distance from the
           grid. p50 and p99 are over all arrivals of all targets
scraped    scrapes that came, of those that were due
/metrics   median time and size of the derived numbers: phasewatch's /metrics, read once an interval all the while, as
           a Prometheus would (what it works out only then is in its CPU); for Prometheus, which works them out in any
           case, /federate of its recorded series, read when all is measured
Only ratios of one run mean anything: the machine is shared.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from math import ceil
from pathlib import Path
from statistics import fmean, linear_regression, median
from typing import Annotated, Any

import requests
import typer

from benchmarks.fleet_server import MIXES, mixes_in

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
# By name, since the tests' helpers are not held to the types of the source.
support: Any = import_module("support")

PHASEWATCH = "phasewatch"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
LOOKS = 5
READ_SECONDS = 60.0
LATENCIES = {"ttft": "time_to_first_token", "itl": "inter_token_latency"}
PERCENTILES = (0.5, 0.99)
PHASES = ("queue", "prefill", "decode")
LEVELS = {"target": "instance, model_name", "model": "model_name"}


@dataclass
class Running:
    """A contender's process. page: where its derived numbers are read."""

    name: str
    process: "subprocess.Popen[bytes]"
    page: str
    cpu: float = 0.0
    memory: list[int] = field(default_factory=list)


Start = Callable[[Path, Sequence[int], float], Running]


@dataclass(frozen=True)
class Row:
    """One contender at one size. Seconds, bytes; cpu and server_cpu per scrape; late: (p50, p99)."""

    interval: float
    mix: str
    targets: int
    name: str
    cpu: float
    server_cpu: float
    memory: float
    late: tuple[float, float]
    scraped: float
    page_seconds: float
    page_bytes: int


# --- the contenders


def start_phasewatch(folder: Path, ports: Sequence[int], interval: float) -> Running:
    port = support.free_port()
    config = folder / "phasewatch.yml"
    targets = "".join(f"- http://127.0.0.1:{target}\n" for target in ports)
    config.write_text(
        f"targets:\n{targets}scrape: {{interval: {interval:g}s}}\nweb: {{listen_address: '127.0.0.1:{port}'}}\n"
    )
    command = [sys.executable, "-m", "phasewatch", "serve", "--config.file", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        if process.poll() is not None:
            raise SystemExit(f"phasewatch did not start:\n{(folder / 'log').read_text()[-2000:]}")
        try:
            return bool(requests.get(f"{url}/-/healthy", timeout=5).ok)
        except requests.RequestException:
            return False

    support.wait_until(answers, "phasewatch answers", START_SECONDS)
    return Running(PHASEWATCH, process, f"{url}/metrics")


def prometheus(tools: Any, windows: Sequence[str]) -> tuple[str, Start]:
    told = subprocess.run([tools.prometheus, "--version"], capture_output=True, text=True, check=True)
    name = f"Prometheus {(told.stdout or told.stderr).split()[2].partition('+')[0]}"

    def start(folder: Path, ports: Sequence[int], interval: float) -> Running:
        config = {
            "global": {
                "scrape_interval": f"{round(interval * 1000)}ms",
                "scrape_timeout": f"{round(interval * 900)}ms",
                "evaluation_interval": f"{round(interval * 1000)}ms",
            },
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": "vllm", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            ],
        }
        rules = {"groups": [{"name": "derived", "rules": list(recording_rules(windows))}]}
        # JSON is YAML.
        server = support.start_prometheus(tools, folder, json.dumps(config), files={"rules.yml": json.dumps(rules)})
        return Running(name, server.process, f"{server.url}/federate?match[]={{__name__=~'derived:.*'}}")

    return name, start


def recording_rules(windows: Sequence[str]) -> Iterator[dict[str, str]]:
    """Percentiles of TTFT and ITL and means of the phases, as one writes them for Prometheus."""
    for window in windows:
        for level, labels in LEVELS.items():
            for name, metric in LATENCIES.items():
                rate = f"sum by ({labels}, le) (rate(vllm:{metric}_seconds_bucket[{window}]))"
                for q in PERCENTILES:
                    record = f"derived:{level}:{name}_p{q * 100:g}:{window}"
                    yield {"record": record, "expr": f"histogram_quantile({q}, {rate})"}
            for phase in PHASES:
                sums, counts = (
                    f"sum by ({labels}) (rate(vllm:request_{phase}_time_seconds_{part}[{window}]))"
                    for part in ("sum", "count")
                )
                yield {"record": f"derived:{level}:{phase}_mean:{window}", "expr": f"{sums} / {counts}"}


def contenders(windows: Sequence[str]) -> list[tuple[str, Start]]:
    found: list[tuple[str, Start]] = [(PHASEWATCH, start_phasewatch)]
    for tools in map(support.Tools, support.SUITES):
        if tools.missing:
            print(f"left out: {tools.missing}", file=sys.stderr)
        else:
            found.append(prometheus(tools, windows))
    return found


# --- measuring


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def lateness(arrivals: Sequence[float], interval: float) -> list[float]:
    """How late each arrival of one target is, in seconds, against the grid through its earliest one."""
    if not arrivals:
        return []
    from_grid = [at - arrivals[0] - round((at - arrivals[0]) / interval) * interval for at in arrivals]
    return [distance - min(from_grid) for distance in from_grid]


def rank(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, ceil(share * len(values)) - 1)] if values else 0.0


class Reader(threading.Thread):
    """Reads a page `rounds` times, once an interval: seconds that it took, and the size of the last one."""

    def __init__(self, url: str, interval: float, rounds: int) -> None:
        super().__init__(daemon=True)
        self._url, self._interval, self._rounds = url, interval, rounds
        self.took: list[float] = []
        self.size = 0
        self.start()

    def run(self) -> None:
        due = time.monotonic()
        for _ in range(self._rounds):
            time.sleep(max(0.0, due - time.monotonic()))
            due += self._interval
            began = time.perf_counter()
            answer = requests.get(self._url, timeout=READ_SECONDS)
            self.took.append(time.perf_counter() - began)
            answer.raise_for_status()
            self.size = len(answer.content)

    def told(self, name: str) -> tuple[float, int]:
        """Ends it. (median seconds, bytes)."""
        self.join(READ_SECONDS)
        if not self.took:
            raise SystemExit(f"{name} does not answer on {self._url}")
        return median(self.took), self.size


class Fleet:
    """The server process of N targets."""

    def __init__(self, targets: int, seconds: float, mix: str) -> None:
        command = [sys.executable, "-m", "benchmarks.fleet_server", str(targets), str(seconds), mix]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.cpu = 0.0
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the fleet's server did not start")
        self.ports: list[int] = json.loads(line)["ports"]

    def arrivals(self) -> list[list[float]]:
        """Ends the process. Monotonic seconds at which requests came, for each target."""
        told = json.loads(self.process.communicate(timeout=STOP_SECONDS)[0])
        return list(told["arrivals"])


def end(process: "subprocess.Popen[Any]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure(
    starts: Sequence[Start], mix: str, targets: int, interval: float, seconds: float, warm_up: float
) -> list[Row]:
    """One row for each of these contenders, run at the same time."""
    with ExitStack() as stack:
        both: list[tuple[Running, Fleet]] = []
        for start in starts:
            # A minute more than is measured: contenders need a while to start and to end.
            fleet = Fleet(targets, warm_up + seconds + START_SECONDS, mix)
            stack.callback(end, fleet.process)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="phasewatch-fleet-")))
            running = start(folder, fleet.ports, interval)
            stack.callback(end, running.process)
            both.append((running, fleet))
        time.sleep(warm_up)
        for running, fleet in both:
            running.cpu, fleet.cpu = cpu_seconds(running.process.pid), cpu_seconds(fleet.process.pid)
        begin = time.monotonic()
        rounds = ceil(seconds / interval)
        readers = [
            Reader(running.page, interval, rounds) if running.name == PHASEWATCH else None for running, _ in both
        ]
        while (left := begin + seconds - time.monotonic()) > 0:
            for running, _ in both:
                running.memory.append(resident_bytes(running.process.pid))
            time.sleep(min(1.0, left))
        over = time.monotonic()
        for running, fleet in both:
            running.cpu = cpu_seconds(running.process.pid) - running.cpu
            fleet.cpu = cpu_seconds(fleet.process.pid) - fleet.cpu
        pages = [
            (reader or Reader(running.page, 0.0, LOOKS)).told(running.name)
            for reader, (running, _) in zip(readers, both, strict=True)
        ]
        for running, _ in both:
            end(running.process)
        rows = []
        for (running, fleet), page in zip(both, pages, strict=True):
            arrivals = [[at for at in target if begin <= at < over] for target in fleet.arrivals()]
            late = [seconds for target in arrivals for seconds in lateness(target, interval)]
            if not late:
                raise SystemExit(f"{running.name} scraped nothing in {seconds:g} s")
            rows.append(
                Row(
                    interval,
                    mix,
                    targets,
                    running.name,
                    running.cpu / len(late),
                    fleet.cpu / len(late),
                    fmean(running.memory),
                    (rank(late, 0.5), rank(late, 0.99)),
                    len(late) / (targets * (over - begin) / interval),
                    *page,
                )
            )
        return rows


# --- telling


HEAD = (
    "interval  mix       targets  contender          CPU-s/1000  of cheapest  server  memory"
    "    lateness p50, p99 (of interval)  scraped   /metrics"
)


def told(row: Row, cheapest: float) -> str:
    p50, p99 = row.late
    return (
        f"{row.interval:6g} s  {row.mix:9} {row.targets:7d}  {row.name:18} {row.cpu * 1000:10.2f}"
        f" {row.cpu / cheapest:11.2f}x"
        f" {row.server_cpu * 1000:7.2f} {row.memory / 1e6:5.0f} MB {p50 * 1000:8.0f} ms {p99 * 1000:6.0f} ms"
        f" ({p99 / row.interval:6.1%}) {row.scraped:9.1%}"
        f" {row.page_seconds * 1000:5.0f} ms {row.page_bytes / 1000:6.0f} kB"
    )


def slopes(rows: Sequence[Row]) -> Iterator[str]:
    """Memory for each further target, where a contender was measured at several sizes."""
    keys = dict.fromkeys((row.interval, row.mix, row.name) for row in rows)
    for key in keys:
        points = [(row.targets, row.memory) for row in rows if (row.interval, row.mix, row.name) == key]
        if len({targets for targets, _ in points}) > 1:
            interval, mix, name = key
            slope = linear_regression(*zip(*points, strict=True)).slope
            yield f"{interval:6g} s  {mix:9} {name:18} {slope / 1e6:6.2f} MB"


def numbers(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) <= 0:
        raise typer.BadParameter(f"{text!r} is no list of positive numbers; write it like 10,50")
    return found


def main(
    targets: Annotated[str, typer.Option(help="Sizes of the fleet.")] = "10,50,200,500",
    intervals: Annotated[str, typer.Option(help="Seconds between two scrapes of a target.")] = "5,10",
    seconds: Annotated[float, typer.Option(min=1, help="Seconds measured.")] = 90,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds before, in which windows fill.")] = 70,
    mixes: Annotated[str, typer.Option(help="What the fleet plays: incidents, healthy.")] = ",".join(MIXES),
    rule_windows: Annotated[str, typer.Option(help="Windows of Prometheus' rules.")] = "1m",
    side_by_side: Annotated[bool, typer.Option(help="All contenders at the same time: shorter, less exact.")] = False,
    only: Annotated[str, typer.Option(help="Contenders whose name begins so.")] = "",
) -> None:
    """What watching a fleet costs: phasewatch beside Prometheus on the same pages, in the same run."""
    sizes, times = [int(size) for size in numbers(targets)], numbers(intervals)
    chosen = [start for name, start in contenders(rule_windows.split(",")) if name.lower().startswith(only.lower())]
    if not chosen:
        raise typer.BadParameter(f"no contender's name begins with {only!r}", param_hint="--only")
    played = mixes_in(mixes)
    together = [chosen] if side_by_side else [[start] for start in chosen]
    rows: list[Row] = []
    print(f"{seconds:g} s measured after {warm_up:g} s, rules over {rule_windows}, {os.cpu_count()} shared cores\n")
    print(HEAD, flush=True)
    for interval, size, mix in product(times, sizes, played):
        found = [row for starts in together for row in measure(starts, mix, size, interval, seconds, warm_up)]
        cheapest = min((row.cpu for row in found if row.name != PHASEWATCH), default=found[0].cpu)
        for row in found:
            print(told(row, cheapest), flush=True)
        rows += found
    lines = list(slopes(rows))
    if lines:
        print("\nmemory for each further target", *lines, sep="\n")


if __name__ == "__main__":
    typer.run(main)
