"""One `phasewatch serve` beside real servers that come, go, restart and get into trouble, for about a minute.

Targets: recordings of a real vLLM served again by `phasewatch replay --serve`, and a simulated incident. All the while
`phasewatch record` reads the same targets, so that live, recorded and (the simulated one) without wall time can be
compared.
"""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import requests

import agreeing
from phasewatch.core.pages.exposition import parse
from phasewatch.core.settings import Settings, parse_objectives
from phasewatch.core.watch import Watcher
from simulated_servers import steady
from support import Prometheus, real_recording, wait_until
from tools.simulator.config import Config, Flags, Machine, Server
from tools.simulator.recording import pages
from tools.simulator.server import Live as SimulatedServers
from tools.simulator.server import serve as serve_simulated
from tools.simulator.simulation import Fleet as SimulatedFleet

# The fixture below is made once for a worker: all its tests must be in the same one.
pytestmark = pytest.mark.xdist_group("live")

COMMAND = [sys.executable, "-m", "phasewatch"]
INTERVAL = 2.0
WINDOW = 20.0
OBJECTIVES = ("ttft_p99=1s", "itl_p99=250ms")
SETTINGS = Settings(windows=(WINDOW,), objectives=parse_objectives(OBJECTIVES))
PATIENCE = 240.0  # only for machines that are very busy
# A scrape and an evaluation may each come up to an interval later on one side.
SHIFT = 2.5 * INTERVAL

# How the parts of a recording are cut out and joined: (name, recording, spans of its seconds), played end to end.
CUTS = (
    ("busy", "healthy", ((20, 60),)),
    ("idle", "idle", ((0, 40),)),
    ("restarting", "restart", ((28, 52), (108, 132))),
)
GONE = ("gone", "healthy", ((40, 80),))
# What `serve` must have said of each in the end, or there was nothing to compare.
SAID = {
    "busy": {"healthy"}, "idle": {"idle"}, "gone": {"healthy", "down"}, "restarting": {"down", "healthy"},
    "incident": {"queue_batch_limit"},
}  # fmt: skip
MONITORING = {"namespace": "monitoring", "pod": "phasewatch-0"}
OWN = {"namespace": "chat", "pod": "vllm-0"}


def cut(out: Path, name: str, source: str, spans: Iterable[tuple[int, int]]) -> None:
    (out / name).mkdir(parents=True)
    second = 0
    for begin, end in spans:
        (target,) = real_recording(source).targets
        for entry in target.entries:
            if begin <= entry.seconds < end:
                suffix = "prom" if entry.kind == "page" else "fail"
                (out / name / f"{second}.{suffix}").write_bytes(entry.path.read_bytes())
                second += 2


def simulated() -> SimulatedFleet:
    """Light traffic; from second 26 on more than four at a time can work off."""
    machine = Machine(step_seconds=0.05, prefill_token_seconds=1e-4, noise=0.0)
    flags = Flags(max_num_seqs=4, max_num_batched_tokens=2048, max_model_len=4096, kv_blocks=2001)
    more = steady(rate=6.0, output=20)
    flows = (steady(rate=1.0, output=20), type(more)(more.prompt, more.output, rate=6.0, start=26.0, name="more"))
    return SimulatedFleet(Config((Server(machine, flags),), flows), 1)


@contextmanager
def command(log: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A running command; its stderr goes to `log`. Ends it with SIGTERM."""
    with log.open("w") as err:
        process = subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=err, text=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def served_again(stack: ExitStack, folder: Path, targets: int) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = stack.enter_context(command(folder / "log", "replay", folder / "recording", "--serve", "--loop"))
    assert process.stdout is not None
    return process, dict(process.stdout.readline().split() for _ in range(targets))


def address(url: str) -> str:
    return url.removeprefix("http://").removesuffix("/metrics")


@dataclass
class Live:
    """The running fleet. targets: host:port by what it stands for. pages: /metrics at some moments."""

    url: str
    targets: Mapping[str, str]
    documents: dict[float, dict[str, Any]] = field(default_factory=dict)
    pages: dict[str, bytes] = field(default_factory=dict)
    recording: Path = Path()
    stepped: list[tuple[float, str]] = field(default_factory=list)
    recorded_until: float = 0.0
    stopping: threading.Event = field(default_factory=threading.Event)

    def follow(self) -> None:
        """Keeps every round's document."""
        while not self.stopping.wait(0.25):
            document = requests.get(f"{self.url}/api/v1/fleet", timeout=30).json()
            if document["at"] is not None:
                self.documents[document["at"]] = document

    def of_the_recording(self) -> list[dict[str, Any]]:
        return [document for at, document in sorted(self.documents.items()) if at <= self.recorded_until]

    def now(self) -> dict[str, dict[str, Any]]:
        """The last round's engines by what their target stands for."""
        last = self.documents[max(self.documents)] if self.documents else {"engines": []}
        names = {target: name for name, target in self.targets.items()}
        return {names[row["target"]]: row for row in last["engines"]}

    def keep_page(self, moment: str) -> None:
        answer = requests.get(f"{self.url}/metrics", timeout=30)
        assert answer.ok
        self.pages[moment] = answer.content


def answer(row: Mapping[str, Any]) -> str:
    return str(row["verdict"] or row["state"])


def answers(documents: Iterable[Mapping[str, Any]], target: str) -> list[tuple[float, str]]:
    return [(d["at"], answer(row)) for d in documents for row in d["engines"] if row["target"] == target]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    for row in CUTS:
        cut(folder / "some" / "recording", *row)
    cut(folder / "other" / "recording", *GONE)
    with ExitStack() as stack:
        _, urls = served_again(stack, folder / "some", len(CUTS))
        other, more = served_again(stack, folder / "other", 1)
        incident = stack.enter_context(serve_simulated(simulated()))
        urls |= more | {"incident": incident.urls["demo"]}
        running = Live("", {name: address(url) for name, url in urls.items()})
        config = folder / "phasewatch.yml"
        config.write_text(_config(running.targets))
        serving = stack.enter_context(command(folder / "log", "serve", "--config.file", config))
        out = folder / "recorded"
        record = stack.enter_context(command(folder / "record.log", "record", *urls.values(), "--out", out,
                                             "--interval", f"{INTERVAL:g}s"))  # fmt: skip
        running.url = wait_until(
            lambda: re.findall(r"msg=serving url=(\S+)", (folder / "log").read_text()), "it serves", PATIENCE
        )[0]
        running.keep_page("starting")
        following = threading.Thread(target=running.follow)
        following.start()
        stack.callback(following.join)
        stack.callback(running.stopping.set)
        _live_through(running, other)
        running.recorded_until = max(running.documents)
        record.send_signal(signal.SIGINT)
        assert record.wait(30) == 0
        running.recording = out
        running.stepped = _stepped(incident)
        yield running
        running.stopping.set()
        following.join()
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 0
        assert "Traceback" not in (folder / "log").read_text()


def _config(targets: Mapping[str, str]) -> str:
    own = json.dumps(OWN)
    rows = [f"- {{url: 'http://{at}', labels: {own if name == 'busy' else {}}}}" for name, at in targets.items()]
    objectives = ", ".join(each.replace("=", ": ") for each in OBJECTIVES)
    return "\n".join(("targets:", *rows, f"scrape: {{interval: {INTERVAL:g}s}}", f"windows: [{WINDOW:g}s, 1m]",
                      f"objectives: {{{objectives}}}", "web: {listen_address: '127.0.0.1:0'}"))  # fmt: skip


def _live_through(running: Live, other: subprocess.Popen[str]) -> None:
    """From the start to: serving, idle, in an incident, one gone and one restarted; and some rounds more."""

    def said(**wanted: str) -> Callable[[], bool]:
        return lambda: wanted.items() <= {name: answer(row) for name, row in running.now().items()}.items()

    wait_until(said(busy="healthy", idle="idle", gone="healthy"), "all is well", PATIENCE)
    running.keep_page("serving and idle")
    other.terminate()
    wait_until(said(gone="down", incident="queue_batch_limit"), "one is gone, one in an incident", PATIENCE)
    running.keep_page("down")
    restarted = said(restarting="healthy", gone="down")
    wait_until(lambda: running.now()["restarting"]["restarts"] and restarted(), "one restarted", PATIENCE)
    running.keep_page("restarted")
    enough = len(running.documents) + 6
    wait_until(lambda: len(running.documents) >= enough, "six more rounds", PATIENCE)


def _stepped(incident: SimulatedServers) -> list[tuple[float, str]]:
    """What would have been said of the simulated incident without wall time, at Unix times."""
    began = time.time() - incident.seconds
    watcher, said = Watcher(SETTINGS), []
    for seconds, target, page in pages(simulated(), incident.seconds, INTERVAL):
        assert isinstance(page, str)
        watcher.page(target, parse(page, at=seconds))
        (engine,) = watcher.evaluate(seconds).engines
        said.append((began + seconds, str(engine.verdict or engine.state)))
    return said


# --- the exported page ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["starting", "serving and idle", "down", "restarted"])
def test_promtool_has_nothing_to_say_about_the_page(promtool: Path, live: Live, moment: str) -> None:
    page = live.pages[moment]
    assert moment == "starting" or page.count(b"\nphasewatch_engine_state{") > 30
    ran = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


@pytest.mark.parametrize("tools", ["bookworm"], indirect=True)
def test_a_real_prometheus_has_the_numbers_of_the_document(
    prometheus_server: Callable[..., Prometheus], live: Live
) -> None:
    server = prometheus_server(
        "scrape_configs:\n- job_name: phasewatch\n  honor_labels: true\n  scrape_interval: 500ms\n"
        f"  static_configs: [{{targets: ['{address(live.url)}'], labels: {json.dumps(MONITORING)}}}]\n"
    )
    rounds: set[float] = set()

    def three_rounds() -> bool:
        shown = server.query('{__name__=~"phasewatch_.+"}')
        at = next((value for of, value in shown if of["__name__"] == "phasewatch_last_evaluation_timestamp_seconds"), 0)
        if at in live.documents and at not in rounds:
            rounds.add(at)
            _same_round(live, live.documents[at], shown)
        return len(rounds) == 3

    wait_until(three_rounds, "Prometheus scraped three rounds whose documents are known", PATIENCE)


def _same_round(live: Live, document: dict[str, Any], shown: list[tuple[dict[str, str], float]]) -> None:
    assert {"idle", "down"} <= {row["state"] for row in document["engines"]}
    series: agreeing.Found = {}
    for labels, value in shown:
        assert not [name for name in labels if name.startswith("exported_")], labels
        target = labels.get("target")
        namespace = OWN if target == live.targets["busy"] else MONITORING
        assert {name: labels[name] for name in namespace} == namespace, labels
        series[labels["__name__"].removeprefix("phasewatch_"), frozenset(labels.items())] = value
    assert len(series) == len(shown)
    assert agreeing.same_numbers(document, series, f"{WINDOW:g}s") > 200
    restarts = {dict(of)["target"]: n for (name, of), n in series.items() if name == "target_restarts_total"}
    assert {target for target, n in restarts.items() if n} == {live.targets["restarting"]}


# --- the same traffic, three ways -------------------------------------------------------------------------------


def agree(one: list[tuple[float, str]], other: list[tuple[float, str]]) -> None:
    """What either said for a while after both had warmed up, the other said at about the same moment.

    What was said for no longer than the shift may have come and gone between two evaluations of the other.
    """
    until = min(one[-1][0], other[-1][0])
    begin = max(next(at for at, said in each if said != "warming_up") for each in (one, other))
    for said_here, said_there in ((one, other), (other, one)):
        runs = [list(run) for _, run in groupby(said_here, key=lambda one: one[1])]
        lasting = [one for run in runs if run[-1][0] - run[0][0] > SHIFT for one in run]
        compared = [(at, said) for at, said in lasting if begin <= at <= until - SHIFT and said != "stale"]
        assert len(compared) >= 5, (one, other)
        for at, said in compared:
            near = {there for moment, there in said_there if abs(moment - at) <= SHIFT}
            assert said in near, f"{said} at {at:.1f}, there {near}: {one} and {other}"


def test_a_recording_of_the_same_time_gives_the_verdicts_that_serve_gave(live: Live) -> None:
    arguments = [word for each in OBJECTIVES for word in ("--objective", each)]
    ran = subprocess.run(
        [*COMMAND, "replay", live.recording, "--window", f"{WINDOW:g}s", "--step", f"{INTERVAL:g}s", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    replayed = [json.loads(line) for line in ran.stdout.splitlines()]
    lived = live.of_the_recording()
    for name, target in live.targets.items():
        of_replay, of_serve = answers(replayed, target), answers(lived, target)
        agree(of_serve, of_replay)
        assert SAID[name] <= {said for _, said in of_serve}


def test_the_simulated_incident_gives_the_same_verdicts_without_wall_time(live: Live) -> None:
    agree(answers(live.of_the_recording(), live.targets["incident"]), live.stepped)
    assert {said for _, said in live.stepped} >= {"healthy", "queue_batch_limit"}
