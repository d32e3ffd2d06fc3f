"""What is remembered of an engine's paces does not depend on how often it is asked for."""

import random

import pytest

from phasewatch.core.measures.past import Compared, Moment, Past
from phasewatch.core.model import Histogram, Step
from phasewatch.core.settings import Thresholds

SECONDS = 10.0
EDGES = (0.01, 0.1, float("inf"))
NOW = Moment(0.0, 4.0, 8.0, 500.0, 100.0, 0.03, 0.03, False, None)


def interval(at: int, running: int, milliseconds: int) -> Step:
    """Tokens of so many streams, one every so often; nobody is admitted but in the first interval."""
    tokens = 1000.0 * running / milliseconds * SECONDS
    itl = Histogram(EDGES, (0.0, tokens, tokens), tokens * milliseconds / 1000)
    first = Histogram(EDGES, (0.0, 1.0, 1.0), 0.05)
    page = {"running": float(running), "start_time": 1.0}
    prompts = {"prompt_tokens": 300.0 if at == 0 else 0.0, "computed_prompt_tokens": 0.0}
    histograms = {"itl": itl, "iteration_tokens": Histogram(EDGES, (0.0, 0.0, tokens / running), tokens)}
    if at == 0:
        histograms["ttft"] = first
    return Step(at * SECONDS, (at + 1) * SECONDS, page, page, prompts, histograms, False)


def said(past: Past, before: float) -> list[object]:
    return [
        past.compared(NOW, before, shorter=False),
        past.compared(NOW, before, shorter=True),
        *(past.step_seconds(speculating=one) for one in (None, False, True)),
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_asking_after_every_interval_changes_no_later_answer(seed: int) -> None:
    rng = random.Random(seed)
    asked, silent = Past(Thresholds()), Past(Thresholds())
    for at in range(700):  # more of a load than is kept
        one = interval(at, rng.choice([1, 2, 4, 5, 16]), rng.randint(15, 60))
        for past in (asked, silent):
            past.remember_step(one)
            if at == 0:
                past.remember(NOW)
        answers = said(asked, at * SECONDS - 60)
        if at % 100 == 99:
            assert answers == said(silent, at * SECONDS - 60)
            assert answers[0] != Compared()
            assert answers[2] is not None
