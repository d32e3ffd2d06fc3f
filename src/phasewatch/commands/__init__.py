"""One file a command: its options, their help, and what it does, as the function `command`. cli.COMMANDS lists them."""

EXIT_UNHEALTHY = 1
EXIT_USAGE = 2
EXIT_NOTHING_READ = 3


class CommandError(Exception):
    """Ends a command. lines: what is wrong, where, what to do, one a mistake; code: the exit code."""

    def __init__(self, *lines: str, code: int = EXIT_USAGE) -> None:
        super().__init__(*lines)
        self.lines = lines
        self.code = code
