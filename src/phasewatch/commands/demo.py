"""`phasewatch demo`: three recorded replicas of one model, served again, and a real phasewatch watching them."""

import sys
import threading
import time
from collections.abc import Iterator
from importlib.resources import as_file, files
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from phasewatch.commands import CommandError
from phasewatch.commands.common import listen_address, note, wait
from phasewatch.commands.options import positive
from phasewatch.core.model import EngineReport, Fleet
from phasewatch.core.report.document import engine_order
from phasewatch.outputs import terminal
from phasewatch.outputs.replay_server import ReplayError, ReplayServer
from phasewatch.outputs.web.server import ListenError, Server
from phasewatch.service.config_sections import Config
from phasewatch.service.logs import setup_logs
from phasewatch.service.service import Service
from phasewatch.sources.packed import open_packed
from phasewatch.sources.recording import Recording

USUAL_PORT = 9321
# What the recorded server, a small model on two CPU cores, does well; see scripts/make_demo_recordings.py.
OBJECTIVES = {"ttft_p99": "1s", "itl_p99": "250ms"}
INTERVAL = "2s"
_LOOK_SECONDS = 0.25


def command(
    duration: Annotated[
        float | None,
        typer.Option(
            "--for", parser=positive, metavar="DURATION", help="Stop after this time.", show_default="at Ctrl-C"
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--web.listen-address",
            metavar="HOST:PORT",
            help="Where phasewatch's web page is served.",
            show_default=f"127.0.0.1:{USUAL_PORT}, or any free port",
        ),
    ] = None,
    fleet_only: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Only serve the replicas: the first here, the others on the next ports; for a phasewatch elsewhere.",
        ),
    ] = None,
) -> None:
    """Needs no server, no GPU and no configuration. The incident begins after about a minute."""
    if fleet_only is None:
        _watched(duration, listen)
    elif listen is None:
        _fleet(duration, fleet_only)
    else:
        raise typer.BadParameter(
            "--web.listen-address does not go with --fleet-only, which runs no phasewatch; remove it"
        )


def _watched(duration: float | None, listen: str | None) -> None:
    """Until Ctrl-C or for `duration` seconds. A table that changes in place on a terminal, else a line a change."""
    with ReplayServer(demo_recording(), loop=True) as replicas:
        service = Service(_config(replicas.urls))
        setup_logs("error")
        server = _server(service, listen)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            for name, url in replicas.urls.items():
                note(f"{name} is served on {url}")
            print(f"phasewatch is on {server.url} (web page), {server.url}/metrics (gauges)", flush=True)
            end = None if duration is None else time.monotonic() + duration
            (_table if sys.stdout.isatty() else _lines)(service, server.url, end)
        except KeyboardInterrupt:
            pass
        finally:
            server.stop()
            thread.join()
    note("stopped")


def _fleet(duration: float | None, listen: str) -> None:
    """Only the replicas, for a phasewatch elsewhere: the first at `listen`, the others on the next ports."""
    try:
        replicas = ReplayServer(demo_recording(), listen=listen_address(listen), loop=True)
    except ReplayError as error:
        raise CommandError(str(error)) from None
    with replicas:
        for name, url in replicas.urls.items():
            print(name, url, flush=True)
        note("serving again and again (Ctrl-C stops)")
        wait(replicas.done, duration)
    note("stopped")


def demo_recording() -> Recording:
    """The recordings that the package ships."""
    with as_file(files("phasewatch") / "recordings" / "demo.tar.xz") as archive:
        return open_packed(str(archive))


def _config(urls: dict[str, str]) -> Config:
    return Config.model_validate({
        "targets": [{"name": name, "url": url} for name, url in urls.items()],
        "scrape": {"interval": INTERVAL},
        "objectives": OBJECTIVES,
    })  # fmt: skip


def _server(service: Service, listen: str | None) -> Server:
    try:
        if listen is not None:
            return Server(service, *listen_address(listen))
        try:
            return Server(service, "127.0.0.1", USUAL_PORT)
        except ListenError:
            return Server(service, "127.0.0.1", 0)
    except ListenError as error:
        raise CommandError(str(error)) from None


def _rounds(service: Service, end: float | None) -> Iterator[Fleet]:
    """Each new Fleet of the service until `end`."""
    seen: Fleet | None = None
    while end is None or time.monotonic() < end:
        fleet = service.fleet
        if fleet is not None and fleet is not seen:
            seen = fleet
            yield fleet
        left = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, end - time.monotonic())
        time.sleep(max(0.0, left))


def _engines(fleet: Fleet) -> list[EngineReport]:
    return sorted(fleet.engines, key=engine_order)


def _table(service: Service, url: str, end: float | None) -> None:
    shown = terminal.console(sys.stdout)
    with Live(console=shown, auto_refresh=False) as live:
        for fleet in _rounds(service, end):
            sick = [e for e in _engines(fleet) if e.wants_a_look]
            told = [Text(f"\n{terminal.name(e)}: {e.summary}\n  do first: {_first_remedy(e)}") for e in sick]
            foot = Text(f"\n{url} shows the same; Ctrl-C stops", style="dim")
            live.update(Group(terminal.overview(_engines(fleet)), *told, foot), refresh=True)


def _lines(service: Service, url: str, end: float | None) -> None:
    begin = time.monotonic()
    before: dict[str, str] = {}
    for fleet in _rounds(service, end):
        for engine in _engines(fleet):
            name, now = terminal.name(engine), engine.verdict or engine.state
            if before.get(name) != now:
                what = f": {engine.summary}" if engine.summary else ""
                print(f"{time.monotonic() - begin:5.1f} s  {name}  {now}{what}", flush=True)
                if engine.wants_a_look:
                    print(f"         do first: {_first_remedy(engine)}", flush=True)
            before[name] = now
    print("at the end:", *(f"{name} {now}" for name, now in before.items()), flush=True)


def _first_remedy(engine: EngineReport) -> str:
    remedies = engine.causes[0].remedies if engine.causes else ()
    return remedies[0].change if remedies else "nothing"
