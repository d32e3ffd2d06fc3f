"""A service that has stalled, served for real: the tests put in the Fleet they want to see."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from phasewatch.core.model import Fleet
from phasewatch.outputs.web.server import Server
from phasewatch.service.config import load_config
from phasewatch.service.round import Round
from phasewatch.service.service import Service

CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip


class Still(Service):
    """Never scrapes: shows what `show` was given, `age` seconds old."""

    def __init__(self) -> None:
        super().__init__(load_config(None, env={"VLLM_TARGETS": "http://127.0.0.1:9"}))
        self.url = ""
        self.why: str | None = "nothing is shown yet"

    @property
    def unready(self) -> str | None:
        return self.why

    def start(self) -> None:
        """Stands still."""

    def stop(self) -> None:
        """Never began."""

    def show(self, fleet: Fleet, age: float = 2.0) -> None:
        self.round = Round(fleet, self.settings, "0.0.1", time.time() - age - fleet.at)
        self.why = None


@pytest.fixture
def serve() -> Iterator[Callable[[Service], Server]]:
    """`serve(service)` runs a real server on a free loopback port until the test ends."""
    started: list[tuple[Server, threading.Thread]] = []

    def start(service: Service) -> Server:
        server = Server(service, "127.0.0.1", 0)
        thread = threading.Thread(target=server.run)
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.stop()
        thread.join()


@pytest.fixture
def still(serve: Callable[[Service], Server]) -> Still:
    service = Still()
    service.url = serve(service).url
    return service


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real Chromium."""
    if not CHROMIUM.exists():
        message = f"NOT TESTED in a browser: no {CHROMIUM}; apt-get install chromium"
        pytest.fail(message) if "CI" in os.environ else pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()
