"""The benchmark of page reading, run as its users do on a recording of a few pages; nothing here judges times."""

import subprocess
import sys
from pathlib import Path

from vllm_pages import Server

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.pages", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_every_target_is_read_in_three_ways_and_as_a_wide_server(tmp_path: Path) -> None:
    target = tmp_path / "one" / "a"
    target.mkdir(parents=True)
    server = Server()
    for second in range(3):
        server.engine.serves()
        (target / f"{second}.prom").write_text(server.text())
    ran = run(str(tmp_path), "--repeat", "1")
    assert ran.returncode == 0, ran.stderr
    _, narrow, wide, ratios = ran.stdout.splitlines()
    assert narrow.split()[0] == "one/a"
    assert wide.split()[:2] == ["wide", "one/a"]
    assert all(float(value) > 0 for value in (*narrow.split()[1:], *wide.split()[2:]))
    assert ratios.startswith("median of full/ours")


def test_a_folder_without_recordings_is_refused_in_one_line(tmp_path: Path) -> None:
    ran = run(str(tmp_path))
    assert ran.returncode == 1
    assert "no recordings" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
