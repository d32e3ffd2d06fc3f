"""The cost benchmark, run as its users do, on few targets for a few seconds; nothing here judges times."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from phasewatch.core.pages.exposition import parse
from support import SUITES, Tools

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.fleet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def rows(text: str) -> list[tuple[int, str, float]]:
    """(targets, contender, CPU) of each line of the table."""
    found = re.findall(r"^ +1 s +\w+ +(\d+) +(phasewatch|Prometheus \S+) +([\d.]+) +[\d.]+x", text, re.MULTILINE)
    return [(int(targets), name, float(cpu)) for targets, name, cpu in found]


def test_phasewatch_is_measured_at_every_size_and_its_memory_has_a_slope() -> None:
    options = ["--targets", "1,3", "--mixes", "healthy", "--intervals", "1", "--seconds", "3", "--warm-up", "0"]
    ran = run(*options, "--only", "phase")
    assert ran.returncode == 0, ran.stderr
    assert [(targets, name) for targets, name, _ in rows(ran.stdout)] == [(1, "phasewatch"), (3, "phasewatch")]
    assert all(cpu > 0 for _, _, cpu in rows(ran.stdout))
    assert "memory for each further target" in ran.stdout


def test_both_of_debians_prometheus_are_measured() -> None:
    # Prometheus looks for its targets five seconds after its start.
    options = ["--targets", "2", "--mixes", "incidents", "--intervals", "1", "--seconds", "5", "--warm-up", "10"]
    suites = [suite for suite in SUITES if not Tools(suite).missing]
    if not suites:
        pytest.skip(f"NOT TESTED: {Tools(SUITES[0]).missing}")
    ran = run(*options, "--side-by-side", "--only", "prometheus")
    assert ran.returncode == 0, ran.stderr
    assert [targets for targets, _, _ in rows(ran.stdout)] == [2] * len(suites)


@pytest.mark.parametrize("mix", ["incidents", "healthy"])
def test_the_server_plays_pages_whose_numbers_move_and_tells_arrivals(mix: str) -> None:
    command = [sys.executable, "-m", "benchmarks.fleet_server", "12", "10", mix]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            ports = json.loads(server.stdout.readline())["ports"]
            before = time.monotonic()
            pages = {port: requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text for port in ports}
            moved = time.monotonic() + 30
            while requests.get(f"http://127.0.0.1:{ports[0]}/metrics", timeout=10).text == pages[ports[0]]:
                assert time.monotonic() < moved, "the numbers stand still"
                time.sleep(0.2)
            arrivals = json.loads(server.communicate(timeout=10)[0])["arrivals"]
        finally:
            server.kill()
    assert len(set(ports)) == 12
    snapshots = [parse(page, at=0.0) for page in pages.values()]
    models = {model_name for snapshot in snapshots for model_name, _ in snapshot.engines}
    assert models == {"model-0", "model-1"}
    assert [len(times) for times in arrivals[1:]] == [1] * 11
    assert len(arrivals[0]) >= 3
    assert all(before <= at <= time.monotonic() for times in arrivals for at in times)


def test_nonsense_for_the_sizes_is_one_clear_error() -> None:
    ran = run("--targets", "ten")
    assert ran.returncode == 2
    assert "write it like 10,50" in ran.stderr


def test_an_unknown_mix_is_one_clear_error() -> None:
    ran = run("--mixes", "calm")
    assert ran.returncode == 2
    assert "is no mix" in ran.stderr
