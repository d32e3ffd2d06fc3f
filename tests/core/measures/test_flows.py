"""Flows that add up, those that do not, and windows that cannot tell."""

from case_pages import advisory, kinds
from phasewatch.core.model import EngineReport
from vllm_pages import Scene, Server


def figures(report: EngineReport) -> tuple[float | None, float | None]:
    assert report.numbers is not None
    return report.numbers.queue.arrivals_per_second, report.numbers.queue.gave_up_ratio


def test_more_finishes_than_first_tokens_and_requests_in_flight_do_not_add_up() -> None:
    server = Server()
    scene = Scene(server)

    def traffic() -> None:
        server.engine.set(running=2).serves(4)
        server.engine.finishes(6)

    report = scene.after(90, traffic)
    assert figures(report) == (None, None)
    assert "60 requests finished, but only 24 got a first token" in advisory(report, "inconsistent_flows")
    fleet = scene.round(traffic)
    assert [(one.kind, one.present) for one in fleet.targets[0].anomalies] == [("inconsistent_flows", True)]
    report = scene.after(90, lambda: server.engine.set(running=2).serves(4))
    assert figures(report) == (0.4, 0.0)
    assert "inconsistent_flows" not in kinds(report)


def test_first_tokens_of_requests_that_no_answer_and_no_gauge_knows_do_not_add_up() -> None:
    server = Server()
    report = Scene(server).after(
        90, lambda: (server.engine.set(running=2).serves(4), server.engine.first_tokens(0.1, 6))
    )
    assert figures(report) == (None, None)
    assert "got a first token, but 24 HTTP requests were answered" in advisory(report, "inconsistent_flows")


def test_clients_that_leave_in_mid_answer_add_up() -> None:
    server = Server()

    def traffic() -> None:
        server.engine.set(running=2).serves(4)
        server.engine.first_tokens(0.1, 6)
        server.answers(6)

    report = Scene(server).after(90, traffic)
    assert "inconsistent_flows" not in kinds(report)
    assert figures(report) == (1.0, 0.6)


def test_a_window_with_a_restart_tells_no_share_that_gave_up() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(60, lambda: server.engine.set(running=2).serves(4))
    server.restart(scene.now)
    report = scene.after(30, lambda: server.engine.set(running=2).serves(4))
    assert figures(report)[1] is None
    assert "inconsistent_flows" not in kinds(report)
    assert figures(scene.after(70, lambda: server.engine.set(running=2).serves(4)))[1] == 0.0
