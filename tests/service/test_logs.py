import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog

from fleets import DOWN, INTERNAL_ERROR, MODEL, OWN_FAULT, SERVING, engine, fleet, slow_engine, target
from phasewatch.core.model import Anomaly
from phasewatch.service.changes import Changes
from phasewatch.service.logs import setup_logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes; the process's own logging is put back after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_logfmt_has_time_level_message_then_the_rest(stream: io.StringIO) -> None:
    setup_logs("info", "logfmt", stream)
    structlog.get_logger("x").info("target down", target="a b", count=3, nothing=None, flag=True)
    structlog.get_logger("x").debug("not shown")
    line = stream.getvalue()
    assert line.startswith("ts=20")
    assert line.partition(" ")[2] == 'level=info msg="target down" target="a b" count=3 nothing= flag=true\n'


def test_json_has_the_same_keys(stream: io.StringIO) -> None:
    setup_logs("debug", "json", stream)
    structlog.get_logger("x").debug("ünlike", target="a")
    entry = json.loads(stream.getvalue())
    assert entry.pop("ts").endswith("Z")
    assert entry == {"level": "debug", "msg": "ünlike", "target": "a"}


@pytest.mark.parametrize("format", ["logfmt", "json"])
def test_one_event_is_one_line_whatever_a_name_or_error_holds(stream: io.StringIO, format: str) -> None:
    setup_logs("info", format, stream)
    log = structlog.get_logger("x")
    log.info("a\nb", target="evil\nlevel=error\r\x1b[31m\u2028red\x00")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("went wrong")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert "\x1b" not in lines[0]
    assert "ValueError" in lines[1]
    assert "Traceback" in lines[1]


def test_libraries_log_through_it_and_only_what_matters(stream: io.StringIO) -> None:
    setup_logs("info", "logfmt", stream)
    for name in ("uvicorn.error", "apscheduler.scheduler", "uvicorn.access", "urllib3.connectionpool"):
        logging.getLogger(name).info("chat of %s", name)
        logging.getLogger(name).warning("trouble of %s", name)
    assert [line.partition("msg=")[2] for line in stream.getvalue().splitlines()] == [
        '"trouble of uvicorn.error"', '"trouble of apscheduler.scheduler"', '"trouble of uvicorn.access"',
        '"trouble of urllib3.connectionpool"',
    ]  # fmt: skip


def test_the_log_goes_to_stderr() -> None:
    code = "import phasewatch.service.logs as logs, structlog; logs.setup_logs(); structlog.get_logger().info('hi')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    assert "msg=hi" in ran.stderr


def test_a_change_is_logged_once_and_a_round_without_change_says_nothing() -> None:
    with structlog.testing.capture_logs() as logged:
        changes = Changes(structlog.get_logger())
        healthy = fleet((engine(),), targets=(target(),))
        slow = fleet((slow_engine("gpu-1:8000"),), targets=(target(),))
        for shown in (healthy, healthy, slow, slow, DOWN, DOWN, healthy, healthy):
            changes.log(shown)
    told = [(e["log_level"], e["event"], e["target"], e.get("verdict", e.get("state"))) for e in logged]
    gpu = "gpu-1:8000"
    assert told == [
        ("info", "target state", gpu, "serving"),
        ("info", "verdict", gpu, "healthy"),
        ("info", "engine event", gpu, None),
        ("info", "engine event", gpu, None),
        ("warning", "verdict", gpu, "queue_batch_limit"),
        ("warning", "target in trouble", gpu, "down"),
        ("info", "engine state", gpu, "down"),
        ("info", "target recovered", gpu, "serving"),
        ("info", "verdict", gpu, "healthy"),
    ]
    assert logged[2] == {
        "event": "engine event", "log_level": "info", "target": gpu, "model_name": MODEL, "engine": "0",
        "kind": "restart", "before": 1.7e9, "after": 1.7e9 + 20,
    }  # fmt: skip
    assert logged[4]["previous"] == "healthy"
    assert logged[4]["summary"] == SERVING.engines[0].summary
    assert logged[5]["error"] == "connection refused"


def test_our_own_fault_is_logged_with_its_traceback_when_it_begins_and_once_when_it_ends() -> None:
    broken = replace(SERVING.models[0], fault=OWN_FAULT)
    well, ill = fleet((engine(),), (SERVING.models[0],)), fleet(INTERNAL_ERROR.engines[:1], (broken,))
    with structlog.testing.capture_logs() as logged:
        changes = Changes(structlog.get_logger())
        for shown in (well, ill, ill, ill, well, well):
            changes.log(shown)
    own = [entry for entry in logged if entry["event"].startswith("internal error")]
    assert [(entry["log_level"], entry["event"], "engine" in entry) for entry in own] == [
        ("error", "internal error", True),
        ("error", "internal error", False),
        ("info", "internal error is over", True),
        ("info", "internal error is over", False),
    ]
    assert own[0]["traceback"] == OWN_FAULT.traceback


def test_an_anomaly_is_logged_when_it_begins_and_after_a_window_without_it() -> None:
    cut = Anomaly("unreadable_line", 1, "line 7 cannot be read: 'x'")
    gone = replace(cut, present=False)
    shown = ((), (cut,), (gone,), (cut,), (cut,), *[(gone,)] * 8)
    with structlog.testing.capture_logs() as logged:
        changes = Changes(structlog.get_logger())
        for turn, anomalies in enumerate(shown):
            changes.log(replace(fleet((), targets=(target(anomalies=anomalies),)), at=10.0 * turn, window_seconds=60.0))
            assert len([e for e in logged if "kind" in e]) == (turn >= 1) + (turn >= 11)
    assert [(e["log_level"], e["event"], e["kind"]) for e in logged if "kind" in e] == [
        ("warning", "anomaly", "unreadable_line"),
        ("info", "anomaly is over", "unreadable_line"),
    ]
