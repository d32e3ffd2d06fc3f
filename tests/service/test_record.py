import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from phasewatch.service.record import Counts, record
from phasewatch.sources.http import Scrape, Scraper
from phasewatch.sources.recording import RecordingError, open_recording
from phasewatch.sources.target import Target, parse_target
from support import HttpServer, Reply

PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"
Serve = Callable[..., HttpServer]


def test_each_target_is_polled_and_a_failing_one_costs_only_itself(
    http_server: Serve, tmp_path: Path, free_port: int
) -> None:
    good, bad = http_server({"/metrics": PAGE}), http_server({"/metrics": Reply(status=500)})
    targets = [
        parse_target(good.url, "good"),
        parse_target(bad.url.replace("//", "//me:secret@"), "bad"),
        parse_target(f"127.0.0.1:{free_port}", "down"),
    ]
    told: list[tuple[str, Counts]] = []
    counts = record(targets, tmp_path, 0.2, 0.4, lambda name, count: told.append((name, count)))
    # A busy machine may skip rounds, and says so.
    assert counts["good"].pages >= 1
    assert counts["good"].pages + counts["good"].skipped == 3
    assert counts["good"].failures == counts["bad"].pages == counts["down"].pages == 0
    assert "500" in (counts["bad"].last_error or "")
    assert dict(told) == counts
    recorded = {target.name: target.entries for target in open_recording(tmp_path).targets}
    assert {name: len(entries) for name, entries in recorded.items()} == {
        name: count.pages + count.failures for name, count in counts.items()
    }
    assert recorded["good"][0].read() == PAGE.decode()
    assert (recorded["bad"][0].reason or "").startswith("status: http://127.0.0.1:")
    assert (recorded["down"][0].reason or "").startswith("connect: ")
    assert not any(b"secret" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_files_carry_the_clock_time_of_the_scrape_and_go_on_in_the_same_folder(
    http_server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = parse_target(http_server({"/metrics": PAGE}).url)
    monkeypatch.setattr("phasewatch.service.record.time.time", lambda: 1_700_000_000.0)
    for _ in range(2):
        record([target], tmp_path, 60, 0)
    entries = open_recording(tmp_path).targets[0].entries
    assert len(entries) == 2
    assert all(1_700_000_000 <= entry.seconds < 1_700_000_060 for entry in entries)


def test_stop_ends_it_at_once_and_drops_the_scrape_under_way(http_server: Serve, tmp_path: Path) -> None:
    stop, good_is_written = threading.Event(), threading.Event()

    def hang(request: BaseHTTPRequestHandler) -> None:
        assert isinstance(request.server, HttpServer)
        assert good_is_written.wait(30)
        stop.set()
        request.server.stopping.wait(30)

    def patient(target: Target) -> Scraper:
        return Scraper(target, read_timeout=600, total_timeout=600)

    good = parse_target(http_server({"/metrics": PAGE}).url, "good")
    slow = parse_target(http_server({"/metrics": hang}).url, "slow")
    counts = record(
        [good, slow], tmp_path, 3600, None, lambda *_: good_is_written.set(), stop=stop, make_scraper=patient
    )
    assert (counts["good"].pages, counts["slow"]) == (1, Counts())
    assert [target.name for target in open_recording(tmp_path).targets] == ["good"]


def test_a_folder_that_cannot_be_written_ends_it_with_one_line(
    http_server: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    server = http_server({"/metrics": PAGE})
    with pytest.raises(RecordingError, match="No space left"):
        record([parse_target(server.url, name) for name in ("a", "b")], tmp_path, 3600)


def test_no_target_and_two_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="no target"):
        record([], tmp_path, 5, 0)
    with pytest.raises(RecordingError, match=r"'gpu-1:8000' is given 2 times"):
        record([parse_target("gpu-1"), parse_target("http://gpu-1:8000/other")], tmp_path, 5, 0)
    assert not list(tmp_path.iterdir())


class _Faulty(Scraper):
    """A scraper with a mistake of ours in it, for one target."""

    def fetch(self) -> Scrape:
        if self.target.name == "faulty":
            raise ZeroDivisionError("ours")
        return super().fetch()


def test_t9_a_mistake_of_ours_costs_only_the_scrapes_that_it_ends(http_server: Serve, tmp_path: Path) -> None:
    targets = [parse_target(http_server({"/metrics": PAGE}).url, name) for name in ("good", "faulty")]
    counts = record(targets, tmp_path, 0.2, 0.4, make_scraper=_Faulty)
    assert counts["good"].pages >= 1
    assert counts["faulty"].pages == 0
    assert counts["faulty"].failures >= 1
    assert "ZeroDivisionError('ours'), a fault of phasewatch" in (counts["faulty"].last_error or "")
