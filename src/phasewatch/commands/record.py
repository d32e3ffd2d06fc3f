"""`phasewatch record`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from phasewatch.commands import EXIT_NOTHING_READ, CommandError
from phasewatch.commands.common import note, target_of, unique
from phasewatch.commands.options import Interval, positive
from phasewatch.core.durations import format_duration
from phasewatch.service.record import Counts, record
from phasewatch.sources.recording import RecordingError


def command(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Servers to record.")],
    out: Annotated[Path, typer.Option(help="Folder to write to; made if missing.")],
    interval: Interval = "5s",  # type: ignore[assignment]
    duration: Annotated[
        float, typer.Option("--for", parser=positive, metavar="DURATION", help="How long to record.")
    ] = "10m",  # type: ignore[assignment]
) -> None:
    """Ctrl-C ends it early and keeps what was recorded. Prints the folder."""
    targets = unique([target_of(url) for url in urls])
    so_far: dict[str, Counts] = {}

    def progress(name: str, counts: Counts) -> None:
        before = so_far.get(name, Counts())
        so_far[name] = counts
        if counts.failures > before.failures and before.last_error != counts.last_error:
            note(counts.last_error or f"{name}: failed")
        elif counts.pages == 1 and not before.pages:
            note(f"{name}: first scrape recorded")

    often, long = format_duration(interval), format_duration(duration)
    note(f"recording {len(targets)} target(s) to {out} every {often} for {long} (Ctrl-C ends it early)")
    try:
        record(targets, out, interval, duration, progress)
    except RecordingError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        note("interrupted")
    for name, counts in so_far.items():
        skipped = f", {counts.skipped} rounds skipped because scrapes took too long" if counts.skipped else ""
        note(f"{name}: {counts.pages} scrapes, {counts.failures} failures{skipped}")
    if not any(counts.pages for counts in so_far.values()):
        raise CommandError("no scrape succeeded", code=EXIT_NOTHING_READ)
    print(out, file=sys.stdout)
    note(f"look at it with: phasewatch diagnose {out}")
