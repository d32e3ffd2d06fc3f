"""`phasewatch check-config`."""

from pathlib import Path
from typing import Annotated

import typer

from phasewatch.commands import EXIT_USAGE
from phasewatch.commands.common import note
from phasewatch.core.durations import format_duration
from phasewatch.service.config import ConfigError, check_config


def command(file: Annotated[Path, typer.Argument(metavar="FILE", help="Configuration to check.")]) -> None:
    """Prints a short summary. Mistakes and warnings go to stderr, one a line; mistakes end with exit code 2."""
    try:
        config, warnings = check_config(file)
    except ConfigError as error:
        for line in error.lines:
            note(line)
        raise typer.Exit(EXIT_USAGE) from None
    for line in warnings:
        note(f"warning: {line}")
    windows = ", ".join(format_duration(window) for window in config.windows)
    print(
        f"{file}: ok: {len(config.targets)} target(s) every {format_duration(config.scrape.interval)},"
        f" windows {windows}, objectives {config.objectives.profile}, served on {config.web.listen_address}"
    )
