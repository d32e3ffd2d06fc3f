"""One line an event on stderr, as logfmt or JSON: ts, level, msg, then what it is about."""

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import Processor

# These say at "info" what a reader of our log did not ask for; their warnings are kept.
_CHATTY = ("uvicorn", "uvicorn.error", "uvicorn.access", "apscheduler", "urllib3", "asyncio")


def setup_logs(level: str = "info", format: str = "logfmt", stream: TextIO | None = None) -> None:
    """Routes structlog and the standard library's logging through one renderer to `stream` (stderr)."""
    shared: list[Processor] = [
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.stdlib.add_log_level,
        structlog.processors.EventRenamer("msg"),
    ]
    render: Processor = (
        structlog.processors.JSONRenderer(default=str, ensure_ascii=False)
        if format == "json"
        else structlog.processors.LogfmtRenderer(key_order=["ts", "level", "msg"], bool_as_flag=False)
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _one_line,
                render,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _CHATTY:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(max(logging.WARNING, root.level) if level != "debug" else logging.INFO)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _one_line(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Names and errors come from outside: none of them may start a line of its own or steer a terminal."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
    return event
