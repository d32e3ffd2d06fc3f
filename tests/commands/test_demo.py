"""The demo: recordings in the package, phasewatch on them, a verdict where the incident is."""

import re
import signal
import subprocess
import sys
from importlib.resources import files

import pytest
import requests

from phasewatch.commands import demo
from phasewatch.core.model import Fleet
from phasewatch.core.settings import Settings, parse_objectives
from phasewatch.sources.replaying import replay, span

COMMAND = [sys.executable, "-m", "phasewatch", "demo", "--web.listen-address", "127.0.0.1:0"]


def verdicts(fleet: Fleet) -> dict[str, str | None]:
    return {engine.key.target: engine.verdict for engine in fleet.engines}


def test_the_package_ships_three_small_recordings_of_one_model() -> None:
    recording = demo.demo_recording()
    assert [target.name for target in recording.targets] == ["vllm-0", "vllm-1", "vllm-2"]
    assert all(entry.kind == "page" for target in recording.targets for entry in target.entries)
    archive = files("phasewatch") / "recordings" / "demo.tar.xz"
    assert len(archive.read_bytes()) < 600_000


def test_one_replica_runs_into_an_incident_and_out_of_it_while_the_others_are_well() -> None:
    recording = demo.demo_recording()
    objectives = parse_objectives(f"{name}={limit}" for name, limit in demo.OBJECTIVES.items())
    fleets = list(replay(recording, Settings(windows=(60.0,), objectives=objectives), 2.0))
    shortest = min(span_of.entries[-1].seconds for span_of in recording.targets)
    together = [fleet for fleet in fleets if 12 <= fleet.at <= shortest]
    assert {(v["vllm-0"], v["vllm-1"]) for v in map(verdicts, together)} == {("healthy", "healthy")}
    incident = [verdicts(fleet)["vllm-2"] for fleet in fleets if fleet.at >= 12]
    told = [verdict for verdict, before in zip(incident, [None, *incident], strict=False) if verdict != before]
    assert told == ["healthy", "queue_batch_limit", "healthy"]
    assert span(recording)[0] == 0.0


def test_the_demo_prints_verdicts_and_its_page_and_ends_by_itself() -> None:
    done = subprocess.run([*COMMAND, "--for", "18s"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.match(r"phasewatch is on http://127\.0\.0\.1:\d+ \(web page\)", done.stdout)
    assert re.search(r"vllm-0  healthy: ", done.stdout)
    assert re.search(r"^at the end: vllm-0 \w+ vllm-1 \w+ vllm-2 \w+$", done.stdout, re.MULTILINE)
    assert "Traceback" not in done.stderr


def test_ctrl_c_stops_the_demo_cleanly() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        url = running.stdout.readline().split()[3]
        assert requests.get(f"{url}/-/healthy", timeout=10).ok
        assert requests.get(url, timeout=10).ok
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=20)
    assert (running.returncode, err.splitlines()[-1]) == (0, "stopped")


def test_only_the_replicas_are_served_where_that_is_asked_for() -> None:
    command = [sys.executable, "-m", "phasewatch", "demo", "--fleet-only", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        urls = dict(running.stdout.readline().split() for _ in range(3))
        assert list(urls) == ["vllm-0", "vllm-1", "vllm-2"]
        assert all("vllm:num_requests_running" in requests.get(url, timeout=10).text for url in urls.values())
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=20)
    assert (running.returncode, out, err.splitlines()[-1]) == (0, "", "stopped")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--fleet-only", "127.0.0.1"], "phasewatch: "),
        (["--fleet-only", "127.0.0.1:0", "--web.listen-address", "127.0.0.1:0"], "does not go with --fleet-only"),
    ],
)
def test_a_fleet_that_cannot_be_served_is_told_in_a_line(more: list[str], told: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "phasewatch", "demo", *more], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert len(ran.stderr.splitlines()) == 1
    assert told in ran.stderr
