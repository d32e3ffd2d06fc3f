"""What an operator may set is checked with its meaning, whoever sets it."""

import math
from dataclasses import MISSING, fields

import pytest

from phasewatch.core.durations import LONGEST_SECONDS
from phasewatch.core.settings import Allowed, Limit, ObjectiveError, Settings, Thresholds, parse_objectives

THRESHOLDS = {one.name: one for one in fields(Thresholds)}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_every_threshold_says_what_it_may_be_and_its_default_is_that(name: str) -> None:
    allowed = THRESHOLDS[name].metadata["allowed"]
    assert isinstance(allowed, Allowed)
    assert THRESHOLDS[name].default is not MISSING
    assert allowed.holds(THRESHOLDS[name].default)


@pytest.mark.parametrize("name", THRESHOLDS)
def test_t04_a_threshold_outside_its_range_is_refused_with_the_range(name: str) -> None:
    default, allowed = THRESHOLDS[name].default, THRESHOLDS[name].metadata["allowed"]
    whole = isinstance(default, int)
    too_low = allowed.low - 1 if allowed.least else allowed.low
    too_high = allowed.high * 2 if allowed.most else allowed.high
    for wrong in (too_low, too_high, -1, 0 if name not in ("tie_score", "steady_difference") else 1):
        with pytest.raises(ValueError, match=f"^{name}: must be .*; the default is {default:g}$") as caught:
            Thresholds(**{name: int(wrong) if whole else wrong})
        assert str(allowed) in str(caught.value)
    for odd in (math.nan, math.inf, "1", True, None):
        with pytest.raises(ValueError, match=f"^{name}: must be "):
            Thresholds(**{name: odd})


@pytest.mark.parametrize(
    "change", [{"stalled_share": 0}, {"symptom_ratio": 0}, {"down_failures": 0}, {"alike_ratio": 1}]
)
def test_t04_what_broke_every_evaluation_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be a"):
        Thresholds(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("windows", [(), (0.0,), (-60.0,), (math.nan,), (60.0, math.inf), (LONGEST_SECONDS * 2,)])
def test_windows_that_cannot_be_are_refused(windows: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="at least one, each above 0"):
        Settings(windows=windows)


@pytest.mark.parametrize("limits", [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (1.0, math.nan)])
def test_limits_that_cannot_be_are_refused(limits: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0, critical not below warning"):
        Limit(*limits)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ((":ttft_p99=1s",), "write NAME=DURATION or MODEL:NAME=DURATION"),  # a model was meant
        (("ttft_p99=1s", "ttft_p99=2s"), "'ttft_p99=2s': ttft_p99 is given twice; keep one"),
        (("m:itl_p99=1s", "m:itl_p99=1s"), "m:itl_p99 is given twice; keep one"),
    ],
)
def test_objectives_of_which_one_would_be_ignored_are_refused(texts: tuple[str, ...], says: str) -> None:
    with pytest.raises(ObjectiveError, match=says):
        parse_objectives(texts)


def test_an_objective_may_be_given_for_all_models_and_for_one() -> None:
    objectives = parse_objectives(["ttft_p99=1s", "a:b:ttft_p99=2s"])
    assert [objectives.of(model)["ttft_p99"].warning for model in ("m", "a:b")] == [1, 2]
