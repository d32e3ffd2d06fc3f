"""The scoreboard of verdicts, run as its users do; what the verdicts are is tested elsewhere."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from support import EXPECTED, ROOT, real


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.diagnosis", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_what_is_right_and_what_was_said_instead_is_told_in_seconds(tmp_path: Path) -> None:
    wrong = {**EXPECTED["idle"], "judge": [{"from": 14, "to": 60, "accept": ["queue_batch_limit"]}]}
    (tmp_path / "expected.json").write_text(json.dumps({"healthy": EXPECTED["healthy"], "idle": wrong}))
    for name in ("healthy", "idle"):
        shutil.copy(real(name), tmp_path)
    ran = run(tmp_path, "--healthy-seeds", 1)
    assert ran.returncode == 0, ran.stderr
    assert "1 of 2 stretches right in 95 % or more; false alarms: 0 s" in ran.stdout
    assert re.search(r"queue_batch_limit +50 s judged +right 0.0%; said idle 50 s", ran.stdout)
    assert not re.search(r"^  healthy +\d+ s judged", ran.stdout, re.MULTILINE), "all right, so nothing is left of it"
    assert "false alarms of 1 healthy services: 0 s, in 0 of them" in ran.stdout


def test_a_folder_without_right_answers_is_one_line(tmp_path: Path) -> None:
    ran = run(tmp_path)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert "expected.json" in ran.stderr
