"""`phasewatch serve`."""

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from phasewatch.commands import CommandError
from phasewatch.commands.options import one_of

# Seconds after which a thread that computes lets one go on that a server has answered: Python's own 5 ms, a dozen times
# in a scrape, would make scrapes late while a large fleet is judged.
_SWITCH_SECONDS = 0.001
# New objects after which Python looks for circles among them. A scrape makes thousands, and circles hardly ever.
_COLLECT_OBJECTS = 50_000


def command(
    config: Annotated[
        Path | None,
        typer.Option("--config.file", envvar="PHASEWATCH_CONFIG_FILE", metavar="FILE", help="Configuration (YAML)."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--web.listen-address",
            metavar="HOST:PORT",
            help="Where the web page and /metrics are served.",
            show_default="127.0.0.1:9321",
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            "--log.level",
            help="Least level that is logged.",
            show_default="info",
            **one_of("debug", "info", "warning", "error"),
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option("--log.format", help="How logs are written.", show_default="logfmt", **one_of("logfmt", "json")),
    ] = None,
) -> None:
    """Targets come from the configuration, or from the environment: VLLM_TARGETS=http://a:8000,http://b:8000.

    SIGTERM or Ctrl-C ends it.
    """
    # Not above: the help of this command should not wait for the web framework.
    from phasewatch.outputs.web.server import ListenError, run_server
    from phasewatch.service.config import ConfigError, load_config
    from phasewatch.service.logs import setup_logs
    from phasewatch.service.service import Service

    try:
        loaded = load_config(config, flags={"web.listen_address": listen, "log.level": level, "log.format": format})
    except ConfigError as error:
        raise CommandError(*error.lines) from None
    setup_logs(loaded.log.level, loaded.log.format)
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(_COLLECT_OBJECTS)
    try:
        run_server(Service(loaded), *loaded.web.host_and_port)
    except ListenError as error:
        raise CommandError(str(error)) from None
