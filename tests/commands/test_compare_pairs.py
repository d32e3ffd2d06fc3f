"""Every before/after pair of the recordings: `compare` says what the clients measured."""

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Any

import pytest

from support import RECORDINGS, Run, real, real_recording

# Before and after; what came out; what is better and worse; the reasons that are named.
PAIRS = (
    ("queue-tail", "queue-tail-fixed", "better", "TTFT ITL e2e", "", "waiting fell"),
    ("stuck-behind", "stuck-chunks-512", "mixed", "stalls TTFT e2e", "ITL", ""),
    ("stuck-two-servers", "stuck-threshold", "mixed", "TTFT", "ITL", ""),
    ("stalls-before", "stalls-fixed", "better", "stalls ITL", "", ""),
    ("cache-before", "cache-after", "better", "stalls TTFT ITL e2e", "", "the prefix hit ratio rose"),
    ("interference", "interference-fixed", "better", "stalls ITL", "", ""),
    ("prefix-off", "prefix-on", "better", "TTFT e2e", "", "the prefix hit ratio rose"),
    ("large-batch", "large-batch-capped", "mixed", "ITL", "TTFT e2e", "running fell"),
    ("preemption", "preemption-roomy", "better", "stalls TTFT ITL e2e", "", "KV cache capacity rose"),
    ("max-num-seqs", "max-num-seqs-up", "better", "TTFT e2e", "", "waiting fell"),
    ("spec-decode-low", "spec-decode-off", "better", "TTFT TPOT e2e", "", "speculation is off"),
    ("prefill-backlog", "prefill-backlog-budget", "worse", "", "ITL e2e", ""),
)
CLOSED = ("large-batch", "preemption", "spec-decode-low")
pairs = pytest.mark.parametrize(("before", "after", "conclusion", "better", "worse", "why"), PAIRS)
_TURNED = {"better": "worse", "worse": "better"}


@dataclass(frozen=True)
class Clients:
    """Seconds that clients measured, after the ten that compare leaves out as warm-up."""

    ttft: list[float]
    itl: list[float]
    e2e: list[float]

    def value(self, name: str) -> float:
        """Of a row of compare: `ttft_p99`, `itl_stalled`."""
        family, _, statistic = name.partition("_")
        values: list[float] = getattr(self, family)
        if statistic == "mean":
            return sum(values) / len(values)
        if statistic == "stalled":
            return sum(gap for gap in values if gap > 1) / sum(values)
        return sorted(values)[ceil(int(statistic[1:]) / 100 * len(values)) - 1]


@lru_cache(maxsize=2)
def clients(name: str) -> Clients:
    truth: dict[str, Any] = json.loads(real_recording(name).path.joinpath("truth.json").read_bytes())
    asked = [one for one in truth["requests"] if one["chunks"]]
    return Clients(
        [one["chunks"][0] for one in asked if one["send"] + one["chunks"][0] > 10],
        [b - a for one in asked for a, b in pairwise(one["chunks"]) if one["send"] + b > 10],
        [one["chunks"][-1] for one in asked if one.get("done") and one["send"] + one["chunks"][-1] > 10],
    )


def compared(run: Run, before: str, after: str) -> dict[str, Any]:
    code, out, err = run("compare", real(before), real(after), "--format", "json")
    assert (code, err) == (0, "")
    (found,) = json.loads(out)["models"]
    return dict(found)


def subjects(found: dict[str, Any]) -> dict[str, set[str]]:
    """What its sentence calls better and worse: of the phrases before any reason."""
    said = found["sentence"].partition(": ")[2].partition(". ")[0]
    verbs = {"better": (" fell", " are gone"), "worse": (" rose", " are new")}
    return {
        outcome: {
            phrase.split()[0] for phrase in said.split("; ") if any(verb in phrase.partition("(")[0] for verb in words)
        }
        for outcome, words in verbs.items()
    }


def test_every_pair_that_the_readme_names_is_here() -> None:
    readme = " ".join((RECORDINGS / "README.md").read_text().split())
    named = readme.partition("For `phasewatch compare`: ")[2].partition(".")[0]
    assert named.count(" and ") == len(PAIRS)
    assert all(f"{before} and {after}" in named for before, after, *_ in PAIRS)


@pairs
def test_a_pair_is_told_as_its_clients_measured_it(
    run: Run, before: str, after: str, conclusion: str, better: str, worse: str, why: str
) -> None:
    found = compared(run, before, after)
    assert found["conclusion"] == conclusion
    assert subjects(found) == {"better": set(better.split()), "worse": set(worse.split())}
    assert any(reason.startswith(why) for reason in found["why"]) or not why
    assert ("at the same concurrency" in found["sentence"]) == (before in CLOSED)
    # Clients have no TPOT; a median between two groups of requests flips with their mix and decides nothing.
    sure = [
        row
        for row in found["rows"]
        if row["outcome"] in _TURNED and row["name"].startswith(("ttft", "itl", "e2e")) and row["name"][-3:] != "p50"
    ]
    assert sure
    for row in sure:
        there, then = clients(before).value(row["name"]), clients(after).value(row["name"])
        assert (then < there) == (row["outcome"] == "better"), (row["name"], there, then)


@pairs
def test_a_pair_turned_round_is_told_the_other_way(
    run: Run, before: str, after: str, conclusion: str, better: str, worse: str, why: str
) -> None:
    found = compared(run, after, before)
    assert found["conclusion"] == _TURNED.get(conclusion, conclusion)
    assert subjects(found) == {"better": set(worse.split()), "worse": set(better.split())}
