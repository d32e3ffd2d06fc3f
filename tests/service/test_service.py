"""The rounds against real HTTP servers that serve pages of a real vLLM, or misbehave."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime as real_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import apscheduler.executors.base
import apscheduler.schedulers.base
import pytest
import structlog

from phasewatch.core.model import Fleet, Snapshot, TargetReport
from phasewatch.core.pages.exposition import PageReader, parse
from phasewatch.service.config import load_config
from phasewatch.service.service import Service
from phasewatch.sources.http import REASONS
from support import HttpServer, Reply, wait_until

PAGE = gzip.decompress((Path(__file__).parents[1] / "fixtures" / "pages" / "real-0.32.0-single.prom.gz").read_bytes())
INTERVAL = 0.4


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """`watch(url, ...)` starts a service on these targets at a short interval; it is stopped after the test."""
    started: list[Service] = []

    def start(*urls: str, interval: float = INTERVAL, more: str = "", **options: object) -> Service:
        file = tmp_path / f"{len(started)}.yml"
        targets = "".join(f"\n- {url}" for url in urls)
        file.write_text(
            f"targets:{targets}\nscrape: {{interval: {round(interval * 1000)}ms, max_bytes: 60000}}\n{more}"
        )
        started.append(Service(load_config(file, env={}), **options))  # type: ignore[arg-type]
        started[-1].start()
        return started[-1]

    yield start
    for service in started:
        service.stop()


def report(service: Service, url: str) -> TargetReport:
    assert service.fleet is not None
    return next(found for found in service.fleet.targets if found.url == f"{url}/metrics")


def seen(service: Service, url: str, so: Callable[[TargetReport], bool]) -> TargetReport:
    """The first report of a target that is so."""
    return wait_until(
        lambda: [now for now in [report(service, url)] if so(now)] if service.unready is None else [],
        f"{url} is as expected",
    )[0]


def ready(service: Service) -> Fleet:
    wait_until(lambda: service.unready is None, "the first round is over")
    assert service.fleet is not None
    return service.fleet


def hang(handler: BaseHTTPRequestHandler) -> None:
    handler.server.stopping.wait()  # type: ignore[attr-defined]


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.stopping.wait(0.05):  # type: ignore[attr-defined]
        handler.wfile.write(b"vllm:x 1\n")


def test_a_round_brings_every_engine_and_how_its_scrape_went(
    watch: Callable[..., Service], http_server: Callable[..., HttpServer]
) -> None:
    one, two = http_server({"/metrics": PAGE}), http_server({"/metrics": PAGE})
    service = watch(f"{{url: {one.url}, name: one, role: prefill, labels: {{pod: p1}}}}", two.url, interval=5.0)
    assert service.unready is not None
    fleet = ready(service)
    assert {(key.target, key.model_name) for key in (engine.key for engine in fleet.engines)} == {
        ("one", "demo-llama"),
        (two.url.removeprefix("http://"), "demo-llama"),
    }
    assert {engine.key.target: engine.role for engine in fleet.engines}["one"] == "prefill"
    found = report(service, one.url)
    assert (found.target, found.labels, found.last_error) == ("one", {"pod": "p1"}, None)
    assert found.scrape_seconds is not None
    assert 0 < found.scrape_seconds < 10
    assert found.scrape_timeout_seconds == 4.5
    assert found.last_success_age_seconds is not None
    assert set(found.scrape_failures) == set(REASONS), "counters start at zero, so that a first increase shows"
    assert set(found.scrape_failures.values()) == {0}


@pytest.mark.parametrize(
    ("route", "reason", "state"),
    [
        (hang, "timeout", "starting"),
        (endless, "timeout", "starting"),
        (Reply(b"no", 500), "status", "starting"),
        (Reply(b"no", 404), "status", "starting"),
        (Reply(b"no", 401), "authentication", "down"),
        (Reply(b"", 307, {"Location": "/metrics"}), "redirect", "down"),
        (Reply(b"<html>", 200, {"Content-Type": "text/html"}), "not_metrics", "down"),
        (Reply(b"x" * 70_000), "too_large", "down"),
        (Reply(gzip.compress(PAGE)[:5000], 200, {"Content-Encoding": "gzip"}), "truncated", "down"),
        (lambda handler: handler.wfile.write(b"\x00\x01\x02\r\n\r\n"), "protocol", "down"),
        (Reply(b"go_goroutines 1\n"), None, "no_engine_metrics"),
    ],
    ids=["hangs", "endless", "500", "404", "401", "circle", "html", "too-large", "cut-gzip", "no-http", "no-vllm"],
)
def test_a_misbehaving_target_costs_only_itself(
    watch: Callable[..., Service], http_server: Callable[..., HttpServer], route: object, reason: str | None, state: str
) -> None:
    good, bad = http_server({"/metrics": PAGE}), http_server({"/metrics": route})
    service = watch(bad.url, good.url, more="windows: [30s]", interval=INTERVAL)
    found = seen(service, bad.url, lambda now: now.state == state and now.scrape_failures.get(reason, 3) >= 3)
    assert found.last_error
    assert "\n" not in found.last_error
    seen(service, good.url, lambda now: now.last_error is None and now.last_success_age_seconds is not None)
    wait_until(lambda: len(good.requests) >= 3, "the other is scraped on")
    assert f'target="{bad.url[7:]}"'.encode() in service.round.metrics("")[0]


def test_nobody_listening_yet_is_starting_and_coming_up_is_up(
    watch: Callable[..., Service], http_server: Callable[..., HttpServer], free_port: int
) -> None:
    url = f"http://127.0.0.1:{free_port}"
    service = watch(url)
    ready(service)
    wait_until(lambda: report(service, url).scrape_failures["connect"] >= 3, "three failures")
    assert report(service, url).state == "starting"
    assert report(service, url).last_success_age_seconds is None
    http_server({"/metrics": PAGE}, port=free_port)
    found = seen(service, url, lambda now: now.state == "warming_up")
    assert found.last_error is None
    assert found.scrape_failures["connect"] >= 3, "what went wrong stays counted"


def test_never_two_scrapes_of_a_target_at_once_and_all_over_one_connection(
    watch: Callable[..., Service], http_server: Callable[..., HttpServer]
) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        handler.server.stopping.wait(0.6)  # type: ignore[attr-defined]
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(PAGE)))
        handler.end_headers()
        handler.wfile.write(PAGE)
        with lock:
            running -= 1

    server = http_server({"/metrics": slow})
    service = watch(server.url, interval=2.0)
    wait_until(lambda: len(server.requests) >= 3, "three scrapes")
    service.stop()
    assert most == 1
    assert server.connections == 1


def test_scrapes_are_spread_over_the_interval_and_judged_after_the_last(
    watch: Callable[..., Service], free_port: int
) -> None:
    targets = [f"{{url: 'http://127.0.0.1:{free_port}/{number}', name: '{number}'}}" for number in range(25)]
    service = watch(*targets, interval=60.0, more="windows: [5m]")
    assert service._scheduler is not None
    assert service._poller._offsets == pytest.approx([60 / 25 * number for number in range(25)])
    (job,) = service._scheduler.get_jobs()
    assert job.func == service._evaluate
    first = (job.trigger.start_date - service._scheduler._first).total_seconds()
    assert first == pytest.approx(24 / 25 * 60 + 6, abs=0.001)


@pytest.mark.parametrize("route", [hang, endless], ids=["hangs", "endless"])
def test_stopping_does_not_wait_for_a_target_that_hangs(
    watch: Callable[..., Service], http_server: Callable[..., HttpServer], route: object
) -> None:
    servers = [http_server({"/metrics": route}) for _ in range(3)]
    service = watch(*(server.url for server in servers), interval=10.0)
    wait_until(lambda: all(server.requests for server in servers), "all scrapes hang", every=0.1)
    before = time.monotonic()
    service.stop()
    service.stop()
    assert time.monotonic() - before < 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("scrape-")]


def test_a_mistake_of_ours_costs_one_target_and_is_counted(
    watch: Callable[..., Service], http_server: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = http_server({"/metrics": PAGE}), http_server({"/metrics": PAGE + b"poison 1\n"})
    read = PageReader.read

    def poisoned(self: PageReader, text: str, **options: object) -> object:
        if "poison" in text:
            raise RuntimeError("a bug")
        return read(self, text, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PageReader, "read", poisoned)
    with structlog.testing.capture_logs() as logged:
        service = watch(one.url, two.url)
        found = seen(service, two.url, lambda now: now.scrape_failures.get("internal", 0) >= 3)
    assert "please report this" in str(found.last_error)
    seen(service, one.url, lambda now: now.last_error is None)
    assert any(entry["event"] == "scrape went wrong" and entry.get("exc_info") for entry in logged)


def test_the_log_tells_what_changed_and_not_every_round(
    watch: Callable[..., Service], http_server: Callable[..., HttpServer]
) -> None:
    server = http_server({"/metrics": Reply(b"no", 503)})
    with structlog.testing.capture_logs() as logged:
        service = watch(server.url, more="startup_grace: 1s")
        seen(service, server.url, lambda now: now.state == "down")
        rounds = len(server.requests)
        wait_until(lambda: len(server.requests) > rounds + 3, "three more rounds")
        service.stop()
    states = [entry["state"] for entry in logged if entry["event"].startswith("target")]
    assert states == ["starting", "down"]
    assert all(entry["error"] for entry in logged)


class Clocks:
    """A wall clock that can be set, as APScheduler and the service read it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        clocks = self

        class Shifted(real_datetime):
            @classmethod
            def now(cls, tz=None):  # type: ignore[no-untyped-def]
                return real_datetime.fromtimestamp(clocks.wall(), tz)

        for module in (apscheduler.schedulers.base, apscheduler.executors.base):
            monkeypatch.setattr(module, "datetime", Shifted)

    def wall(self) -> float:
        return time.time() + self.ahead


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_setting_the_wall_clock_stops_no_round(
    watch: Callable[..., Service], http_server: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    clocks = Clocks(monkeypatch)
    server = http_server({"/metrics": PAGE})
    service = watch(server.url, wall=clocks.wall)
    ready(service)
    clocks.ahead = step
    asked = len(server.requests)
    wait_until(lambda: len(server.requests) > asked + 3, "scrapes go on")
    wait_until(lambda: abs(service.round.document["at"] - clocks.wall()) < 2, "times shown follow the wall clock")


def test_a_target_whose_scrape_cannot_be_cut_off_does_not_stay_well_for_ever(
    watch: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def stuck(*_: object, **__: object) -> list[object]:
        release.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "look-up failed")

    monkeypatch.setattr(socket, "getaddrinfo", stuck)
    try:
        service = watch("http://vllm.invalid:8000")
        url = "http://vllm.invalid:8000"
        found = seen(service, url, lambda now: now.scrape_failures["busy"] >= 3)
        assert found.state == "starting"
    finally:
        release.set()


class Alone(Service):
    """Its rounds are asked for by the test, at `now` on its clock; `broken` makes the evaluation itself fail."""

    def __init__(self, tmp_path: Path) -> None:
        file = tmp_path / "phasewatch.yml"
        file.write_text("targets: [{url: http://127.0.0.1:9, name: one}]\nscrape: {interval: 10s}\n")
        self.now, self.broken = 1000.0, False
        super().__init__(load_config(file, env={}), clock=lambda: self.now, wall=self.wall)
        self._polled[0].tried = True

    def wall(self) -> float:
        if self.broken:
            raise ArithmeticError("the wall is gone")
        return self.now + 1e9

    def takes_in(self, change: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot) -> None:
        page = parse(PAGE.decode(), at=self.now)
        engines = {key: change(snapshot) for key, snapshot in page.engines.items()}
        self._watcher.page("one", replace(page, engines=engines))


def test_it_is_unready_when_no_evaluation_has_succeeded_for_three_intervals(tmp_path: Path) -> None:
    service = Alone(tmp_path)
    assert service.unready == "phasewatch waits for its first round of scrapes."
    service._evaluate()
    assert service.unready is None
    service.broken = True
    with structlog.testing.capture_logs() as logged:
        for _ in range(4):
            service.now += 10
            assert (service.unready is None) == (service.now <= 1030)
            service._evaluate()
        assert service.unready == (
            "phasewatch has had no successful evaluation for 40 s, three intervals or more; see its log."
        )
        service.broken = False
        for _ in range(2):
            service._evaluate()
    assert service.unready is None
    assert [entry["event"] for entry in logged if "evaluation" in entry["event"]] == [
        "evaluation failed; please report this",
        "evaluation works again",
    ]


def test_what_went_wrong_with_an_engine_is_counted_and_exported(tmp_path: Path) -> None:
    service = Alone(tmp_path)
    for change in (lambda one: one, lambda one: replace(one, counters={"prompt_tokens": "many"})):
        service.now += 10
        service.takes_in(change)
    with structlog.testing.capture_logs() as logged:
        service._evaluate()
        service._evaluate()
    assert [entry["event"] for entry in logged].count("internal error") == 1
    page = service.round.metrics("")[0].decode()
    assert 'phasewatch_internal_errors_total{target="one"} 2.0' in page
    assert 'phasewatch_engine_state{engine="0",model_name="demo-llama",state="internal_error",target="one"} 1.0' in page
    assert "phasewatch_ttft" not in page
