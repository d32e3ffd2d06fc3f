"""What `diagnose` exits with."""

from collections.abc import Callable
from contextlib import closing

import pytest

from fleets import engine, fleet, model, target
from phasewatch.commands.diagnose import exit_code
from phasewatch.commands.watching import Watching, clock
from phasewatch.core.model import State
from phasewatch.core.settings import Settings
from phasewatch.sources.http import Scrape, Scraper
from phasewatch.sources.target import parse_target
from support import HttpServer


@pytest.mark.parametrize(
    ("state", "verdict", "code"),
    [
        ("serving", "healthy", 0),
        ("serving", None, 3),  # nothing to judge yet
        ("serving", "unknown", 1),
        ("idle", None, 0),
        ("warming_up", None, 3),
        ("stale", None, 1),
    ],
)
def test_too_little_for_a_verdict_is_3_and_anything_else_but_healthy_1(
    state: State, verdict: str | None, code: int
) -> None:
    one = engine(state=state, verdict=verdict)
    assert exit_code(fleet((one,), (model({state: 1}),), (target(),))) == code


def test_t9_a_mistake_of_ours_in_one_targets_scrape_leaves_the_others_watched(
    http_server: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = http_server({"/metrics": b"vllm:num_requests_running 3\n"})
    targets = [parse_target(server.url, name) for name in ("good", "faulty")]
    fetch = Scraper.fetch

    def faulty(self: Scraper) -> Scrape:
        if self.target.name == "faulty":
            raise ZeroDivisionError("ours")
        return fetch(self)

    monkeypatch.setattr(Scraper, "fetch", faulty)
    with closing(Watching(targets, Settings(), 0.1)) as watching:
        watching.first_answers()
        watching.until(clock() + 0.3)
        reports = {report.target: report for report in watching.fleet().targets}
    assert watching.ever_read == {"good"}
    assert reports["faulty"].scrape_failures["internal"] >= 1
    assert "ZeroDivisionError('ours'), a fault of phasewatch" in (reports["faulty"].last_error or "")
