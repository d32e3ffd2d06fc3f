"""What two pages in turn say of an engine's life."""

import pytest

from phasewatch.core.measures.events import events, first_events
from phasewatch.core.model import Event, Histogram, Snapshot

CONFIG = {"block_size": "16", "num_gpu_blocks": "4000", "cache_dtype": "auto"}
TTFT = Histogram((1.0, float("inf")), (3.0, 3.0), 0.5)


def page(at: float = 10.0, labels: dict[str, str] | None = None, **gauges: float) -> Snapshot:
    return Snapshot(at, gauges, {"generation_tokens": 40.0}, {"ttft": TTFT}, labels or {})


def between(before: Snapshot, after: Snapshot, *, restarted: bool = False) -> list[Event]:
    return list(events(before, after, restarted=restarted))


def test_pages_that_differ_in_numbers_only_are_no_event() -> None:
    assert between(page(labels=CONFIG, running=3.0), page(20, CONFIG.copy(), running=9.0)) == []


def test_a_restart_names_when_the_processes_began() -> None:
    found = between(page(start_time=1.7e9), page(20, start_time=1.7e9 + 15), restarted=True)
    assert found == [Event(20, "restart", 1.7e9, 1.7e9 + 15)]
    assert between(page(), page(20), restarted=True) == [Event(20, "restart", None, None)]


def test_only_an_engine_that_slept_wakes_up() -> None:
    assert [one.kind for one in between(page(awake=0.0), page(20, awake=1.0))] == ["wake_up"]
    assert between(page(awake=1.0), page(20, awake=0.0)) == []
    assert between(page(awake=0.0), page(20)) == []


def test_capacity_is_told_in_tokens_and_not_again_as_configuration() -> None:
    before = page(labels=CONFIG, kv_blocks=4000.0, block_size=16.0)
    after = page(20, CONFIG | {"num_gpu_blocks": "2000"}, kv_blocks=2000.0, block_size=16.0)
    assert between(before, after) == [Event(20, "capacity", 64_000.0, 32_000.0)]


def test_configuration_names_the_values_that_changed() -> None:
    assert between(page(labels=CONFIG), page(20, CONFIG | {"cache_dtype": "fp8"})) == [
        Event(20, "configuration", "cache_dtype=auto", "cache_dtype=fp8")
    ]


def test_other_keys_after_a_restart_are_another_version() -> None:
    other = {"block_size": "16", "num_gpu_blocks": "4000", "mamba_block_size": "None"}
    found = between(page(labels=CONFIG), page(20, other), restarted=True)
    assert found[1:] == [Event(20, "version", "cache_dtype", "mamba_block_size")]
    # A page that lacks the family is no other version, nor is one that came to have it.
    assert [one.kind for one in between(page(labels=CONFIG), page(20), restarted=True)] == ["restart"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, "a", True), ("", "a", True), ("a", "a, b", True), ("a, b", "b", False), ("a", None, False),
        (None, "", False),
    ],
)  # fmt: skip
def test_an_adapter_that_was_not_there_before_is_an_event(before: str | None, after: str | None, told: bool) -> None:
    old, new = ({} if text is None else {"adapters": text} for text in (before, after))
    assert between(page(labels=old), page(20, new)) == ([Event(20, "adapters", before, after)] if told else [])


def test_a_first_page_is_a_start_only_where_nothing_was_served_yet() -> None:
    empty = Histogram((1.0, float("inf")), (0.0, 0.0), 0.0)
    fresh = Snapshot(10.0, {"start_time": 1.7e9}, {"generation_tokens": 0.0}, {"ttft": empty})
    assert list(first_events(fresh)) == [Event(10.0, "start", None, 1.7e9)]
    assert list(first_events(page())) == []
    assert list(first_events(Snapshot(10.0, {"running": 0.0}, {}, {}))) == []
    assert [one.kind for one in first_events(fresh, "old", "new")] == ["model", "start"]
