"""The command line. Options and their help are in cli_look and cli_serve, what a command does in commands/."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from phasewatch import __version__, cli_look, cli_serve
from phasewatch.commands import EXIT_USAGE, CommandError

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


for _command in (cli_look.diagnose, cli_look.record, cli_look.replay, cli_look.compare, cli_serve.serve):
    app.command()(_command)
app.command("check-config")(cli_serve.check_config)
app.command("check-rules")(cli_serve.check_rules)
app.command()(cli_serve.demo)
app.command()(cli_serve.export)


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
