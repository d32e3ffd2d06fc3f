"""When a verdict is taken: opinions agree by time, and by what all of them prove."""

from collections.abc import Iterable

import pytest

from phasewatch.core.diagnosis.progress import Held, hold

KV, EVICTED = "queue_kv_cache", "decode_preemption"


def held_after(opinions: Iterable[tuple[str, ...]], interval: float = 2.0, first: str = "unknown") -> list[Held]:
    """Opinions as the verdicts that they prove, the leading one first; "unknown" and "healthy" prove nothing."""
    held, seen = Held(first, 0.0), []
    for number, proven in enumerate(opinions, 1):
        causes = [one for one in proven if one not in ("unknown", "healthy")]
        held = hold(held, proven[0], number * interval, at_once=False, seconds=10.0, proven=causes)
        seen.append(held)
    return seen


@pytest.mark.parametrize("interval", [1.0, 2.0, 5.0, 10.0])
def test_a_verdict_is_taken_once_every_opinion_of_ten_seconds_agreed(interval: float) -> None:
    seen = held_after([(KV,)] * 20, interval)
    taken = next(number for number, held in enumerate(seen, 1) if held.verdict == KV)
    assert (taken - 1) * interval == pytest.approx(10.0)
    assert seen[taken - 1].since == interval


def test_verdicts_that_take_turns_agree_on_the_one_that_all_of_them_prove() -> None:
    turns = [(KV, EVICTED), (EVICTED,), (EVICTED,), (KV, EVICTED), (KV, EVICTED), (EVICTED,)] * 4
    seen = held_after(turns)
    assert [held.verdict for held in seen[:5]] == ["unknown"] * 5
    assert {held.verdict for held in seen[5:]} == {EVICTED}
    assert (seen[-1].since, seen[-1].previous) == (2.0, "unknown")


def test_what_is_proven_beside_others_and_never_leads_is_not_taken() -> None:
    seen = held_after([("prefill_long_prompts", EVICTED), (KV, EVICTED)] * 12, first=KV)
    assert {held.verdict for held in seen} == {KV}


def test_a_verdict_that_was_shown_until_now_is_not_forgotten_at_once() -> None:
    seen = held_after(([(KV,), (EVICTED,)] * 6 + [(EVICTED,)] * 12), first=KV)
    taken = next(number for number, held in enumerate(seen, 1) if held.verdict == EVICTED)
    assert taken * 2.0 - 24.0 == pytest.approx(10.0)


def test_verdicts_that_share_nothing_agree_on_nothing() -> None:
    assert {held.verdict for held in held_after([(KV,), (EVICTED,)] * 12)} == {"unknown"}


def test_a_verdict_that_is_still_proven_stays_until_another_leads_for_long() -> None:
    seen = held_after([(KV, EVICTED)] * 4 + [(EVICTED, KV)] * 2 + [(KV, EVICTED)] * 6, first=EVICTED)
    assert {held.verdict for held in seen[:-1]} == {EVICTED}
    assert (seen[-1].verdict, seen[-1].since) == (KV, 14.0)


def test_health_that_comes_and_goes_does_not_end_trouble_that_does() -> None:
    assert {held.verdict for held in held_after([("healthy",), (KV,)] * 12, first=KV)} == {KV}
