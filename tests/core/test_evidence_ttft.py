"""Rules of evidence 3, 4, 13 and 14: what TTFT is made of, of its measured whole."""

import pytest

from case_pages import advice, blamed, said
from phasewatch.core.model import EngineReport
from phasewatch.core.report.measure_table import PHASES
from vllm_pages import Scene, Server, answer

INTERVALS = pytest.mark.parametrize("interval", [2.0, 5.0, 10.0, 15.0])


def shares(report: EngineReport) -> dict[str, float]:
    assert report.numbers is not None
    known = {name: getattr(report.numbers.phases, name).share for name, _ in PHASES}
    return {name: share for name, share in known.items() if share is not None}


class Turns:
    """Traffic of which some comes every so many seconds, whatever the interval between scrapes."""

    def __init__(self, every: float, interval: float) -> None:
        self.every, self.interval, self.now = every, interval, 0.0

    def due(self) -> int:
        before, self.now = self.now, self.now + self.interval
        return int(self.now // self.every) - int(before // self.every)


@INTERVALS
def test_x1_most_of_ttft_outside_queue_and_prefill_is_no_engine_cause(interval: float) -> None:
    server = Server()
    scene, turns = Scene(server, interval=interval), Turns(20.0, interval)

    def traffic() -> None:
        server.engine.set(running=0)
        if count := turns.due():
            server.engine.serves(count, queue=0.02, prefill=0.3, outside=8.0, output=20)

    report = scene.after(120, traffic)
    assert not {one for one in blamed(report) if one.startswith(("queue_", "prefill_"))}
    assert "shorter prompts" not in said(report)
    assert shares(report)["unexplained"] == pytest.approx(8 / (8.32 + 19 * 0.03))
    assert sum(shares(report).values()) == pytest.approx(1)


@INTERVALS
@pytest.mark.parametrize("slow", [0.85, 1.7])
def test_x2_a_tail_that_no_prefill_or_queue_reaches_is_the_front_ends(interval: float, slow: float) -> None:
    server = Server()
    server.cpu_seconds = 1.0
    scene, turns = Scene(server, interval=interval, objectives=("ttft_p99=500ms",)), Turns(10.0, interval)

    def traffic() -> None:
        server.engine.set(running=1, kv=0.05)
        server.engine.serves(round(2 * interval), queue=0.00014, prefill=0.132, outside=0.02, prompt=93, output=20)
        server.engine.serves(turns.due(), queue=0.00014, prefill=0.132, outside=slow, prompt=93, output=20)

    report = scene.after(120, traffic)
    assert answer(report) == "frontend"
    assert not {one for one in blamed(report) if one.startswith(("queue_", "prefill_"))}
    assert "shorter prompts" not in said(report)


@INTERVALS
def test_a_tail_of_few_long_prompts_is_theirs_though_the_mean_is_the_front_ends(interval: float) -> None:
    server = Server()
    scene, turns = Scene(server, interval=interval, objectives=("ttft_p99=1s",)), Turns(15.0, interval)

    def traffic() -> None:
        server.engine.set(running=1, kv=0.05)
        server.engine.serves(round(interval), prefill=0.02, outside=0.4, prompt=60, output=10, itl=0.01)
        server.engine.serves(turns.due(), prefill=4.0, outside=0.4, prompt=9000, output=10, itl=0.01)

    report = scene.after(120, traffic)
    assert answer(report) == "prefill_long_prompts"
    # Seldom scraped, its bucket (2.5 to 5 s) is all that is known.
    assert 2.5 < report.causes[0].evidence["prefill_seconds"] <= 5


@INTERVALS
@pytest.mark.parametrize("process", [True, False])
def test_who_waits_for_the_running_step_of_a_long_prompt_is_not_held_up_by_the_front_end(
    interval: float, process: bool
) -> None:
    server = Server(process=process)  # several API servers have no process families
    scene, turns = Scene(server, interval=interval, objectives=("ttft_p99=1s", "itl_p99=10s")), Turns(15.0, interval)

    def traffic() -> None:
        engine = server.engine.set(running=0, kv=0.02)
        engine.serves(round(2 * interval), prefill=0.08, outside=0.01, prompt=30, output=8, itl=0.05)
        for _ in range(turns.due()):
            # Three requests a second come during its 5 s; they share the next step.
            engine.serves(1, prefill=5.0, outside=0.01, prompt=3800, output=8, itl=0.05)
            for at in range(15):
                engine.serves(1, prefill=0.3, outside=(at + 0.5) / 3, prompt=30, output=8, itl=0.05, batch=7)

    report = scene.after(120, traffic)
    assert "frontend" not in {one.verdict for one in report.causes if one.score >= 0.5}
    # One scrape for each long prompt and all that waited: its bucket, 2.5 to 5 s, is not always enough.
    assert answer(report) in ({"prefill_blocking"} if interval < 15 else {"prefill_blocking", "unknown"})
    assert interval >= 15 or "--max-num-batched-tokens down" in advice(report)
    assert "api-server" not in advice(report)
    assert sum(shares(report).values()) == pytest.approx(1)


@INTERVALS
def test_a_queue_that_comes_and_goes_is_a_queue_in_its_episodes(interval: float) -> None:
    server = Server()
    scene, turns = Scene(server, interval=interval, objectives=("ttft_p99=1s",)), Turns(20.0, interval)

    def traffic() -> None:
        burst = turns.due()
        # The scrape finds a slot free: who had it has just left.
        server.engine.set(running=3 if burst else 1, waiting=6 if burst else 0, kv=0.01)
        server.engine.serves(max(1, round(interval / 5)), prefill=0.1, outside=0.01, output=20, itl=0.04)
        for _ in range(burst):
            server.engine.set(running=4 if turns.now % 40 == 0 else 3)
            for turn in range(3):
                server.engine.serves(4, queue=2.5 * turn, prefill=0.2, outside=0.01, output=40, itl=0.05, batch=4)

    scene.after(80, traffic)
    assert {answer(fleet.engines[0]) for fleet in scene.rounds(80, traffic)} == {"queue_batch_limit"}


@pytest.mark.parametrize("tokens", [28, 110])
def test_a_prefill_of_a_few_steps_is_not_called_long(tokens: int) -> None:
    server = Server()
    scene = Scene(server, interval=5.0, objectives=("ttft_p99=100ms",))
    report = scene.after(
        90,
        lambda: server.engine.set(running=1).serves(10, prefill=0.13, outside=0.01, prompt=tokens, output=9, itl=0.045),
    )
    assert "prefill_long_prompts" not in blamed(report)
    assert "shorter prompts" not in said(report)


@INTERVALS
def test_first_tokens_of_others_than_those_that_finish_leave_the_rest_unexplained(interval: float) -> None:
    server = Server()
    scene = Scene(server, interval=interval, objectives=("ttft_p99=1s",))

    def traffic() -> None:
        # Twice as many come as finish: those that finish came when all was well.
        engine = server.engine.set(running=40, kv=0.3)
        engine.first_tokens(6.0, round(2 * interval), prompt=50)
        engine.tokens(0.05, round(400 * interval), batch=40)
        engine.finishes(round(interval), queue=0.0, prefill=0.1, decode=20.0, outside=0.01, prompt=50, output=400)

    report = scene.after(120, traffic)
    assert report.numbers is not None
    assert report.numbers.phases.frontend.mean_seconds is None
    assert answer(report) == "unknown"


# --- evictions that are not counted yet ---------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [2.0, 10.0])
@pytest.mark.parametrize(
    ("running", "finished", "kv", "answer"),
    [
        (7, 0, 0.9, "queue_kv_cache"),  # one went back to the queue, and an eighth would not fit
        (7, 1, 0.9, "queue_batch_limit"),  # one finished: who waits has come meanwhile
        (7, 0, 0.3, "queue_batch_limit"),  # with room for all: clients left, others came
        (8, 0, 0.9, "queue_batch_limit"),  # nobody left the batch
    ],
)
def test_who_was_evicted_waits_for_blocks_before_that_is_counted(
    interval: float, running: int, finished: int, kv: float, answer: str
) -> None:
    server = Server()
    engine, scene = server.engine, Scene(server, interval=interval)

    def streams(gap: float = 0.05) -> None:
        engine.tokens(gap, round(8 * interval / gap), batch=8)

    scene.after(60, lambda: (engine.set(running=8, waiting=0, kv=0.85), streams()))
    engine.finishes(finished)
    engine.first_tokens(0.1, finished)
    engine.set(running=running, waiting=3, kv=kv)
    found = blamed(scene.after(20, streams))
    assert answer in found
    assert not found & ({"queue_kv_cache", "queue_batch_limit"} - {answer})
