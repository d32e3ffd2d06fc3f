"""Simulated incidents: every kind does what it says, can be written as a recording, and can be served live."""

import gzip
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from simulated_servers import FLAGS, MACHINE, steady, value
from support import ROOT
from tools.simulator.config import Config, Faults, Server
from tools.simulator.judge import counts, measured
from tools.simulator.recording import write
from tools.simulator.scenarios import HEALTHY, KINDS, scenario
from tools.simulator.server import serve
from tools.simulator.simulation import Fleet

# Run from the checkout: tools are no part of what is installed.
COMMAND = [sys.executable, "-m", "tools.simulator"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_incident_of_this_kind_is_felt_by_users_as_it_says(kind: str) -> None:
    made = scenario(kind, 1)
    simulated = Fleet(made.config, 1)
    simulated.advance(made.duration)

    assert made == scenario(kind, 1)
    assert counts(made, simulated.requests)
    assert all(0 <= each.start < each.end <= made.duration + 1 and each.accept for each in made.judge)


def test_an_incident_that_users_do_not_feel_does_not_count() -> None:
    made = scenario("decode_slow", 1)
    mild = replace(made.config.servers[0], faults=Faults(engine_speed=((made.onset, 0.95),)))
    simulated = Fleet(replace(made.config, servers=(mild,)), 1)
    simulated.advance(made.duration)

    assert not counts(made, simulated.requests)


def test_sizes_differ_from_seed_to_seed() -> None:
    speeds = {scenario("healthy", seed).config.servers[0].machine.step_seconds for seed in range(20)}
    assert len(speeds) == 20
    assert min(speeds) < 0.02 < max(speeds)


@pytest.mark.parametrize("kind", HEALTHY)
def test_in_a_healthy_kind_no_verdict_is_ever_right(kind: str) -> None:
    made = scenario(kind, 1)
    assert made.misses is None
    assert made.judge
    assert all(set(each.accept) <= {"healthy", "idle"} for each in made.judge)


def test_what_clients_saw_is_judged_from_their_side_only() -> None:
    simulated = Fleet(Config((Server(MACHINE, FLAGS),), (steady(rate=2.0),)), 1)
    simulated.advance(60)
    first = sorted(each.chunks[0] for each in simulated.requests if each.chunks)

    assert measured(simulated.requests, "ttft_mean", 1.0, 0, 61) == pytest.approx(sum(first) / len(first))
    assert measured(simulated.requests, "ttft_p99", 0.01, 0, 61) == pytest.approx(first[-1] / 0.01, rel=0.2)
    assert 1.0 < measured(simulated.requests, "itl_mean", 0.02, 0, 61) < 1.5
    assert measured(simulated.requests, "itl_stall", 1.0, 0, 61) == 0
    assert measured(simulated.requests, "failing", 1.0, 0, 61) == 0
    with pytest.raises(ValueError, match="no latency"):
        measured(simulated.requests, "speed_p99", 1.0, 0, 61)


def test_a_recording_is_the_same_each_time_and_has_pages_failures_and_the_truth(tmp_path: Path) -> None:
    made = scenario("restart", 1)
    for name in ("one", "two"):
        write(made, tmp_path / name, interval=10.0)

    files = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    assert Path("demo/0000.00.prom.gz") in files
    fails = [file for file in files if file.suffix == ".fail"]
    assert fails
    assert (tmp_path / "one" / fails[0]).read_text() == "ConnectionRefusedError\n"
    truth = json.loads(gzip.decompress((tmp_path / "one" / "truth.json.gz").read_bytes()))
    assert truth["scenario"] == "restart"
    assert [each["accept"] for each in truth["judge"]] == [["healthy"], ["down"], ["healthy"]]
    done = [each for each in truth["requests"] if each.get("done")]
    assert all(len(each["chunks"]) == each["max_tokens"] for each in done)
    last = gzip.decompress((tmp_path / "one" / max(files - {Path("truth.json.gz")})).read_bytes()).decode()
    finished_since = value(last, "request_success_total")
    assert finished_since == sum(each["send"] > made.onset for each in done)


def test_a_live_server_answers_while_it_runs_and_refuses_while_it_is_down() -> None:
    server = Server(MACHINE, FLAGS, faults=Faults(restart=(30.0, 40.0)))
    fleet = Fleet(Config((server,), (steady(rate=3.0),)), 1)
    with serve(fleet, speed=30.0) as live:
        url = live.urls["demo"]
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert value(answer.read().decode(), "num_requests_running") >= 0
        with urllib.request.urlopen(f"{url}/version", timeout=5) as answer:
            assert json.load(answer) == {"version": "0.32.0"}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/nothing", timeout=5)
        time.sleep(max(0.0, (40.0 - live.seconds) / 30.0))
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"{url}/metrics", timeout=5)
        time.sleep(max(0.0, (80.0 - live.seconds) / 30.0))
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            assert value(answer.read().decode(), "generation_tokens_total") > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing", "--out", "x"], "no kind 'nothing'; there are: healthy, quiet, busy"),
        (["healthy"], "say --out DIR or --serve"),
        (["healthy", "--serve", "--listen", "8000"], "listen address '8000': want HOST:PORT"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(arguments: list[str], says: str) -> None:
    run = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2
    assert says in run.stderr
    assert run.stderr.count("\n") == 1


def test_the_command_writes_a_recording_and_never_into_another(tmp_path: Path) -> None:
    out = tmp_path / "rec"
    command = [*COMMAND, "idle", "--seed", "3", "--interval", "30", "--out", str(out)]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert first.returncode == 0, first.stderr
    assert (out / "demo" / "0030.00.prom.gz").exists()
    assert second.returncode == 2
    assert second.stderr == f"simulator: {out}: not empty; give a new folder\n"
