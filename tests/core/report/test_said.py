"""Numbers in the words of their rows."""

import json
from dataclasses import replace

import fleets
from phasewatch.core.model import STATES, KvCache, Queue, Tokens
from phasewatch.core.report.measure_table import MEASURES
from phasewatch.core.report.said import GROUPS, facts, vocabulary


def test_every_row_with_words_is_of_a_group_that_is_shown() -> None:
    shown = tuple(f"{group}." for group, _ in GROUPS)
    assert [measure.path for measure in MEASURES if measure.said and not measure.path.startswith(shown)] == []


def test_an_engine_is_told_group_by_group() -> None:
    told = replace(fleets.FULL, kv_cache=KvCache(0.42, 120_000.0, 0.0, 830.0))
    assert dict(facts(told)) == {
        "Queue": "64 running, 31 waiting, +0.40/s, 2 deferred, expected wait 4.5 s, 7.2/s arrive, 6.9/s admitted,"
        " 5 % gave up",
        "KV cache": "42 % in use, 120,000 tokens in all, full in 14 min",
        "Tokens": "prompt 450, answer 121, 840/s generated, prefix hits 23 %",
    }


def test_what_is_unknown_or_nothing_to_speak_of_is_not_said() -> None:
    quiet = replace(
        fleets.FULL,
        queue=Queue(running=0.0, growth_per_second=0.004, expected_wait_seconds=0.0, gave_up_ratio=0.0),
        kv_cache=KvCache(usage_ratio=0.0, preemptions_per_second=0.0, time_to_full_seconds=3601.0),
        tokens=Tokens(),
    )
    assert dict(facts(quiet)) == {"Queue": "0 running", "KV cache": "0 % in use"}


def test_a_lower_bound_is_said_as_one_and_a_fall_has_its_sign() -> None:
    waiting = Queue(growth_per_second=-0.25, expected_wait_seconds=120.0, expected_wait_censored=True)
    assert dict(facts(replace(fleets.FULL, queue=waiting)))["Queue"] == "-0.25/s, expected wait over 120 s"


def test_the_web_page_gets_the_words_of_every_row_that_has_some() -> None:
    told = json.loads(json.dumps(vocabulary(), allow_nan=False))
    paths = {one["path"] for group in told["groups"] for one in group["numbers"]}
    assert paths == {measure.path for measure in MEASURES if measure.said}


def test_the_web_page_gets_a_text_for_every_state() -> None:
    told = json.loads(json.dumps(vocabulary(), allow_nan=False))
    assert set(told["states"]) == set(STATES)
    assert set(told["trouble"]) < set(STATES)
