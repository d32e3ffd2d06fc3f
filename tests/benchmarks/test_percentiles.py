"""The percentile benchmark, run as its users do, on a recording whose latencies are known."""

import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EDGES = ("0.01", "0.025", "0.05", "0.075", "0.1", "0.25", "0.5", "1.0", "2.5", "+Inf")
NAMES = {"ttft": "vllm:time_to_first_token_seconds", "itl": "vllm:inter_token_latency_seconds"}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.percentiles", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def page(ttft: list[float], itl: list[float]) -> str:
    lines = []
    for name, values in ((NAMES["ttft"], ttft), (NAMES["itl"], itl)):
        labels = 'engine="0",model_name="m"'
        lines.append(f"# TYPE {name} histogram")
        lines += [
            f'{name}_bucket{{{labels},le="{edge}"}} {sum(value <= float(edge) for value in values)}' for edge in EDGES
        ]
        lines += [f"{name}_count{{{labels}}} {len(values)}", f"{name}_sum{{{labels}}} {sum(values)!r}"]
    return "\n".join(lines) + "\n"


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """80 s of a request a second, TTFT about 0.3 s, then nine tokens about 40 ms apart."""
    rng = random.Random(5)
    requests = []
    for at in range(79):
        chunks = [rng.uniform(0.26, 0.34)]
        for _ in range(9):
            chunks.append(chunks[-1] + max(0.02, rng.gauss(0.041, 0.003)))
        requests.append({"send": at + 0.1, "chunks": chunks})
    folder = tmp_path / "made"
    (folder / "server").mkdir(parents=True)
    (folder / "truth.json.gz").write_bytes(gzip.compress(json.dumps({"requests": requests}).encode()))
    for seconds in range(0, 81, 2):
        ttft = [one["chunks"][0] for one in requests if one["send"] + one["chunks"][0] <= seconds]
        itl = [
            after - before
            for one in requests
            for before, after in zip(one["chunks"], one["chunks"][1:], strict=False)
            if one["send"] + after <= seconds
        ]
        (folder / "server" / f"{seconds:04d}.00.prom").write_text(page(ttft, itl))
    return tmp_path


def test_errors_are_small_where_clients_and_server_agree(recordings: Path) -> None:
    ran = run(recordings, "-v")
    assert ran.returncode == 0, ran.stderr
    line = next(line for line in ran.stdout.splitlines() if re.match(r"2 +s +60 s +itl +p50", line))
    plain, ours = float(line.split()[6].rstrip("%")), float(line.split()[9].rstrip("%"))
    assert ours < 2 < plain
    assert line.split()[-1] == "0.0%"
    assert "estimates outside [low, high]: 0" in ran.stdout
    assert re.search(r"10 +s +30 s +ttft +p99 ", ran.stdout)
    assert re.search(r"2 +s +15 s +ttft +p99<20 ", ran.stdout)
    assert "made" in ran.stdout


def test_a_client_that_saw_another_bucket_is_counted_as_outside(recordings: Path) -> None:
    truth = recordings / "made" / "truth.json.gz"
    told = json.loads(gzip.decompress(truth.read_bytes()))
    for one in told["requests"]:
        one["chunks"] = [chunk + 0.4 for chunk in one["chunks"]]
    truth.write_bytes(gzip.compress(json.dumps(told).encode()))
    ran = run(recordings)
    assert ran.returncode == 0, ran.stderr
    line = next(line for line in ran.stdout.splitlines() if re.match(r"2 +s +60 s +ttft +p50", line))
    assert line.split()[-2:] == ["0", "100.0%"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "made" / "truth.json.gz").unlink(), "holds no recording with a truth.json"),
        (lambda path: (path / "made" / "truth.json.gz").write_bytes(b"no gzip"), "is no record of what clients saw"),
        (
            lambda path: (path / "made" / "truth.json.gz").write_bytes(gzip.compress(b'{"requests": 3}')),
            "is no record of what clients saw",
        ),
    ],
)
def test_bad_input_is_one_line(recordings: Path, damage: Callable[[Path], object], said: str) -> None:
    damage(recordings)
    ran = run(recordings)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    ran = run(tmp_path / "nowhere")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert "is no folder" in ran.stderr
