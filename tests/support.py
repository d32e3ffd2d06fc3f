"""What the fixtures hand out: Debian's real Prometheus and Alertmanager as processes, and a small HTTP server.

Everything listens on loopback only and is ended by the process that started it, by its own pid.
"""

import ipaddress
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import requests

from phasewatch.sources.packed import SUFFIX, open_packed
from phasewatch.sources.recording import Recording

T = TypeVar("T")
Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).resolve().parent.parent
SUITES = ("bookworm", "testing")
START_SECONDS = 30.0
STOP_SECONDS = 10.0


def free_port() -> int:
    """A loopback TCP port that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_loopback(host: str) -> bool:
    """Whether a host, as given to connect(), is this machine's own."""
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback or parsed.is_unspecified  # connecting to 0.0.0.0 means this machine too


def wait_until(ask: Callable[[], T], what: str, seconds: float = START_SECONDS, every: float = 0.05) -> T:
    """Asks until the answer is true (not empty, not None) and returns it; fails with `what` after that many seconds."""
    end = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > end:
            raise AssertionError(f"after {seconds:g} s still not so: {what} (last answer: {answer!r})")
        time.sleep(every)
    return answer


# --- Debian's binaries


@dataclass(frozen=True)
class Tools:
    """The binaries of one Debian suite, unpacked by `make tools`."""

    suite: str

    @property
    def home(self) -> Path:
        return ROOT / ".cache" / "debian" / self.suite

    @property
    def missing(self) -> str:
        """Why this suite cannot be used, or an empty string."""
        if (self.home / "fetched").exists():
            return ""
        unavailable = self.home / "unavailable"
        reason = unavailable.read_text().strip() if unavailable.exists() else "not fetched yet"
        return f"NOT TESTED against Debian {self.suite}'s Prometheus: {reason}; `make tools` fetches it"

    def _binary(self, name: str) -> Path:
        return self.home / "root" / "usr" / "bin" / name

    @property
    def prometheus(self) -> Path:
        return self._binary("prometheus")

    @property
    def promtool(self) -> Path:
        return self._binary("promtool")

    @property
    def alertmanager(self) -> Path:
        return self._binary("prometheus-alertmanager")

    @property
    def alertmanager_home(self) -> Path:
        """The folder Alertmanager must be started in to find its templates."""
        return self.home / "root/usr/share/prometheus/alertmanager"

    @property
    def amtool(self) -> Path:
        return self._binary("amtool")


@dataclass
class Daemon:
    """A running server process; `log` is what it wrote."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    config: Path

    def get(self, path: str, **params: str | float) -> Any:
        """The JSON answer of GET `path`; an error status fails with the server's own words."""
        answer = requests.get(self.url + path, params=params, timeout=10)
        assert answer.ok, f"GET {path} {params}: {answer.status_code} {answer.text}"
        return answer.json()

    def reload(self, config: str | None = None) -> None:
        """Writes the new configuration text, where one is given, and makes the server read it."""
        if config is not None:
            self.config.write_text(config)
        answer = requests.post(self.url + "/-/reload", timeout=10)
        assert answer.ok, f"reload: {answer.status_code} {answer.text}"

    def stop(self) -> None:
        """Ends the process; doing so twice is fine."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@dataclass
class Prometheus(Daemon):
    """A real Prometheus, ready to scrape and to answer."""

    def query(self, expression: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """(labels, value) for each element of an instant query; `at` is Unix seconds, now by default."""
        time_param = {} if at is None else {"time": at}
        data = self.get("/api/v1/query", query=expression, **time_param)["data"]
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(element["metric"], float(element["value"][1])) for element in data["result"]]


@dataclass
class Alertmanager(Daemon):
    """A real Alertmanager, alone (no gossip)."""

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts it holds, as its API v2 shows them."""
        return list(self.get("/api/v2/alerts"))

    def post_alerts(self, alerts: list[dict[str, Any]]) -> None:
        """Sends alerts (labels, annotations, startsAt, ...) as Prometheus would."""
        answer = requests.post(self.url + "/api/v2/alerts", json=alerts, timeout=10)
        assert answer.ok, f"POST alerts: {answer.status_code} {answer.text}"


D = TypeVar("D", bound=Daemon)


def _start(kind: Callable[..., D], command: Callable[[int], list[str]], config: Path, folder: Path) -> D:
    log = config.parent / "log"
    for _attempt in range(3):  # another process may take the free port first
        port = free_port()
        with log.open("wb") as out:
            process = subprocess.Popen(
                command(port), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder
            )
        daemon = kind(f"http://127.0.0.1:{port}", process, log, config)
        if _ready(daemon):
            return daemon
        daemon.stop()
        if "address already in use" not in log.read_text():
            break
    raise AssertionError(f"{command(0)[0]} did not start:\n{log.read_text()[-2000:]}")


def _ready(daemon: Daemon) -> bool:
    def ended_or_answers() -> str:
        if daemon.process.poll() is not None:
            return "ended"
        try:
            return "ready" if requests.get(daemon.url + "/-/ready", timeout=2).ok else ""
        except requests.RequestException:
            return ""

    return wait_until(ended_or_answers, f"{daemon.process.args!r} is ready") == "ready"


def _lay(folder: Path, name: str, config: str, files: Mapping[str, str]) -> Path:
    for file, text in {**files, name: config}.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / name


def start_prometheus(
    tools: Tools,
    folder: Path,
    config: str,
    *,
    files: Mapping[str, str] | None = None,
    openmetrics: str | None = None,
    arguments: tuple[str, ...] = (),
) -> Prometheus:
    """Starts Prometheus on `config`, with its data in `folder`.

    files: further files beside the configuration (rules, file_sd), by relative name. openmetrics: history to load
    first, as OpenMetrics text with timestamps, ending in "# EOF". arguments: further command-line flags.
    """
    path = _lay(folder, "prometheus.yml", config, files or {})
    data = folder / "data"
    if openmetrics is not None:
        history = folder / "history.om"
        history.write_text(openmetrics)
        backfill = [str(tools.promtool), "tsdb", "create-blocks-from", "openmetrics", str(history), str(data)]
        ran = subprocess.run(backfill, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return _start(
        Prometheus,
        lambda port: [
            str(tools.prometheus),
            f"--config.file={path}",
            f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-lifecycle",
            "--log.level=warn",
            *arguments,
        ],
        path,
        folder,
    )


def start_alertmanager(
    tools: Tools, folder: Path, config: str, *, files: Mapping[str, str] | None = None, arguments: tuple[str, ...] = ()
) -> Alertmanager:
    """Starts Alertmanager on `config`, with its data in `folder`; the arguments are those of start_prometheus."""
    path = _lay(folder, "alertmanager.yml", config, files or {})
    return _start(
        Alertmanager,
        lambda port: [
            str(tools.alertmanager),
            f"--config.file={path}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",  # or it gossips on every interface
            "--log.level=warn",
            *arguments,
        ],
        path,
        tools.alertmanager_home,
    )


# --- a server for pages and webhooks


@dataclass(frozen=True)
class Reply:
    """One answer; the default type is that of a Prometheus text page."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/plain; version=0.0.4"})


@dataclass(frozen=True)
class Request:
    """What a client asked."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


# A function gets the open request and writes whatever it likes, also nonsense or nothing.
Route = bytes | Reply | Callable[[BaseHTTPRequestHandler], None]


class HttpServer(ThreadingHTTPServer):
    """Serves `routes` (path without query -> Route, changeable at any time) from a thread; other paths answer 404.

    requests: what was asked so far. connections: how many were opened. stopping: set when the server goes, for
    functions that hang on purpose to wait on.
    """

    daemon_threads = True

    def __init__(self, routes: Mapping[str, Route], port: int = 0) -> None:
        self.routes = dict(routes)
        self.requests: list[Request] = []
        self.connections = 0
        self.stopping = threading.Event()
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=partial(self.serve_forever, poll_interval=0.02), daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that left is no error
            super().handle_error(request, client_address)

    def stop(self) -> None:
        """Closes the port and every open connection; doing so twice is fine."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpServer

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(Request(self.command, self.path, dict(self.headers.items()), body))
        route = self.server.routes.get(self.path.partition("?")[0], Reply(b"no such page\n", 404))
        if callable(route):
            route(self)
            return
        reply = Reply(route) if isinstance(route, bytes) else route
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    do_GET = do_HEAD = do_POST = do_PUT = _answer  # noqa: N815 (http.server names them)

    def log_message(self, format: str, *args: object) -> None:
        """Tests read `requests`; nothing is printed."""


# --- recordings


RECORDINGS = ROOT / "recordings"
# The right answers, by the recording's name: objectives, stretches to judge, accepted verdicts or states.
EXPECTED: Mapping[str, Any] = json.loads((RECORDINGS / "expected.json").read_text())


def real(name: str) -> Path:
    """The file of this recording of a real vLLM; recordings/README.md says what each is."""
    return RECORDINGS / f"{name}{SUFFIX}"


@lru_cache(maxsize=8)  # tests of one recording follow each other
def real_recording(name: str) -> Recording:
    return open_packed(str(real(name)))


def unpacked(name: str, folder: Path) -> Path:
    """The same as a folder, laid down in `folder`."""
    for target in real_recording(name).targets:
        (folder / target.name).mkdir(parents=True)
        for entry in target.entries:
            (folder / target.name / entry.path.name).write_bytes(entry.path.read_bytes())
    return folder


def real_pages(name: str, first: float = 0.0, last: float = inf) -> dict[float, str]:
    """The pages of its only target by their seconds, from `first` to `last`, in order."""
    (target,) = real_recording(name).targets
    return {
        entry.seconds: entry.read()
        for entry in target.entries
        if first <= entry.seconds <= last and entry.kind == "page"
    }
