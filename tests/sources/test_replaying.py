import json
from collections.abc import Callable
from pathlib import Path

import pytest

from phasewatch.core.settings import Settings
from phasewatch.sources.recording import open_recording
from phasewatch.sources.replaying import replay

PAGE = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"


@pytest.fixture
def moments(tmp_path: Path) -> Callable[..., list[float]]:
    """Moments of the documents of a recording with pages at these seconds."""

    def of(seconds: list[float], step: float, until: float | None = None, *, last: bool = False) -> list[float]:
        for second in seconds:
            (tmp_path / f"{second:g}.prom").write_text(PAGE)
        return [fleet.at for fleet in replay(open_recording(tmp_path), Settings(), step, until, last=last)]

    return of


def test_the_last_document_comes_at_the_first_moment_at_or_after_the_last_page(moments: Callable[..., object]) -> None:
    assert moments([0, 10, 25.5], 10) == [10, 20, 30]


def test_a_last_page_on_a_whole_step_is_judged_once(moments: Callable[..., object]) -> None:
    assert moments([0, 10, 20], 10) == [10, 20]


def test_a_moment_asked_for_is_the_last_one_even_between_two_steps(moments: Callable[..., object]) -> None:
    assert moments([0, 10, 25.5], 10, 17, last=True) == [10, 17]


def test_a_recording_shorter_than_a_step_has_no_document_unless_one_is_asked_for(
    moments: Callable[..., object],
) -> None:
    assert moments([0, 5], 10) == []
    assert moments([0, 5], 10, last=True) == [5]


def test_the_last_page_counts_in_the_last_document(tmp_path: Path) -> None:
    (tmp_path / "0.prom").write_text(PAGE)
    (tmp_path / "12.prom").write_text(PAGE.replace(" 3", " 7"))
    *_, fleet = replay(open_recording(tmp_path), Settings(), 10)
    assert fleet.at == 20
    assert [t.last_success_age_seconds for t in fleet.targets] == [8]


def test_scrapes_tell_durations_and_failures_as_a_live_poll_does(tmp_path: Path) -> None:
    (tmp_path / "0.prom").write_text(PAGE)
    (tmp_path / "10.prom").write_text(PAGE)
    (tmp_path / "20.fail").write_text("timeout: no answer in 5 s")
    (tmp_path / "30.fail").write_text("URLError")
    scrapes = [{"seconds": s, "duration": 0.25, "status": 200, "content_type": "text/plain"} for s in (0, 10)]
    (tmp_path / "scrapes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in scrapes))
    first, *_, end = replay(open_recording(tmp_path), Settings(), 10)
    assert (first.targets[0].scrape_seconds, dict(first.targets[0].scrape_failures)) == (0.25, {})
    assert dict(end.targets[0].scrape_failures) == {"timeout": 1, "other": 1}
    assert end.targets[0].last_error == "URLError"
