"""The command line: options and their help. What a command does is in commands/, imported when it runs."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from phasewatch import __version__
from phasewatch.commands import EXIT_USAGE, CommandError
from phasewatch.options import (
    WINDOW_HELP,
    DiagnoseFormat,
    EstimatorName,
    EstimatorOption,
    ExportFormat,
    ExportLabels,
    ExportWhat,
    LogFormat,
    LogLevel,
    Objective,
    ReplayFormat,
    positive,
    speed,
)

# A pipe whose reader went away, as a shell reports it.
_EXIT_BROKEN_PIPE = 141
_EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="phasewatch",
    help="Says which phase of a vLLM fleet is slow (queue, prefill, decode, front end), why, and what to change.",
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"phasewatch {__version__}")
        raise typer.Exit


@app.callback()
def _app(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command("check-config")
def check_config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Configuration to check.")],
) -> None:
    """Say whether a configuration is right, and what looks odd about it."""
    from phasewatch.commands import serve as command

    raise typer.Exit(command.check(file))


@app.command("check-rules")
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


@app.command()
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
            help="Only serve the replicas, the first here and the others on the next ports, for a phasewatch elsewhere.",
        ),
    ] = None,
) -> None:
    """phasewatch on three replicas of one model, recorded from a real vLLM; one runs into an incident."""
    from phasewatch import demo as command

    if fleet_only is None:
        command.run(for_, listen)
    elif listen is None:
        command.run_fleet(for_, fleet_only)
    else:
        raise typer.BadParameter("--web.listen-address has no meaning with --fleet-only: no phasewatch is run")


@app.command()
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


def main() -> NoReturn:
    """The console script. SIGTERM ends a command as Ctrl-C does, with what it has so far (serve has its own way)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """One call of the command line -> its exit code. Errors are one line each on stderr, never a traceback."""
    try:
        code = app(list(arguments), prog_name="phasewatch", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except TyperException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _fail(f"{error.format_message()}{hint}", code=error.exit_code)
    except CommandError as error:
        return _fail(*error.lines, code=error.code)
    except (KeyboardInterrupt, typer.Abort):
        return _EXIT_INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # typer turns a broken pipe into sys.exit(1), which for diagnose has a meaning; nothing else here exits so.
        # Python flushes stdout once more at its end; there is nobody left to read it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), code=EXIT_USAGE)


def _fail(*lines: str, code: int) -> int:
    for line in lines:
        print(f"phasewatch: {' '.join(line.split())}", file=sys.stderr)
    return code
