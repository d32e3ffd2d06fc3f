"""A recording is served as it was lived: its bytes, its pace, its failures."""

import socket
import threading
from pathlib import Path

import pytest
import requests

from phasewatch.outputs.replay_server import ReplayError, ReplayServer, Track
from phasewatch.sources.http import Scrape, ScrapeError, Scraper
from phasewatch.sources.recording import RecordingWriter, open_recording
from phasewatch.sources.target import parse_target

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PAGE = '# TYPE vllm:n_total counter\nvllm:n_total{{engine="0"}} {}\n'


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def recording(tmp_path: Path):
    """Two targets: a has pages at 100, 102, 104 s; b begins a second later and fails in several ways."""
    writer = RecordingWriter(tmp_path / "recording")
    for n in range(3):
        writer.page("a:8000", 100.0 + 2 * n, Scrape(PAGE.format(10.0 + n), "text/plain; version=0.0.4", 200, 0.01))
    writer.page("b", 101.0, Scrape(PAGE.format(5.0) + "# EOF\n", OPENMETRICS, 200, 0.01))
    writer.failure("b", 103.0, "connect: http://b/metrics: connection refused; nothing listens there")
    writer.failure("b", 105.0, "status: http://b/metrics: answered 503: not ready")
    writer.failure("b", 107.0, "timeout: http://b/metrics: nothing came for 5 s")
    return open_recording(tmp_path / "recording")


def test_each_target_serves_the_page_of_the_moment_with_its_own_bytes_and_type(recording, clock):
    with ReplayServer(recording, clock=clock) as server:
        assert list(server.urls) == ["a:8000", "b"]
        for passed, value in ((0.0, 10.0), (1.9, 10.0), (2.0, 11.0), (4.5, 12.0), (60.0, 12.0)):
            clock.now = 1000.0 + passed
            answer = requests.get(server.urls["a:8000"], timeout=5)
            assert (answer.text, answer.headers["Content-Type"]) == (PAGE.format(value), "text/plain; version=0.0.4")
        clock.now = 1001.0
        assert requests.get(server.urls["b"], timeout=5).headers["Content-Type"] == OPENMETRICS


def test_a_target_that_was_first_read_a_little_later_answers_from_the_start(recording, clock):
    with ReplayServer(recording, clock=clock) as server:
        assert requests.get(server.urls["b"], timeout=5).text.startswith("# TYPE")


def test_recorded_failures_fail_again_in_their_kind(recording, clock):
    with ReplayServer(recording, clock=clock) as server:
        scraper = Scraper(parse_target(server.urls["b"]), read_timeout=0.2)
        seen = {}
        for second in (103, 105, 107):
            clock.now = 1000.0 + second - 100
            with pytest.raises(ScrapeError) as caught:
                scraper.fetch()
            seen[second] = (caught.value.reason, "answered 503" in caught.value.message)
        scraper.close()
    assert seen == {103: ("connect", False), 105: ("status", True), 107: ("timeout", False)}


def test_speed_lets_the_recordings_seconds_pass_faster(recording, clock):
    with ReplayServer(recording, clock=clock, speed=4.0) as server:
        clock.now += 0.5
        assert "11.0" in requests.get(server.urls["a:8000"], timeout=5).text


def test_in_a_loop_the_counters_go_on_where_they_were(recording, clock):
    with ReplayServer(recording, clock=clock, loop=True) as server:
        counted = []
        for second in range(0, 13, 2):
            clock.now = 1000.0 + second
            counted.append(float(requests.get(server.urls["a:8000"], timeout=5).text.split()[-1]))
    assert counted == [10, 11, 12, 13, 14, 15, 16]


def test_a_recording_that_is_over_says_so_and_a_loop_never_is(recording):
    with ReplayServer(recording, speed=1000.0) as server:
        assert server.done.wait(10)
    with ReplayServer(recording, speed=1000.0, loop=True) as server:
        assert not server.done.wait(0.05)


def test_only_the_metrics_path_is_there(recording):
    with ReplayServer(recording) as server:
        base = server.urls["a:8000"].removesuffix("/metrics")
        assert requests.get(base + "/v1/models", timeout=5).status_code == 404
        assert requests.get(base + "/metrics/?x=1", timeout=5).status_code == 200
        assert requests.head(base + "/metrics", timeout=5).text == ""


def test_ports_follow_one_another_from_the_one_given_and_a_taken_one_is_named(recording):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ReplayError, match=f"cannot listen on 127.0.0.1:{port} .*choose another address"):
            ReplayServer(recording, listen=("127.0.0.1", port))
    with pytest.raises(ReplayError, match=r"127\.0\.0\.1:65536"):
        ReplayServer(recording, listen=("127.0.0.1", 65535))


def test_after_the_end_nothing_listens_and_no_thread_is_left(recording):
    before = threading.active_count()
    with ReplayServer(recording) as server:
        url = server.urls["a:8000"]
        assert requests.get(url, timeout=5).ok
    with pytest.raises(requests.ConnectionError):
        requests.get(url, timeout=5)
    assert threading.active_count() <= before + 1


def test_a_target_of_one_page_can_be_looped(tmp_path):
    RecordingWriter(tmp_path).page("a", 5.0, Scrape(PAGE.format(3.0), "text/plain", 200, 0.1))
    track = Track(open_recording(tmp_path).targets[0], 5.0, loop=True)
    assert [track.at(second)[1] for second in (0.0, 0.5, 7.0)] == [PAGE.format(3.0)] * 3
