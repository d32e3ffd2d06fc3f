"""Rule of evidence 8: life events, and what is cold after them; cases of ../shared/cases-2.md, by their names there."""

import pytest

from case_pages import Richer, advice
from vllm_pages import Scene, Server, answer


def test_events_of_a_life_stand_in_the_report_with_what_changed() -> None:
    server = Server()
    scene = Scene(server)

    def busy() -> None:
        server.engine.set(running=2).serves(4)

    assert [one.kind for one in scene.after(60, busy).events] == []
    server.restart(70)
    server.engine.blocks, server.engine.prefix_caching = 2000, False
    report = scene.after(10, busy)
    assert [(one.kind, one.before, one.after) for one in report.events] == [
        ("restart", 1.7e9, 1.7e9 + 70),
        ("capacity", 64_000, 32_000),
        ("configuration", "enable_prefix_caching=True", "enable_prefix_caching=False"),
    ]
    assert {one.at for one in report.events} == {70}
    server.engine.set(running=0, awake=0)
    scene.rounds(30)
    server.engine.set(awake=1)
    assert [one.kind for one in scene.after(10).events][3:] == ["wake_up"]


# --- KV hand-overs ------------------------------------------------------------------------------------------------


def handing_over(server: Richer, family: str, lost: int, transfers: int = 20) -> None:
    server.engine.set(running=2).serves(transfers)
    server.adds(family, lost)


@pytest.mark.parametrize(
    "family",
    [
        "nixl_num_failed_transfers_total", "nixl_num_failed_notifications_total", "nixl_num_kv_expired_reqs_total",
        "mooncake_num_failed_recvs_total", "kv_load_failures_total",
    ],
)  # fmt: skip
def test_failing_hand_overs_are_a_symptom_of_their_own_though_latencies_are_fine(family: str) -> None:
    server = Richer()
    scene = Scene(server)
    assert answer(scene.after(60, lambda: handing_over(server, family, 0))) == "healthy"
    report = scene.after(60, lambda: handing_over(server, family, 2))
    assert answer(report) == "kv_transfer"
    assert [one.objective for one in report.symptoms] == ["kv_handovers_failing"]
    assert "12 " in report.summary
    leases = "lease" in advice(report)
    assert leases == ("expired" in family)
    assert ("network between prefill and decode" in advice(report)) == (not leases)
    # They stopped: the window still has them, and then no longer.
    easing = scene.after(10, lambda: handing_over(server, family, 0))
    assert easing.causes[0].easing
    assert answer(scene.after(80, lambda: handing_over(server, family, 0))) == "healthy"


@pytest.mark.parametrize("lost", [1, 3])
def test_one_lost_hand_over_of_many_is_no_symptom(lost: int) -> None:
    server = Richer()
    scene = Scene(server)
    scene.after(60, lambda: handing_over(server, "nixl_num_failed_transfers_total", 0, 100))
    scene.round(lambda: handing_over(server, "nixl_num_failed_transfers_total", lost, 100))
    report = scene.after(30, lambda: handing_over(server, "nixl_num_failed_transfers_total", 0, 100))
    assert answer(report) == "healthy"


@pytest.mark.parametrize("role", ["decode", None])
def test_a_decode_engine_that_computes_its_prompts_has_lost_its_prefill_side(role: str | None) -> None:
    server = Server()
    scene = Scene(server, roles={} if role is None else {"s": role})
    report = scene.after(90, lambda: server.engine.set(running=2).serves(2, prefill=6.0, prompt=6000))
    assert answer(report) == ("prefill_long_prompts" if role is None else "kv_transfer")
    assert ("check the connector on both sides" in advice(report)) == (role is not None)
