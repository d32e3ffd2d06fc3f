"""`phasewatch record`."""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from phasewatch.commands import EXIT_NOTHING_READ, CommandError
from phasewatch.commands.common import note, target_of, unique
from phasewatch.commands.options import Interval, positive
from phasewatch.core.durations import format_duration
from phasewatch.service.record import Counts, record
from phasewatch.sources.packed import SUFFIX
from phasewatch.sources.packing import pack
from phasewatch.sources.recording import RecordingError

# A file is packed at the end, from a folder by its name and this: what is killed before leaves the folder.
_UNPACKED = ".part"


def command(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Servers to record.")],
    out: Annotated[
        Path,
        typer.Option(
            help=f"Folder to write to, made if missing; or one file NAME{SUFFIX}, packed at the end from a folder"
            f" NAME{SUFFIX}{_UNPACKED}."
        ),
    ],
    interval: Interval = "5s",  # type: ignore[assignment]
    duration: Annotated[
        float, typer.Option("--for", parser=positive, metavar="DURATION", help="How long to record.")
    ] = "10m",  # type: ignore[assignment]
) -> None:
    """Ctrl-C ends it early and keeps what was recorded. Prints the folder or file."""
    targets = unique([target_of(url) for url in urls])
    folder = _folder_for(out)
    so_far: dict[str, Counts] = {}

    def progress(name: str, counts: Counts) -> None:
        before = so_far.get(name, Counts())
        so_far[name] = counts
        if counts.failures > before.failures and before.last_error != counts.last_error:
            note(counts.last_error or f"{name}: failed")
        elif counts.pages == 1 and not before.pages:
            note(f"{name}: first scrape recorded")

    often, long = format_duration(interval), format_duration(duration)
    until_then = "" if folder == out else f", until then to {folder}"
    note(f"recording {len(targets)} target(s) to {out} every {often} for {long} (Ctrl-C ends it early){until_then}")
    try:
        with nullcontext() if folder == out else _packed(folder, out):
            try:
                record(targets, folder, interval, duration, progress)
            except KeyboardInterrupt as interrupt:
                if isinstance(interrupt.__context__, KeyboardInterrupt):  # while the first was ending it
                    raise
                note("interrupted")
            for name, counts in so_far.items():
                skipped = f", {counts.skipped} rounds skipped because scrapes took too long" if counts.skipped else ""
                note(f"{name}: {counts.pages} scrapes, {counts.failures} failures{skipped}")
    except RecordingError as error:
        raise CommandError(str(error)) from None
    if not any(counts.pages for counts in so_far.values()):
        raise CommandError("no scrape succeeded", code=EXIT_NOTHING_READ)
    print(out, file=sys.stdout)
    note(f"look at it with: phasewatch diagnose {out}")


def _folder_for(out: Path) -> Path:
    """Where pages are written: `out` itself, or what is packed into it."""
    if not out.name.endswith(SUFFIX) or out.is_dir():
        return out
    if out.exists():
        raise CommandError(f"{out}: exists, and a recording is never overwritten; give a new name")
    return out.with_name(out.name + _UNPACKED)


@contextmanager
def _packed(folder: Path, out: Path) -> Iterator[None]:
    """The folder, for as long as it is written to, and then the file in its place; the folder stays where that fails.

    Raises CommandError where another process writes to it, and RecordingError.
    """
    if folder.exists():
        note(f"going on with {folder}, which an earlier recording left")
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"{folder}: another phasewatch is recording to it; give a new name") from None
        yield
        if any(folder.iterdir()):
            pack(folder, out)
            shutil.rmtree(folder)
    except KeyboardInterrupt:
        if not out.exists():
            note(f"not packed; the recording is {folder}: use it, or pack it: tar -cJf {out} -C {folder} .")
        raise
    finally:
        os.close(held)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
