import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewatch.core.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("300ms", 0.3),
        ("2.5s", 2.5),
        ("1m30s", 90.0),
        ("5m", 300.0),
        ("1h", 3600.0),
        ("1d2h3m4s5ms", 93784.005),
        ("0s", 0.0),
        (" 10s ", 10.0),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "10 s", "-1s", "1s1m", "1s1s", "1e3s", ".5s", "5 parsecs", "10S", "\u0661s", "9" * 400 + "s"],
)
def test_anything_else_is_refused_with_advice(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid duration .*; use 250ms or 1m30s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.25, "250ms"), (1, "1s"), (2.5, "2.5s"), (60, "1m"), (90, "1m30s"), (300, "5m"), (3600, "1h"),
        (3723.5, "1h2m3.5s"), (0.9996, "1s"), (59.9999, "1m"),
    ],
)  # fmt: skip
def test_a_duration_is_written_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=10**9))
def test_what_is_written_is_read_back(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000, abs=1e-9)


@pytest.mark.parametrize("text", ["99999999999h", "3650d1ms", "999999999999999999999999999999999999999h"])
def test_t09_what_is_longer_than_ten_years_is_a_mistaken_unit(text: str) -> None:
    with pytest.raises(ValueError, match="use at most 3650d, and check its unit"):
        parse_duration(text)
    assert parse_duration("3650d") == 3650 * 86400
