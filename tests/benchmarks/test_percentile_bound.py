"""What the bound of p99 says of latencies that are known."""

import random
import subprocess
import sys
from math import inf
from pathlib import Path

import numpy as np
import pytest

from benchmarks.percentile_bound import Steps, Window, errors, of_signal, percentile, shown, steps_of
from benchmarks.percentiles import Observations

ROOT = Path(__file__).parents[2]
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, inf)


def window(scrapes: list[list[float]], name: str = "made") -> Window:
    """A window whose page shows what the clients saw, each latency a step of its own."""
    parts = [Steps(np.array(values), np.ones(len(values))) for values in scrapes]
    page = shown(BOUNDS, [(part.values, part.sizes) for part in parts])
    every = np.concatenate([part.values for part in parts])
    return Window(name, "ttft", page, page, parts, percentile(every, np.ones(len(every))))


def drawn(rng: random.Random, per_scrape: int) -> Window:
    return window([[rng.lognormvariate(-1.5, 0.5) for _ in range(per_scrape)] for _ in range(15)])


def test_one_latency_a_scrape_leaves_no_error_to_any_estimator() -> None:
    rng = random.Random(3)
    for row in of_signal([drawn(rng, 1) for _ in range(4)], seed=1):
        assert row == pytest.approx([0.0] * 5, abs=1e-3)


def test_the_best_estimator_is_better_than_ours_and_who_knows_more_is_better() -> None:
    rng = random.Random(4)
    pages, clients, ours, best, known = np.mean(of_signal([drawn(rng, 6) for _ in range(30)], seed=1), axis=0)
    assert pages == clients
    assert 0 < known < best < ours < 0.2


def test_the_same_seed_draws_the_same() -> None:
    every = [drawn(random.Random(5), 4) for _ in range(3)]
    assert of_signal(every, seed=7) == of_signal(every, seed=7)


def test_pages_that_differ_from_what_clients_saw_show_in_the_first_column_only() -> None:
    honest = drawn(random.Random(6), 1)
    late = honest.page._replace(rows=honest.page.rows * np.array((1.1, *[1.0] * (honest.page.rows.shape[1] - 1))))
    found = errors(honest._replace(page=late), {(-1, -1): np.full((1, 24), 1 / 24)}, seed=1)
    assert found[0] > 0.03
    assert found[1] < 1e-3


def test_tokens_that_came_at_once_and_took_as_long_are_one_step() -> None:
    seen = Observations([1.000, 1.001, 1.002, 1.5, 1.501], [0.04, 0.0401, 0.3, 0.04, 0.04])
    found = steps_of(seen, 0, 2, "itl")
    assert found.values.tolist() == [0.04, 0.3, 0.04]
    assert found.sizes.tolist() == [2, 1, 2]
    assert steps_of(seen, 0, 2, "ttft").sizes.tolist() == [1] * 5


def test_a_folder_without_recordings_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.percentile_bound", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert "holds no recordings" in ran.stderr
