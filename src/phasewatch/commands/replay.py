"""`phasewatch replay`: a recording as documents, as lines, as series, or live again."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from phasewatch.commands import CommandError
from phasewatch.commands.common import listen_address, note, recording_of, settings_of, wait
from phasewatch.commands.options import WINDOW_HELP, EstimatorOption, Objective, one_of, positive, seconds_at
from phasewatch.core.pages.catalog import EARLIEST_UNIX
from phasewatch.core.settings import Settings
from phasewatch.outputs.formats import FORMATS, Format
from phasewatch.outputs.replay_server import ReplayError, ReplayServer
from phasewatch.sources.recording import Recording
from phasewatch.sources.replaying import replay, span


def _speed(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1000:
        raise typer.BadParameter(f"invalid speed {text!r}; use a number above 0 and at most 1000, such as 4")
    return number


def command(
    path: Annotated[Path, typer.Argument(metavar="RECORDING", help="A folder, or one file NAME.tar.xz.")],
    window: Annotated[
        float | None, typer.Option(parser=positive, metavar="DURATION", help=WINDOW_HELP, show_default="60s")
    ] = None,
    step: Annotated[
        float | None,
        typer.Option(parser=positive, metavar="DURATION", help="Time between two documents.", show_default="10s"),
    ] = None,
    objective: Objective = [],  # noqa: B006
    format: Annotated[
        str | None,
        typer.Option(
            help="A document a line, a line an engine, or the exported series with timestamps.",
            show_default="jsonl",
            **one_of(*(name for name, row in FORMATS.items() if row.fleets or row.series)),
        ),
    ] = None,
    unix_start: Annotated[
        float | None,
        typer.Option(
            parser=seconds_at,
            metavar="SECONDS",
            help="With --format openmetrics: Unix time of the first scrape.",
            show_default="its own, where it has one",
        ),
    ] = None,
    estimator: EstimatorOption = "sums",
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve each recorded target as a live /metrics instead.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --serve: address of the first target; port 0 takes any free one.",
            show_default="127.0.0.1:0",
        ),
    ] = None,
    loop: Annotated[bool, typer.Option("--loop", help="With --serve: begin again at the end, no restart.")] = False,
    speed: Annotated[
        float | None,
        typer.Option(parser=_speed, metavar="N", help="With --serve: N times as fast; only for looking."),
    ] = None,
) -> None:
    """With --serve it serves until Ctrl-C, or until the recording is over, and prints a line `TARGET URL` first."""
    for_serving: dict[str, object] = {"--listen": listen, "--loop": loop or None, "--speed": speed}
    for_reading: dict[str, object] = {"--window": window, "--step": step, "--format": format}
    for_reading |= {"--objective": objective or None, "--unix-start": unix_start}
    misplaced = next((n for n, v in (for_reading if serve else for_serving).items() if v is not None), None)
    if misplaced:
        raise typer.BadParameter(f"{misplaced} {'does not go with' if serve else 'needs'} --serve; remove it")
    row = FORMATS[format or "jsonl"]
    if unix_start is not None and row.series is None:
        raise typer.BadParameter("--unix-start needs --format openmetrics; remove it")
    recording = recording_of(path)
    if serve:
        _serve(recording, listen or "127.0.0.1:0", loop, speed or 1.0)
    else:
        windows: tuple[float, ...] = (window or 60.0,)
        if row.series is not None:
            # Series carry their window as a label, so that the service's longer ones find a place beside the first.
            windows += tuple(longer for longer in Settings().windows[1:] if longer > windows[0])
        _print(path, recording, row, settings_of(windows, objective, estimator), step or 10.0, unix_start)


def _print(
    path: Path, recording: Recording, row: Format, settings: Settings, step: float, unix_start: float | None
) -> None:
    first, end = span(recording)
    if end < first + step:
        note(f"{path}: lasts {end - first:g} s, less than one step of {step:g} s: nothing to say; try --step 2s")
    fleets = replay(recording, settings, step)
    if row.series is not None:
        row.series(fleets, sys.stdout, settings, _wall_offset(path, first, unix_start))
    elif row.fleets is not None:
        row.fleets(fleets, sys.stdout)


def _wall_offset(path: Path, first: float, unix_start: float | None) -> float:
    if unix_start is not None:
        return unix_start - first
    if first < EARLIEST_UNIX:
        raise CommandError(
            f"{path}: its times count from its own start; give that moment, such as --unix-start $(date +%s)"
        )
    return 0.0


def _serve(recording: Recording, listen: str, loop: bool, speed: float) -> None:
    try:
        server = ReplayServer(recording, listen=listen_address(listen), loop=loop, speed=speed)
    except ReplayError as error:
        raise CommandError(str(error)) from None
    with server:
        for target, url in server.urls.items():
            print(target, url, flush=True)
        first, end = span(recording)
        note(f"serving {(end - first) / speed:.0f} s{' again and again' if loop else ''} (Ctrl-C stops)")
        wait(server.done)
    note("the recording is over" if server.done.is_set() else "stopped")
