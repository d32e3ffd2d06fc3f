"""`phasewatch record`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from phasewatch.commands import EXIT_NOTHING_READ, CommandError
from phasewatch.commands.common import note, target_of, unique
from phasewatch.core.durations import format_duration
from phasewatch.service.record import Counts, record
from phasewatch.sources.recording import RecordingError


def run(urls: Sequence[str], *, out: Path, interval: float, duration: float) -> None:
    """Records until the time is over or Ctrl-C; what was written stays. Prints the recording's folder."""
    targets = unique([target_of(url) for url in urls])
    so_far: dict[str, Counts] = {}

    def progress(name: str, counts: Counts) -> None:
        before = so_far.get(name, Counts())
        so_far[name] = counts
        if counts.failures > before.failures and before.last_error != counts.last_error:
            note(counts.last_error or f"{name}: failed")
        elif counts.pages == 1 and not before.pages:
            note(f"{name}: first page kept")

    often, long = format_duration(interval), format_duration(duration)
    note(f"recording {len(targets)} target(s) to {out} every {often} for {long} (Ctrl-C ends it, what is there stays)")
    try:
        record(targets, out, interval, duration, progress)
    except RecordingError as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        note("interrupted")
    for name, counts in so_far.items():
        skipped = f", {counts.skipped} rounds skipped because scrapes took too long" if counts.skipped else ""
        note(f"{name}: {counts.pages} pages, {counts.failures} failures{skipped}")
    if not any(counts.pages for counts in so_far.values()):
        raise CommandError("no page could be read", code=EXIT_NOTHING_READ)
    print(out, file=sys.stdout)
    note(f"look at it with: phasewatch diagnose {out}")
