"""The table of numbers against all that must follow it: who adds a number is told here what was forgotten."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

import pytest

import fleets
from phasewatch.core.measures.quantile import PERCENTILES
from phasewatch.core.measures.window import step, window
from phasewatch.core.model import Estimate, KvCache, Latency, Numbers, Queue, Snapshot, Window
from phasewatch.core.pages.catalog import BY_NAME
from phasewatch.core.report.document import document
from phasewatch.core.report.measure_table import (
    LATENCIES,
    MEASURES,
    MOST,
    NOW_ROWS,
    PHASES,
    POOLED,
    SUM,
    WINDOW_ROWS,
    Measure,
    merged,
)
from phasewatch.core.settings import FAMILIES, STATISTICS

PATHS = [measure.path for measure in MEASURES]


def leaves(value: object, path: str = "") -> Iterator[str]:
    """Every field under Numbers; a percentile is one of them."""
    if not is_dataclass(value) or isinstance(value, Estimate):
        yield path
        return
    for field in fields(value):
        yield from leaves(getattr(value, field.name), f"{path}.{field.name}" if path else field.name)


def test_every_field_of_numbers_has_a_row_and_every_row_its_field() -> None:
    of_rows = {path.removesuffix(".value").removesuffix(".low").removesuffix(".high") for path in PATHS}
    assert of_rows == set(leaves(fleets.FULL)) - {"window_seconds"}
    assert len(PATHS) == len(set(PATHS))


def test_every_row_reads_a_number_that_a_full_engine_has() -> None:
    assert [measure.path for measure in MEASURES if measure.of(fleets.FULL) is None] == []


def test_a_row_stands_in_the_document_at_its_path() -> None:
    shown = document(fleets.SERVING)
    for row in (*shown["engines"], *shown["models"]):
        for path in PATHS:
            block = row
            for name in path.split("."):
                assert name in block, path
                block = block[name] if block[name] is not None else dict.fromkeys(("value", "low", "high"))


def test_a_name_and_its_labels_stand_for_one_row() -> None:
    named = [(measure.name, tuple(measure.labels.items())) for measure in MEASURES]
    assert len(named) == len(set(named))
    assert len({row.name for row in (*WINDOW_ROWS, *NOW_ROWS)}) == len(WINDOW_ROWS) + len(NOW_ROWS)


def test_signals_of_a_row_are_in_the_catalog() -> None:
    assert {signal for measure in MEASURES for signal in measure.signals} <= set(BY_NAME)
    assert all(measure.signals for measure in MEASURES)


def test_latencies_phases_and_percentiles_are_the_same_in_every_list() -> None:
    assert tuple(signal for signal, _, _ in LATENCIES) == FAMILIES
    assert [name for name, _ in PHASES] == [field.name for field in fields(fleets.FULL.phases)]
    names = tuple(name for name, _ in PERCENTILES)
    assert ("mean", *names) == STATISTICS
    assert tuple(field.name for field in fields(Latency)) == ("count", "mean", *names)


def test_a_unit_is_what_the_name_of_the_gauge_ends_in() -> None:
    endings = {
        "seconds": "_seconds", "ratio": "_ratio", "requests": "_requests", "per_second": "_per_second",
        "count": "_observations", "flag": "_censored",
    }  # fmt: skip
    for measure in MEASURES:
        if measure.unit == "tokens":
            assert "_tokens" in measure.name or measure.name.endswith("_length_mean")
        else:
            assert measure.name.endswith(endings[measure.unit]), measure.name


# --- merging -------------------------------------------------------------------------------------------------------


def part(http: float = 0.0) -> Window:
    first, last = (Snapshot(at, {}, {"http_finishes": count}, {}) for at, count in ((0.0, 0.0), (10.0, http)))
    made = window((step(first, last),))
    assert made is not None
    return made


def test_pooled_numbers_stay_and_the_others_are_joined_as_their_row_says() -> None:
    own = [
        replace(
            fleets.FULL,
            prefill_time_ratio=0.2,
            queue=Queue(running=4.0, growth_per_second=0.5, gave_up_ratio=0.1),
            kv_cache=KvCache(usage_ratio=0.3, capacity_tokens=1000.0, time_to_full_seconds=90.0),
        ),
        replace(
            fleets.FULL,
            prefill_time_ratio=0.4,
            queue=Queue(running=2.0, growth_per_second=-0.25, gave_up_ratio=0.4),
            kv_cache=KvCache(usage_ratio=0.9, capacity_tokens=3000.0),
        ),
    ]
    pooled = replace(fleets.FULL, queue=Queue(admissions_per_second=7.0), kv_cache=KvCache(preemptions_per_second=1.0))
    found = merged(pooled, own, [part(30.0), part(10.0)])
    assert found.ttft_seconds == fleets.FULL.ttft_seconds
    assert found.prefill_time_ratio == pytest.approx(0.3)
    assert (found.queue.running, found.queue.growth_per_second) == (6.0, 0.25)
    assert found.queue.gave_up_ratio == pytest.approx((0.1 * 30 + 0.4 * 10) / 40)
    assert found.queue.admissions_per_second == 7.0
    assert found.kv_cache == KvCache(0.9, 4000.0, 1.0, 90.0)


def test_where_nobody_answered_nobody_gave_up() -> None:
    own = [replace(fleets.FULL, queue=Queue(gave_up_ratio=0.0))] * 2
    assert merged(fleets.FULL, own, [part(), part()]).queue.gave_up_ratio == 0.0


@pytest.mark.parametrize("measure", [one for one in MEASURES if one.merge.join is not None], ids=lambda one: one.path)
def test_one_engine_merged_alone_is_itself(measure: Measure) -> None:
    alone = merged(Numbers(60.0), [fleets.FULL], [part(5.0)])
    assert measure.of(alone) == pytest.approx(measure.of(fleets.FULL))


def test_what_one_engine_does_not_know_is_unknown_of_a_sum_but_not_of_a_maximum() -> None:
    bare = replace(fleets.FULL, queue=Queue(), kv_cache=KvCache())
    found = merged(fleets.FULL, [fleets.FULL, bare], [part(), part()])
    for measure in MEASURES:
        if measure.merge is SUM:
            assert measure.of(found) is None, measure.path
        elif measure.merge is MOST or measure.merge is POOLED:
            assert measure.of(found) == measure.of(fleets.FULL), measure.path
