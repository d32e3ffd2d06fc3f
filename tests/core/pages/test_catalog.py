"""The table of signals holds together: names can be told apart, and every row says what its kind needs."""

import math
import re
from collections import Counter
from itertools import chain

import pytest

from phasewatch.core.pages.catalog import BOUNDS, BY_NAME, CATALOG, CORE_SIGNALS, MOST, PREFIXES, Bounds, Signal
from support import ROOT


def test_every_signal_has_one_row_and_at_least_one_name() -> None:
    assert [name for name, rows in Counter(row.name for row in CATALOG).items() if rows > 1] == []
    assert [row.name for row in CATALOG if not row.names or len(set(row.names)) != len(row.names)] == []


def test_no_two_rows_read_the_same_samples() -> None:
    """Same family and same selection would be one number under two names."""
    seen = Counter((name, tuple(sorted(row.where.items()))) for row in CATALOG for name in row.names)
    assert [key for key, rows in seen.items() if rows > 1] == []


@pytest.mark.parametrize("row", [row for row in CATALOG if row.kind == "counter"], ids=lambda row: row.name)
def test_a_counter_is_named_as_classic_text_shows_it_and_joins_by_sum_where_processes_share_it(row: Signal) -> None:
    assert all(name.endswith("_total") for name in row.names)
    assert row.merge == "sum" or row.name == "cpu_seconds"


def test_creation_times_are_read_by_the_signal_created_alone_a13() -> None:
    assert [row.name for row in CATALOG if any("_created" in name for name in row.names)] == ["created"]


def test_names_carry_no_prefix_of_their_own() -> None:
    assert [name for name in chain.from_iterable(row.names for row in CATALOG) if name.startswith(PREFIXES)] == []


def test_the_five_are_rows_of_the_catalog_that_belong_to_an_engine() -> None:
    assert {BY_NAME[name].scope for name in CORE_SIGNALS} == {"engine"}


def test_only_counters_can_be_lazy() -> None:
    assert {row.kind for row in CATALOG if row.lazy} == {"counter"}


def test_the_rows_of_one_family_have_one_unit() -> None:
    units = {(name, row.unit) for row in CATALOG if row.kind not in ("info", "labels") for name in row.names}
    assert [name for name, rows in Counter(name for name, _ in units).items() if rows > 1] == []


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_a_number_of_any_kind_is_believed_within_its_bounds_only(bounds: Bounds) -> None:
    assert [bounds.believed(value) for value in (0.0, 0.5, 1.0, bounds.high)] == [0, 0.5, 1, bounds.high]
    for wrong in (-1.0, -1e-300, -math.inf, math.inf, math.nan, 1e300, bounds.high * 1.001):
        assert bounds.believed(wrong) is None
    assert str(bounds.believed(-0.0)) == "0.0"


def test_a_ratio_that_rounding_carried_over_one_is_one() -> None:
    assert BOUNDS["ratio"].believed(1.0000001) == 1
    assert BOUNDS["ratio"].believed(1.0001) is None


def test_a_float_counts_one_by_one_up_to_the_most_that_is_believed() -> None:
    assert MOST - 1 != MOST == MOST + 1


def test_every_signal_is_read_by_somebody() -> None:
    """A name in a string of its own, or among others in one: windows are asked by name."""
    folder = ROOT / "src" / "phasewatch"
    texts = [path.read_text() for path in folder.rglob("*.py") if path.name != "catalog.py"]
    strings = {word for text in texts for quoted in re.findall(r'"([a-z0-9_ ]+)"', text) for word in quoted.split()}
    # What labels say as text is under the labels' own names, but for the rows that name some.
    named = [row for row in CATALOG if row.kind != "labels" or row.where]
    assert [row.name for row in named if row.name not in strings] == []
