"""Numbers as people read them."""

import pytest

from phasewatch.core.formatting import number, percent, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"), (0.0, "0 s"), (0.000001, "under 0.01 ms"), (0.00004, "0.04 ms"), (0.0408, "40.8 ms"),
        (0.25, "250 ms"), (0.9999, "1 s"), (2.5, "2.5 s"), (45.25, "45.2 s"), (240.0, "240 s"), (640.0, "11 min"),
        (9000.0, "2.5 h"), (-1.5, "-1.5 s"),
    ],
)  # fmt: skip
def test_times_have_three_figures_and_the_unit_that_reads_best(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"), (0.0, "0 %"), (0.0001, "under 0.1 %"), (0.00783, "0.8 %"), (0.07, "7 %"), (0.071, "7.1 %"),
        (0.0999, "10 %"), (0.93, "93 %"), (1.0, "100 %"),
    ],
)  # fmt: skip
def test_a_ratio_is_percent_with_a_place_more_below_ten(value: float | None, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0.0, "0"),
        (3.0, "3"),
        (24576.0, "24,576"),
        (0.72, "0.72"),
        (1234.5, "1,234"),
        (12.34, "12.3"),
    ],
)
def test_large_numbers_are_grouped_and_small_ones_have_three_figures(value: float | None, text: str) -> None:
    assert number(value) == text
