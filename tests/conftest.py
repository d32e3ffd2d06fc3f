"""Fixtures for all tests. The classes they return, and what those can do, are in support.py."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import hypothesis
import pytest

import support
from phasewatch import cli
from support import SUITES, Alertmanager, HttpServer, Prometheus, Route, Run, Tools

# No timed pass or fail: these machines are slow at times.
hypothesis.settings.register_profile(
    "phasewatch", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("phasewatch")


def _loopback_only(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.connect" and isinstance(address := arguments[1], tuple) and not support.is_loopback(address[0]):
        pytest.fail(f"a test reached beyond loopback, to {address[0]}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups first: they wait for clocks and servers, so that all else can be computed beside them."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


# For the whole run: nothing may be asked that this machine does not serve itself.
sys.addaudithook(_loopback_only)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("diagnose", ...)` -> (exit code, stdout, stderr), in this process."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="session", params=SUITES)
def tools(request: pytest.FixtureRequest) -> Tools:
    """Debian's Prometheus binaries; a test that uses this, or a fixture below, runs once for each Debian suite.

    `@pytest.mark.parametrize("tools", ["bookworm"], indirect=True)` keeps a slow test to the pinned suite (2.42, 0.25).
    """
    found = Tools(request.param)
    if found.missing and found.suite == SUITES[0] and "CI" in os.environ:
        pytest.fail(found.missing)
    if found.missing:
        pytest.skip(found.missing)
    return found


@pytest.fixture(scope="session")
def promtool(tools: Tools) -> Path:
    """Path of promtool, once for each Debian suite."""
    return tools.promtool


@pytest.fixture(scope="session")
def amtool(tools: Tools) -> Path:
    """Path of amtool, once for each Debian suite."""
    return tools.amtool


@pytest.fixture
def prometheus_server(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Prometheus]]:
    """`prometheus_server(config_text, files={}, openmetrics=None, arguments=())` starts a real Prometheus.

    The result has url, query(expression, at), get(path, **params), reload(new_config_text), stop() and log. Each gets
    a free loopback port and a storage of its own, and is stopped after the test. See support.start_prometheus.
    """
    started: list[Prometheus] = []

    def start(config: str, **options: object) -> Prometheus:
        started.append(
            support.start_prometheus(tools, tmp_path_factory.mktemp("prometheus"), config, **options)  # type: ignore[arg-type]
        )
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def alertmanager_server(
    tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Alertmanager]]:
    """`alertmanager_server(config_text, files={}, arguments=())` starts a real Alertmanager and waits for it.

    The result has url, alerts(), post_alerts(list), get(path), reload(new_config_text), stop() and log.
    """
    started: list[Alertmanager] = []

    def start(config: str, **options: object) -> Alertmanager:
        started.append(
            support.start_alertmanager(tools, tmp_path_factory.mktemp("alertmanager"), config, **options)  # type: ignore[arg-type]
        )
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def http_server() -> Iterator[Callable[..., HttpServer]]:
    """`http_server({"/metrics": b"page"})` serves on loopback from a thread: the result has url, requests, connections.

    A route is bytes, a support.Reply (body, status, headers) or a function that gets the open request and may do
    anything, such as answer slowly; one that hangs should wait on `server.stopping`. `port=` makes it take over a port.
    """
    started: list[HttpServer] = []

    def start(routes: Mapping[str, Route], port: int = 0) -> HttpServer:
        started.append(HttpServer(routes, port))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def free_port() -> int:
    """A loopback port that nothing listens on; support.free_port() gives more."""
    return support.free_port()
