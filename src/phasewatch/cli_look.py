"""Options of the commands that look: at servers for a while, or at what was recorded of them."""

from pathlib import Path
from typing import Annotated

import typer

from phasewatch.options import (
    WINDOW_HELP,
    DiagnoseFormat,
    EstimatorName,
    EstimatorOption,
    Objective,
    ReplayFormat,
    positive,
    speed,
)


def diagnose(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="URLs of servers, or recordings.")],
    for_: Annotated[
        float,
        typer.Option("--for", parser=positive, metavar="DURATION", help="How long servers are watched."),
    ] = "30s",  # type: ignore[assignment]
    interval: Annotated[
        float, typer.Option(parser=positive, metavar="DURATION", help="Time between two scrapes of a server.")
    ] = "2s",  # type: ignore[assignment]
    window: Annotated[
        float | None,
        typer.Option(
            parser=positive, metavar="DURATION", help=WINDOW_HELP, show_default="--for, at most 60s; recordings 60s"
        ),
    ] = None,
    objective: Objective = [],  # noqa: B006
    at: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Moment of a recording to judge.", show_default="its end"),
    ] = None,
    format: Annotated[DiagnoseFormat, typer.Option(help="Output.")] = DiagnoseFormat.table,
    estimator: EstimatorOption = EstimatorName.sums,
) -> None:
    """Watch servers for a while, or read recordings, and say what is slow, why and what to do.

    Exit code 0: all healthy, idle or asleep. 1: anything else. 2: wrong usage. 3: nothing could be read, or too
    little for a verdict.
    """
    from phasewatch.commands import diagnose as command

    raise typer.Exit(
        command.run(
            sources,
            duration=for_,
            interval=interval,
            window=window,
            objectives=objective,
            at=at,
            as_json=format is DiagnoseFormat.json,
            estimator=estimator.value,
        )
    )


def record(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Servers to record.")],
    out: Annotated[Path, typer.Option(help="Folder to write to; made if missing.")],
    interval: Annotated[
        float, typer.Option(parser=positive, metavar="DURATION", help="Time between two scrapes of a server.")
    ] = "5s",  # type: ignore[assignment]
    for_: Annotated[
        float, typer.Option("--for", parser=positive, metavar="DURATION", help="How long to record.")
    ] = "10m",  # type: ignore[assignment]
) -> None:
    """Keep the pages of servers as files, to replay the incident elsewhere."""
    from phasewatch.commands import record as command

    command.run(urls, out=out, interval=interval, duration=for_)


def replay(
    recording: Annotated[Path, typer.Argument(metavar="DIR", help="A recording.")],
    window: Annotated[
        float | None, typer.Option(parser=positive, metavar="DURATION", help=WINDOW_HELP, show_default="60s")
    ] = None,
    step: Annotated[
        float | None,
        typer.Option(parser=positive, metavar="DURATION", help="Time between two documents.", show_default="10s"),
    ] = None,
    objective: Objective = [],  # noqa: B006
    format: Annotated[
        ReplayFormat | None,
        typer.Option(
            help="A document a line, a line an engine, or the exported series with timestamps.", show_default="jsonl"
        ),
    ] = None,
    unix_start: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="With --format openmetrics: Unix time of the first page.",
            show_default="its own, where it has one",
        ),
    ] = None,
    estimator: EstimatorOption = EstimatorName.sums,
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
        typer.Option(parser=speed, metavar="N", help="With --serve: N times as fast; only for looking."),
    ] = None,
) -> None:
    """Read a recording as it was lived: what would phasewatch have said, and when."""
    from phasewatch.commands import replay as command

    for_serving: dict[str, object] = {"--listen": listen, "--loop": loop or None, "--speed": speed}
    for_reading: dict[str, object] = {"--window": window, "--step": step, "--format": format}
    for_reading |= {"--objective": objective or None, "--unix-start": unix_start}
    misplaced = next((n for n, v in (for_reading if serve else for_serving).items() if v is not None), None)
    if misplaced:
        raise typer.BadParameter(f"{misplaced} has no meaning {'with' if serve else 'without'} --serve")
    if unix_start is not None and format is not ReplayFormat.openmetrics:
        raise typer.BadParameter("--unix-start has no meaning without --format openmetrics")
    if serve:
        command.serve(recording, listen=listen or "127.0.0.1:0", loop=loop, speed=speed or 1.0)
    else:
        command.run(
            recording,
            window=window or 60.0,
            step=step or 10.0,
            objectives=objective,
            form=(format or ReplayFormat.jsonl).value,
            unix_start=unix_start,
            estimator=estimator.value,
        )


def compare(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A recording, or a diagnosis document (JSON file).")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The same after the change.")],
    window: Annotated[
        float | None,
        typer.Option(
            parser=positive,
            metavar="DURATION",
            help="Compare only this long before the moment (or the end) of each recording.",
            show_default="all but the warm-up",
        ),
    ] = None,
    before_at: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Moment of BEFORE at which to stop reading.", show_default="its end"),
    ] = None,
    after_at: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Moment of AFTER at which to stop reading.", show_default="its end"),
    ] = None,
    format: Annotated[DiagnoseFormat, typer.Option(help="Output.")] = DiagnoseFormat.table,
    estimator: EstimatorOption = EstimatorName.sums,
) -> None:
    """Did a change help, and was the load alike? Both may be one recording, with a moment for each.

    Exit code 0: compared, whatever came out. 1: not comparable. 2: wrong usage. 3: nothing could be read.
    """
    from phasewatch.commands import compare as command

    raise typer.Exit(
        command.run(
            before,
            after,
            length=window,
            before_at=before_at,
            after_at=after_at,
            as_json=format is DiagnoseFormat.json,
            estimator=estimator.value,
        )
    )
