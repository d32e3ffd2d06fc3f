"""The command line, put together from the files in commands/: one a command, its options included."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from inspect import getdoc
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from phasewatch import __version__
from phasewatch.commands import EXIT_USAGE, CommandError

# What each command does, in the order of help. The function `command` of commands/NAME.py is the command; only the one
# that is asked for is imported.
COMMANDS: Mapping[str, str] = {
    "diagnose": "Watch servers for a while, or read recordings, and say what is slow, why and what to do.",
    "record": "Record what servers answer on /metrics, to replay the incident elsewhere.",
    "replay": "Replay a recording as if live: what would phasewatch have said, and when?",
    "compare": "Compare two recordings or documents: did a change help, and was the load alike?",
    "serve": "Watch a fleet for good: verdicts as gauges on /metrics, as JSON and on a web page.",
    "check-config": "Check a configuration file, and warn about what looks odd in it.",
    "check-rules": "Check Prometheus rules about vLLM or phasewatch for metrics that do not exist.",
    "demo": "Run phasewatch on three recorded replicas of one model; one runs into an incident.",
    "export": "Write the dashboards and rules that come with phasewatch, for your own Grafana and Prometheus.",
}

# A pipe whose reader went away, as a shell reports it.
_EXIT_BROKEN_PIPE = 141
_EXIT_INTERRUPTED = 130


class _Loaded(Mapping[str, TyperCommand]):
    """Imports a command when it is called or asked for its own help: no other has to wait for its libraries."""

    def __getitem__(self, name: str) -> TyperCommand:
        """What the docstring of the command's function says follows its line in COMMANDS."""
        said = COMMANDS[name]
        function = import_module(f"phasewatch.commands.{name.replace('-', '_')}").command
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        alone.command(name, help=f"{said}\n\n{getdoc(function) or ''}")(function)
        loaded = typer.main.get_command(alone)
        assert isinstance(loaded, TyperCommand)
        return loaded

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Loaded()  # type: ignore[assignment]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="phasewatch",
    cls=_Commands,
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
