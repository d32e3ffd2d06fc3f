"""`phasewatch serve` as a process of its own."""

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from phasewatch.outputs.web.server import ListenError, Server
from support import HttpServer, wait_until

from .conftest import Still

STOP_SECONDS = 20.0  # it takes about one; machines are slow at times


class Process:
    """A running `phasewatch serve`, and what it wrote."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "log"
        with self.log.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "phasewatch", "serve", *arguments], stdout=subprocess.PIPE, stderr=out, text=True
            )

    @property
    def url(self) -> str:
        return wait_until(lambda: re.findall(r"msg=serving url=(\S+)", self.log.read_text()), "it serves")[0]

    def end(self, *signals: int) -> tuple[int, float]:
        """Sends the signals and returns the exit code and the seconds it took."""
        before = time.monotonic()
        for number in signals:
            self._process.send_signal(number)
        try:
            code = self._process.wait(30)
        finally:
            self._process.kill()
        return code, time.monotonic() - before

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def begin(targets: list[str], *arguments: str) -> Process:
        file = tmp_path / "phasewatch.yml"
        file.write_text(f"targets: {targets}\nweb: {{listen_address: '127.0.0.1:0'}}\n")
        started.append(Process(tmp_path, "--config.file", str(file), *arguments))
        return started[-1]

    yield begin
    for process in started:
        process.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_while_targets_and_clients_hang(
    start: Callable[..., Process], http_server: Callable[..., HttpServer], number: int
) -> None:
    hanging = http_server({"/metrics": lambda handler: handler.server.stopping.wait()})  # type: ignore[attr-defined]
    process = start([hanging.url, "http://127.0.0.1:9"])
    url = process.url
    assert requests.get(f"{url}/-/healthy", timeout=10).status_code == 200
    wait_until(lambda: hanging.requests, "a scrape hangs")
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")  # and says no more
        code, seconds = process.end(number)
    assert code == 0
    assert seconds < STOP_SECONDS
    log = process.log.read_text()
    assert "Traceback" not in log
    assert log.rstrip().endswith("msg=stopped")


def test_impatience_does_not_make_it_untidy(start: Callable[..., Process]) -> None:
    process = start(["http://127.0.0.1:9"])
    assert requests.get(f"{process.url}/-/healthy", timeout=10).ok
    code, _ = process.end(signal.SIGINT, signal.SIGINT, signal.SIGTERM)
    assert code == 0
    assert "Traceback" not in process.log.read_text()


def test_serving_is_quiet_whatever_clients_do(start: Callable[..., Process]) -> None:
    process = start(["http://127.0.0.1:9"])
    for path in ("/", "/metrics", "/nothing", "/api/v1/fleet"):
        requests.get(process.url + path, timeout=10)
    with socket.create_connection(("127.0.0.1", int(process.url.rpartition(":")[2]))) as client:
        client.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        client.recv(100)
    wait_until(lambda: '"starting"' in requests.get(process.url + "/api/v1/fleet", timeout=10).text, "the first round")
    process.end(signal.SIGTERM)
    lines = process.log.read_text().splitlines()
    assert not [line for line in lines if not line.startswith("ts=")]
    events = [re.findall(r'msg=("[^"]*"|\S+)', line)[0].strip('"') for line in lines]
    assert [event for event in events if event != "Invalid HTTP request received."] == [
        "serving", "target state", "stopped",
    ]  # fmt: skip


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(
    tmp_path: Path, http_server: Callable[..., HttpServer]
) -> None:
    port = http_server({}).server_port
    file = tmp_path / "phasewatch.yml"
    file.write_text("targets: ['http://127.0.0.1:9']")
    address = f"127.0.0.1:{port}"
    ran = subprocess.run(
        [sys.executable, "-m", "phasewatch", "serve", "--config.file", file, "--web.listen-address", address],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert f"{address}: address already in use; stop what listens there" in ran.stderr


def test_a_bad_configuration_is_its_lines_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "phasewatch.yml"
    file.write_text("targets: []\nscrap: {}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "phasewatch", "serve", "--config.file", file],
        capture_output=True, text=True, timeout=60, check=False, env={"PATH": ""},
    )  # fmt: skip
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 2
    assert f'{file}:2: scrap: unknown key; did you mean "scrape"?' in ran.stderr


@pytest.mark.parametrize("host", ["256.1.1.1", "no-such-host.invalid", "203.0.113.7"])
def test_an_address_that_is_not_ours_is_one_line(host: str) -> None:
    with pytest.raises(ListenError) as caught:
        Server(Still(), host, 0)
    assert re.fullmatch(rf"{host}:0: .+; .*--web\.listen-address", str(caught.value))


@pytest.mark.parametrize(
    ("host", "asked"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("localhost", "localhost"), ("", "127.0.0.1")]
)
def test_it_listens_on_names_and_both_kinds_of_addresses(host: str, asked: str) -> None:
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("NOT TESTED over IPv6: this machine has none")
    server = Server(Still(), host, 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        port = server.url.rpartition(":")[2]
        assert requests.get(f"http://{asked}:{port}/-/healthy", timeout=10).text == "phasewatch is alive.\n"
    finally:
        server.stop()
        thread.join()
