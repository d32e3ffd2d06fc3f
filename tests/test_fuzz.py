"""Odd pages cost what they hold, and nothing else: a few hundred of the sequences that `make fuzz` runs."""

import random

import pytest

from benchmarks.fuzz import FOUND, MUTATIONS, sequence

SEQUENCES = 150
BLOCKS = 4  # so that they can run side by side


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_once_failed_fails_no_more(seed: int) -> None:
    assert sequence(seed) == ()


@pytest.mark.parametrize("block", range(BLOCKS))
def test_odd_pages_raise_nothing_and_leave_every_number_within_its_kind(block: int) -> None:
    failed = {seed: found for seed in range(block, SEQUENCES, BLOCKS) if (found := sequence(seed))}
    assert failed == {}


@pytest.mark.parametrize("mutate", dict.fromkeys(MUTATIONS), ids=lambda mutate: mutate.__name__.strip("_"))
def test_every_mutation_changes_a_page_in_the_same_way_for_the_same_seed(mutate) -> None:  # type: ignore[no-untyped-def]
    page = [f'vllm:prompt_tokens_total{{engine="0",model_name="m{at}"}} {at}.0\n' for at in range(9)]
    page.append('vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 3.0\n')
    changed = []
    for seed in [*range(20)] * 2:
        lines = list(page)
        mutate(random.Random(seed), lines)
        changed.append(lines)
    assert changed[:20] == changed[20:]
    assert any(lines != page for lines in changed)
