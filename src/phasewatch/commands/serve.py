"""`phasewatch serve` and `phasewatch check-config`."""

from collections.abc import Mapping
from pathlib import Path

from phasewatch.commands import EXIT_USAGE, CommandError
from phasewatch.commands.common import note
from phasewatch.core.durations import format_duration
from phasewatch.outputs.web.server import ListenError, run_server
from phasewatch.service.config import ConfigError, check_config, load_config
from phasewatch.service.logs import setup_logs
from phasewatch.service.service import Service


def run(path: Path | None, flags: Mapping[str, str]) -> None:
    """Serves until SIGTERM or Ctrl-C. flags: values by dotted configuration key."""
    try:
        config = load_config(path, flags=flags)
    except ConfigError as error:
        raise CommandError(*error.lines) from None
    setup_logs(config.log.level, config.log.format)
    try:
        run_server(Service(config), *config.web.host_and_port)
    except ListenError as error:
        raise CommandError(str(error)) from None


def check(path: Path) -> int:
    """Prints a short summary; mistakes and warnings go to stderr, one a line. Returns the exit code."""
    try:
        config, warnings = check_config(path)
    except ConfigError as error:
        for line in error.lines:
            note(line)
        return EXIT_USAGE
    for line in warnings:
        note(f"warning: {line}")
    windows = ", ".join(format_duration(window) for window in config.windows)
    print(
        f"{path}: ok: {len(config.targets)} target(s) every {format_duration(config.scrape.interval)},"
        f" windows {windows}, objectives {config.objectives.profile}, served on {config.web.listen_address}"
    )
    return 0
