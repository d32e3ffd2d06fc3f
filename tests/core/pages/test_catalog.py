"""The table of signals holds together: names can be told apart, and every row says what its kind needs."""

from collections import Counter
from itertools import chain

import pytest

from phasewatch.core.pages.catalog import BY_NAME, CATALOG, CORE_SIGNALS, PREFIXES, Signal


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
