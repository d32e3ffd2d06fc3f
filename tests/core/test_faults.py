"""What must not break an evaluation: absent signals (T2), nothing observed (T6), and our own mistakes."""

import pytest

from phasewatch.core.settings import Objectives, Settings
from phasewatch.core.watch import Watcher
from vllm_pages import Scene, Server, answer

WAITING = "vllm:num_requests_waiting"


class Patchy(Server):
    """A server whose page can lose lines, or have them say NaN. lost: how they begin."""

    lost: tuple[str, ...] = ()
    with_nan: bool = False

    def text(self) -> str:
        kept = [line for line in super().text().splitlines() if not line.startswith(self.lost or ("\n",))]
        nan = [line.rpartition(" ")[0] + " NaN" for line in super().text().splitlines() if line.startswith(self.lost)]
        return "".join(f"{line}\n" for line in (*kept, *(nan if self.with_nan and self.lost else ())))


def queueing(server: Server) -> None:
    server.engine.set(running=4, waiting=12, kv=0.2).serves(4, queue=12.0, batch=4)


@pytest.mark.parametrize("with_nan", [False, True])
@pytest.mark.parametrize("lost", [WAITING, "vllm:num_requests_running", "vllm:kv_cache_usage_perc"])
def test_t2_a_page_that_lacks_a_gauge_after_a_real_queue_is_judged_without_it(lost: str, *, with_nan: bool) -> None:
    server = Patchy()
    server.with_nan = with_nan
    scene = Scene(server)
    assert answer(scene.after(90, lambda: queueing(server))) == "queue_batch_limit"
    server.lost = (lost,)
    (report,) = scene.round(lambda: queueing(server)).engines
    assert report.state == "serving"
    assert report.windows[60.0].queue.waiting == (None if lost == WAITING else 12)
    assert any(name in report.missing for name in ("waiting", "running", "kv_usage"))
    server.lost = ()
    assert answer(scene.after(20, lambda: queueing(server))) == "queue_batch_limit"


def test_t6_a_request_that_runs_without_a_token_is_nothing_to_judge_yet() -> None:
    server = Server()
    scene = Scene(server)
    scene.after(30)
    server.engine.set(running=1)
    (report,) = scene.round().engines
    assert (report.state, report.verdict, report.confidence) == ("serving", None, None)
    assert report.summary == "Nothing to judge yet: no observation of TTFT or ITL in this window."


def test_t6_tokens_that_flow_while_every_histogram_stands_still_are_not_healthy() -> None:
    server = Server()
    scene = Scene(server)

    def only_counted() -> None:
        server.engine.set(running=1)
        server.engine.counters["generation_tokens_total"] += 50

    report = scene.after(90, only_counted)
    assert (report.state, report.verdict) == ("serving", None)
    assert "met" not in report.summary


def test_t6_a_model_without_objectives_has_nothing_to_judge() -> None:
    server = Server()
    scene = Scene(server)
    scene.watcher = Watcher(Settings(objectives=Objectives({})))
    report = scene.after(90, lambda: server.engine.set(running=2).serves(6))
    assert (report.state, report.verdict) == ("serving", None)
    assert report.summary == "Nothing to judge: this model has no objective."
