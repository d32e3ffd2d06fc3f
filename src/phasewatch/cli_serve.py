"""Options of the commands that stay, and of those that check and hand out what belongs to them."""

from pathlib import Path
from typing import Annotated

import typer

from phasewatch.options import (
    ExportFormat,
    ExportLabels,
    ExportWhat,
    LogFormat,
    LogLevel,
    positive,
)


def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config.file", envvar="PHASEWATCH_CONFIG_FILE", metavar="FILE", help="Configuration (YAML)."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--web.listen-address",
            metavar="HOST:PORT",
            help="Where the page and /metrics are served.",
            show_default="127.0.0.1:9321",
        ),
    ] = None,
    log_level: Annotated[
        LogLevel | None, typer.Option("--log.level", help="Least level that is logged.", show_default="info")
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option("--log.format", help="How logs are written.", show_default="logfmt")
    ] = None,
) -> None:
    """Watch a fleet for good: verdicts as gauges on /metrics, as JSON and as a page.

    Targets come from the configuration, or from the environment: VLLM_TARGETS=http://a:8000,http://b:8000.
    """
    from phasewatch.commands import serve as command

    flags = {"web.listen_address": listen, "log.level": log_level, "log.format": log_format}
    command.run(config, {key: str(value) for key, value in flags.items() if value is not None})


def check_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Configuration to check.")],
) -> None:
    """Say whether a configuration is right, and what looks odd about it."""
    from phasewatch.commands import serve as command

    raise typer.Exit(command.check(file))


def check_rules(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILES]...", help="Prometheus rule files.", show_default="the rules of phasewatch"),
    ] = None,
    against: Annotated[
        list[str],
        typer.Option(
            metavar="URL",
            help="A running server whose names count too: a /metrics, or a Prometheus' /api/v1/label/__name__/values.",
        ),
    ] = [],  # noqa: B006
    vllm: Annotated[
        list[str], typer.Option(metavar="VERSION", help="The vLLM in use; may be given again.", show_default="newest")
    ] = [],  # noqa: B006
) -> None:
    """Say which Prometheus rules about vLLM or phasewatch can never fire, and why; and what a page would lack.

    Exit code 0: nothing wrong (there may be warnings). 1: errors. 2: wrong usage, or nothing could be read.
    """
    from phasewatch.commands import check_rules as command

    raise typer.Exit(command.run(files or [], against, vllm))


def demo(
    for_: Annotated[
        float | None,
        typer.Option("--for", parser=positive, metavar="DURATION", help="Stop by itself.", show_default="at Ctrl-C"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--web.listen-address",
            metavar="HOST:PORT",
            help="Where phasewatch's page is served.",
            show_default="127.0.0.1:9321, or any free port",
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
    """phasewatch on three replicas of one model, recorded from a real vLLM; one runs into an incident."""
    from phasewatch.commands import demo as command

    if fleet_only is None:
        command.run(for_, listen)
    elif listen is None:
        command.run_fleet(for_, fleet_only)
    else:
        raise typer.BadParameter("--web.listen-address has no meaning with --fleet-only: no phasewatch is run")


def export(
    what: Annotated[ExportWhat, typer.Argument(help="Grafana's dashboards, Prometheus' rules with runbooks, or both.")],
    out: Annotated[Path, typer.Option(help="Folder to write to; made if missing.")],
    format: Annotated[
        ExportFormat, typer.Option(help="Plain files, or ConfigMaps, PrometheusRules and a ServiceMonitor.")
    ] = ExportFormat.files,
    label: ExportLabels = [],  # noqa: B006
    force: Annotated[bool, typer.Option("--force", help="Write over files that say something else.")] = False,
) -> None:
    """Write the dashboards and rules that come with phasewatch, for your own Grafana and Prometheus."""
    from phasewatch.commands import export as command

    command.run(what.value, out=out, form=format.value, labels=label, force=force)
