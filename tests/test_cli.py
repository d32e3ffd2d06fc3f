"""The command line as a user meets it: data on stdout, one clear line on stderr, the right exit code."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from phasewatch import __version__, cli
from phasewatch.core.report.document import SCHEMA
from phasewatch.outputs.formats import FORMATS
from phasewatch.sources.packed import SUFFIX, open_packed
from phasewatch.sources.recording import open_recording
from support import HttpServer, Reply, Run, real, real_pages, unpacked, wait_until

QUICK = ("--for", "500ms", "--interval", "100ms")
OBJECTIVES = ("--objective", "ttft_p99=1s", "--objective", "itl_p99=250ms")
COMMAND = [sys.executable, "-m", "phasewatch"]


def page() -> bytes:
    return next(iter(real_pages("healthy", first=40).values())).encode()


# --- wrong usage


def test_version_and_help_are_data(run: Run) -> None:
    assert run("--version") == (0, f"phasewatch {__version__}\n", "")
    for arguments in ([], ["--help"], ["diagnose", "-h"]):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        assert out.startswith("Usage: phasewatch")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope"], "No such command 'nope'"),
        (["diagnose"], "Missing argument 'SOURCE...'"),
        (["diagnose", "x", "--nope"], "No such option"),
        (["diagnose", "http://localhost:1", "--for", "abc"], "invalid duration 'abc'; use 250ms or 1m30s"),
        (["diagnose", "http://localhost:1", "--for", "0s"], "must be above zero"),
        (["diagnose", "http://localhost:1", "--format", "xml"], "unknown value 'xml'; use table or json"),
        (["diagnose", "http://localhost:1", "--objective", "p99=1s"], "objective 'p99=1s': write NAME=DURATION"),
        (["diagnose", "http://localhost:1", "--objective", "ttft_p99=fast"], "invalid duration 'fast'"),
        (["diagnose", "http://localhost:1", "--estimator", "guess"], "'guess'"),
        (["diagnose", "http://localhost:1", "--at", "5"], "--at applies to recordings only"),
        (["diagnose", "http://localhost:1", "--window", "3s", "--interval", "2s"], "shorter than two intervals of 2s"),
        (["diagnose", "http://h:1", "http://h:1/metrics"], "duplicate target h:1; remove one"),
        (["diagnose", "http://h:1/a", "h:1/b", "h:1/a"], "duplicate target h:1/a; remove one"),
        (["diagnose", "ftp://h"], "use http:// or https://"),
        (["record", "http://h:1"], "Missing option '--out'"),
        (["record", "http://h:1", "http://h:1", "--out", "/tmp/x"], "duplicate target h:1; remove one"),
        (["replay", "x", "--loop"], "--loop needs --serve; remove it"),
        (["replay", "x", "--serve", "--step", "1s"], "--step does not go with --serve; remove it"),
        (["replay", "x", "--serve", "--speed", "-1"], "invalid speed '-1'; use a number above 0"),
        (["demo", "--web.listen-address", "nowhere"], "invalid listen address 'nowhere'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run: Run, arguments: list[str], says: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("phasewatch: ")
    assert says in err


# --- bad sources


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path / "missing", "no such recording; for a server write its URL"),
        (lambda path: path, "has no scrapes"),
        (lambda path: _file(path / "page.prom", b"x 1\n"), "is a file; a recording is a folder"),
        (lambda path: _file(path / "1.prom", b"<html><body>no</body></html>").parent, "expected metrics, got HTML"),
        (
            lambda path: _file(_file(path / "1.prom", b"x 1\n").with_name("1795983801.prom"), b"x 1\n").parent,
            "two clocks",
        ),
        (lambda path: _file(path / "1.prom.gz", gzip.compress(b"x 1\n" * 99)[:20]).parent, "is cut off"),
    ],
    ids=["missing", "empty folder", "file", "HTML page", "two clocks", "truncated gzip"],
)
def test_a_recording_that_cannot_be_read_is_one_line_and_exit_code_3(
    run: Run, tmp_path: Path, make: Callable[[Path], Path], says: str
) -> None:
    source = make(tmp_path)
    code, out, err = run("diagnose", source)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert says in err
    assert str(tmp_path) in err


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _hang(request: object) -> None:
    request.server.stopping.wait(30)  # type: ignore[attr-defined]


def _endless(request: object) -> None:
    request.send_response(200)  # type: ignore[attr-defined]
    request.end_headers()  # type: ignore[attr-defined]
    line = b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n' * 2000
    while not request.server.stopping.is_set():  # type: ignore[attr-defined]
        request.wfile.write(line)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("route", "says"),
    [
        (b"<!doctype html><p>hello", "expected metrics, got HTML"),
        (b"", "the response is empty"),
        (Reply(b"no", 401), "answered 401"),
        (Reply(b"no", 404), "answered 404"),
        (Reply(b"no", 500), "answered 500"),
        (Reply(status=302, headers={"Location": "/metrics"}), "redirect loop"),
        (_hang, "no data for"),
        (_endless, "the response is larger than"),
        (
            Reply(gzip.compress(b"x 1\n" * 99)[:20], 200, {"Content-Encoding": "gzip"}),
            "the gzip data is cut off",
        ),
    ],
    ids=["HTML", "empty", "401", "404", "500", "redirect circle", "timeout", "endless", "truncated gzip"],
)
def test_a_server_that_cannot_be_read_is_told_early_in_clear_lines_and_exit_code_3(
    run: Run, http_server: Callable[..., HttpServer], route: object, says: str
) -> None:
    server = http_server({"/metrics": route})
    code, out, err = run("diagnose", server.url, "--for", "5m")
    assert (code, out) == (3, "")
    assert err.splitlines()[-1].startswith("phasewatch: http://127.0.0.1")
    assert says in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_refusing_server_is_told_early(run: Run, free_port: int) -> None:
    code, out, err = run("diagnose", f"localhost:{free_port}", "--for", "5m")
    assert (code, out) == (3, "")
    assert "connection refused; check the port" in err.splitlines()[-1]


def test_one_bad_server_costs_only_itself(run: Run, http_server, free_port: int) -> None:
    good = http_server({"/metrics": page()})
    code, out, err = run("diagnose", good.url, f"http://127.0.0.1:{free_port}", *QUICK, "--format", "json")
    states = {t["target"]: (t["state"], t["last_error"]) for t in json.loads(out)["targets"]}
    assert code == 1
    assert states[f"127.0.0.1:{good.server_port}"] == ("warming_up", None)
    state, error = states[f"127.0.0.1:{free_port}"]
    assert state == "down"
    assert "connection refused" in error
    assert "connection refused" in err


# --- diagnose


def test_a_recording_is_diagnosed_at_its_end_or_where_asked(run: Run) -> None:
    code, out, err = run("diagnose", real("burst"), *OBJECTIVES, "--at", "60", "--format", "json")
    document = json.loads(out)
    (engine,) = document["engines"]
    assert (code, err, document["schema"], document["at"]) == (1, "", SCHEMA, 60.0)
    assert (engine["state"], engine["verdict"]) == ("serving", "queue_batch_limit")
    assert run("diagnose", real("healthy"), *OBJECTIVES)[0] == 0
    assert run("diagnose", real("idle"))[0] == 0


def test_a_recording_too_short_for_a_verdict_is_exit_code_3(run: Run) -> None:
    code, out, _ = run("diagnose", real("healthy"), "--at", "4")
    assert code == 3
    assert "warming" in out


@pytest.mark.parametrize("moment", ["-1", "nan", "inf", "-inf", "1e300", "noon"])
def test_t9_what_is_no_moment_is_wrong_usage(run: Run, moment: str) -> None:
    healthy = real("healthy")
    for arguments in (
        ("diagnose", healthy, f"--at={moment}"),
        ("compare", healthy, healthy, f"--before-at={moment}"),
        ("replay", healthy, "--format", "openmetrics", f"--unix-start={moment}"),
    ):
        code, _, err = run(*arguments)
        assert code == 2
        assert f"invalid moment '{moment}'; use seconds, such as 90" in err


def test_t9_a_moment_long_after_the_recording_is_wrong_usage(run: Run) -> None:
    code, _, err = run("diagnose", real("healthy"), "--at", "1e9")
    assert code == 2
    assert "second 1e+09 is long after the end of the recording; it lasts " in err


def test_t9_a_duration_beyond_ten_years_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    code, _, err = run("record", "http://localhost:1", "--for", "99999999999h", "--out", tmp_path / "out")
    assert code == 2
    assert "invalid duration '99999999999h'; use at most 3650d" in err


def test_t9_a_document_nested_too_deeply_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000 + "]" * 100_000)
    code, _, err = run("compare", deep, deep)
    assert code == 3
    assert err.count("\n") == 1
    assert "nested too deeply" in err


def test_several_recordings_keep_targets_of_the_same_name_apart(run: Run) -> None:
    code, out, _ = run("diagnose", real("burst"), real("idle"), *OBJECTIVES, "--at", "60", "--format", "json")
    verdicts = {Path(e["target"]).parent.name.removesuffix(SUFFIX): e["verdict"] for e in json.loads(out)["engines"]}
    assert (code, verdicts) == (1, {"burst": "queue_batch_limit", "idle": None})


def test_the_window_and_the_estimator_are_taken(run: Run) -> None:
    def p99(*arguments: str) -> float:
        _, out, _ = run("diagnose", real("burst"), "--at", "60", "--format", "json", *arguments)
        return float(json.loads(out)["engines"][0]["ttft_seconds"]["p99"]["value"])

    assert p99("--window", "20s") < p99()
    assert 10 < p99("--estimator", "interpolation") <= 20


def test_the_table_is_plain_where_it_is_no_terminal_and_says_what_to_do_first(run: Run) -> None:
    _, out, _ = run("diagnose", real("max-num-seqs"), *OBJECTIVES, "--at", "60")
    assert "\x1b" not in out
    assert "QUEUE_BATCH_LIMIT" in out
    assert re.search(r"do first: +\S", out)


# --- record, replay, and back


def test_what_is_recorded_live_replays_to_the_same_numbers(
    run: Run, tmp_path: Path, http_server: Callable[..., HttpServer]
) -> None:
    body = page()
    server = http_server({"/metrics": body})
    out = tmp_path / "out"
    code, stdout, err = run("record", server.url, "--out", out, "--interval", "100ms", "--for", "300ms")
    assert (code, stdout) == (0, f"{out}\n")
    assert f"127.0.0.1:{server.server_port}: 4 scrapes, 0 failures" in err
    (target,) = open_recording(out).targets
    assert [entry.read().encode() for entry in target.entries] == [body] * 4
    assert run("diagnose", out)[0] == 3


def test_p28_two_models_by_path_on_one_port_are_recorded_and_diagnosed(
    run: Run, http_server: Callable[..., HttpServer], tmp_path: Path
) -> None:
    server = http_server({f"/upstream/{model}/metrics": page() for model in "ab"})
    urls = [f"{server.url}/upstream/{model}/metrics" for model in "ab"]
    names = {url.removeprefix("http://") for url in urls}
    code, out, err = run("record", *urls, "--out", tmp_path / "out", "--interval", "100ms", "--for", "200ms")
    assert code == 0, err
    assert {target.name for target in open_recording(tmp_path / "out").targets} == names
    _, out, _ = run("diagnose", *urls, "--interval", "100ms", "--for", "300ms", "--format", "json")
    assert {engine["target"] for engine in json.loads(out)["engines"]} == names


def test_p27_the_terminal_says_whose_page_it_is(run: Run, tmp_path: Path) -> None:
    _file(tmp_path / "1.prom", b"sglang:num_running_reqs 3\n")
    code, out, _ = run("diagnose", tmp_path)
    assert code == 1
    assert "this is SGLang's /metrics; phasewatch reads vLLM's only" in " ".join(out.split())


def test_record_says_when_no_page_could_be_read(run: Run, tmp_path: Path, free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    code, out, err = run("record", url, "--out", tmp_path / "out", "--interval", "50ms", "--for", "100ms")
    assert (code, out) == (3, "")
    assert "connection refused" in err
    assert err.splitlines()[-1] == "phasewatch: no scrape succeeded"


def test_record_refuses_a_folder_that_holds_something_else(run: Run, tmp_path: Path) -> None:
    _file(tmp_path / "thesis.txt", b"precious")
    code, _, err = run("record", "http://127.0.0.1:1", "--out", tmp_path)
    assert code == 2
    assert "is neither empty nor a recording" in err.splitlines()[-1]


def test_replay_is_one_document_a_step_on_the_recordings_own_clock(run: Run) -> None:
    code, out, err = run("replay", real("burst"), *OBJECTIVES)
    documents = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    # Its last page is of 118.01 s: the document of 120 s is the first that can judge it.
    assert [d["at"] for d in documents] == [10.0 * n for n in range(1, 13)]
    assert {d["schema"] for d in documents} == {SCHEMA}
    assert [d["engines"][0]["verdict"] for d in documents][3] == "queue_batch_limit"


def test_replay_as_a_table_has_a_line_an_engine_for_each_step(run: Run) -> None:
    code, out, _ = run("replay", real("restart"), "--format", "table", "--step", "20s", *OBJECTIVES)
    header, *lines = out.splitlines()
    assert (code, len(lines)) == (0, 9)
    assert header.split()[:4] == ["time", "engine", "state", "verdict"]
    assert lines[2].split()[:4] == ["60", "s", "demo", "down"]


def test_the_verdict_of_diagnose_is_that_of_replay_at_the_same_moment(run: Run) -> None:
    _, out, _ = run("replay", real("interference"), *OBJECTIVES)
    at_50 = json.loads(out.splitlines()[4])
    _, out, _ = run("diagnose", real("interference"), *OBJECTIVES, "--at", "50", "--format", "json")
    assert json.loads(out) == at_50


@pytest.mark.parametrize("option", ["--for", "--interval"])
def test_an_option_for_servers_is_refused_where_all_sources_are_recordings(run: Run, option: str) -> None:
    code, out, err = run("diagnose", real("idle"), option, "5s")
    assert (code, out) == (2, "")
    assert err == f"phasewatch: {option} applies to servers only, and no source is one; remove it\n"


def test_a_recording_shorter_than_a_step_says_so(run: Run) -> None:
    code, out, err = run("replay", real("idle"), "--step", "1h")
    assert (code, out) == (0, "")
    assert "less than one step" in err


# --- as processes


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def test_a_recording_served_again_is_diagnosed_like_a_live_server() -> None:
    with start("replay", real("max-num-seqs"), "--serve", "--speed", "4", "--loop") as served:
        try:
            assert served.stdout is not None
            target, url = served.stdout.readline().split()
            assert target == "demo"
            done = subprocess.run(
                [*COMMAND, "diagnose", url, "--for", "13s", "--interval", "500ms", *OBJECTIVES],
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            served.send_signal(signal.SIGINT)
            assert served.wait(10) == 0
            assert served.stderr is not None
            assert "stopped" in served.stderr.read()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "QUEUE_BATCH_LIMIT" in done.stdout
    assert "Traceback" not in done.stderr


def test_without_loop_serving_ends_with_the_recording(run: Run) -> None:
    code, out, err = run("replay", real("idle"), "--serve", "--speed", "200")
    assert (code, err.splitlines()[-1]) == (0, "the recording is over")
    assert re.fullmatch(r"demo http://127\.0\.0\.1:\d+/metrics\n", out)


def test_a_port_that_a_replayed_target_cannot_have_is_one_line(run: Run, http_server) -> None:
    taken = http_server({}).server_port
    code, out, err = run("replay", real("idle"), "--serve", "--listen", f"127.0.0.1:{taken}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"cannot listen on 127.0.0.1:{taken}" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_watching_early_and_still_judges(
    http_server: Callable[..., HttpServer], number: signal.Signals
) -> None:
    server = http_server({"/metrics": page()})
    with start("diagnose", server.url, "--for", "10m", "--interval", "100ms", "--format", "json") as watching:
        wait_until(lambda: len(server.requests) > 2, "the server was read")
        watching.send_signal(number)
        out, err = watching.communicate(timeout=10)
    assert watching.returncode == 3
    assert json.loads(out)["engines"][0]["state"] == "warming_up"
    assert "Traceback" not in err


def test_ctrl_c_ends_a_recording_and_keeps_it(tmp_path: Path, http_server: Callable[..., HttpServer]) -> None:
    server = http_server({"/metrics": page()})
    out = tmp_path / "out"
    with start("record", server.url, "--out", out, "--interval", "100ms") as recording:
        wait_until(lambda: len(server.requests) > 2, "the server was read")
        recording.send_signal(signal.SIGINT)
        _, err = recording.communicate(timeout=10)
    assert (recording.returncode, "Traceback" in err) == (0, False)
    assert len(open_recording(out).targets[0].entries) >= 2


# --- record to one file


SHORT = ("--interval", "50ms", "--for", "100ms")


def test_a_file_is_recorded_and_read_by_every_command_that_reads_recordings(
    run: Run, tmp_path: Path, http_server: Callable[..., HttpServer]
) -> None:
    url, out = http_server({"/metrics": page()}).url, tmp_path / "new" / "incident.tar.xz"
    code, stdout, err = run("record", url, "--out", out, *SHORT)
    assert (code, stdout) == (0, f"{out}\n")
    assert f"until then to {out}.part" in err
    assert [path.name for path in out.parent.iterdir()] == ["incident.tar.xz"]
    assert len(open_packed(str(out)).targets[0].entries) >= 1
    assert run("diagnose", out)[0] == 3, "too short for a verdict"
    assert run("compare", out, out)[0] == 3
    assert run("replay", out, "--step", "50ms")[0] == 0
    assert run("replay", out, "--serve", "--speed", "1000")[0] == 0


def test_a_recording_in_one_file_is_never_overwritten(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "incident.tar.xz"
    out.write_bytes(real("idle").read_bytes())
    code, _, err = run("record", "http://127.0.0.1:1", "--out", out)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{out}: exists, and a recording is never overwritten; give a new name" in err
    assert out.read_bytes() == real("idle").read_bytes()
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_that_is_ended_early_is_packed(
    tmp_path: Path, http_server: Callable[..., HttpServer], number: signal.Signals
) -> None:
    server = http_server({"/metrics": page()})
    out = tmp_path / "incident.tar.xz"
    with start("record", server.url, "--out", out, "--interval", "100ms") as recording:
        wait_until(lambda: len(server.requests) > 2, "the server was read")
        recording.send_signal(number)
        stdout, err = recording.communicate(timeout=30)
    assert (recording.returncode, stdout, "Traceback" in err) == (0, f"{out}\n", False)
    assert len(open_packed(str(out)).targets[0].entries) >= 2
    assert list(tmp_path.iterdir()) == [out]


def test_a_killed_recording_loses_nothing_and_the_next_one_goes_on_with_it(
    run: Run, tmp_path: Path, http_server: Callable[..., HttpServer]
) -> None:
    server = http_server({"/metrics": page()})
    out, folder = tmp_path / "incident.tar.xz", tmp_path / "incident.tar.xz.part"
    with start("record", server.url, "--out", out, "--interval", "100ms") as recording:
        wait_until(lambda: len(server.requests) > 2, "the server was read")
        code, _, err = run("record", server.url, "--out", out, *SHORT)
        assert (code, err.splitlines()[-1]) == (
            2, f"phasewatch: {folder}: another phasewatch is recording to it; give a new name",
        )  # fmt: skip
        recording.kill()
        recording.communicate(timeout=30)
    assert run("replay", folder, "--step", "50ms")[0] == 0, "a folder as any other"
    before = open_recording(folder).targets[0].entries
    assert len(before) >= 2
    code, _, err = run("record", server.url, "--out", out, *SHORT)
    assert code == 0
    assert f"going on with {folder}, which an earlier recording left" in err
    after = open_packed(str(out)).targets[0].entries
    assert [entry.seconds for entry in after[: len(before)]] == [entry.seconds for entry in before]
    assert len(after) > len(before)
    assert list(tmp_path.iterdir()) == [out]


def test_a_second_signal_leaves_the_folder_and_says_how_to_use_it(
    run: Run, tmp_path: Path, http_server: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("phasewatch.commands.record.pack", interrupted)
    out = tmp_path / "incident.tar.xz"
    code, stdout, err = run("record", http_server({"/metrics": page()}).url, "--out", out, *SHORT)
    assert (code, stdout) == (130, "")
    folder = tmp_path / "incident.tar.xz.part"
    said = re.search(r"not packed; the recording is (\S+): use it, or pack it: (tar .+)\n", err)
    assert said
    assert Path(said[1]) == folder
    subprocess.run(said[2].split(), check=True)
    packed, left = open_packed(str(out)), open_recording(folder)
    assert [entry.read() for entry in packed.targets[0].entries] == [entry.read() for entry in left.targets[0].entries]


def test_a_file_that_cannot_be_packed_leaves_the_folder_in_one_line(
    run: Run, tmp_path: Path, http_server: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phasewatch.sources.packing.MAX_FILES", 0)
    out = tmp_path / "incident.tar.xz"
    code, stdout, err = run("record", http_server({"/metrics": page()}).url, "--out", out, *SHORT)
    assert (code, stdout) == (2, "")
    assert "is too large for one file" in err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["incident.tar.xz.part"]
    assert open_recording(tmp_path / "incident.tar.xz.part").targets


def test_a_recording_of_a_server_that_was_down_is_packed_and_nothing_at_all_leaves_nothing(
    run: Run, tmp_path: Path, free_port: int
) -> None:
    out = tmp_path / "incident.tar.xz"
    code, _, err = run("record", f"http://127.0.0.1:{free_port}", "--out", out, *SHORT)
    assert (code, err.splitlines()[-1]) == (3, "phasewatch: no scrape succeeded")
    assert all(entry.kind == "failure" for entry in open_packed(str(out)).targets[0].entries)
    other = tmp_path / "other.tar.xz"
    assert run("record", "http://a", "http://a", "--out", other, *SHORT)[0] == 2
    assert not other.with_name("other.tar.xz.part").exists()


def test_t10_a_folder_of_another_target_with_its_own_clock_is_refused_at_once(run: Run, tmp_path: Path) -> None:
    unpacked("idle", tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, _, err = run("record", "http://127.0.0.1:1", "--out", tmp_path)
    assert code == 2
    assert err.splitlines()[-1] == (
        f"phasewatch: {tmp_path} counts seconds from its own start and cannot go on in clock time; use a new folder"
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert run("diagnose", tmp_path)[0] == 0


def test_a_reader_that_goes_away_is_no_error() -> None:
    with start("replay", real("healthy"), "--step", "1s") as replaying:
        assert replaying.stdout is not None
        assert replaying.stderr is not None
        replaying.stdout.readline()
        replaying.stdout.close()
        assert replaying.wait(30) == 141
        assert replaying.stderr.read() == ""


# --- serve and check-config


def test_check_config_sums_up_a_good_file_and_names_every_mistake_of_a_bad_one(run: Run, tmp_path: Path) -> None:
    good = _file(tmp_path / "good.yml", b"targets:\n  - http://a:8000\nobjectives:\n  ttft_p99: 3s\n")
    code, out, err = run("check-config", good)
    assert code == 0
    assert out.startswith(f"{good}: ok: 1 target(s) every 10s, windows 1m, 5m")
    assert "warning: " in err
    assert "nearest edges are 2.5s and 5s" in err
    bad = _file(
        tmp_path / "bad.yml", b"targets: [http://a:8000, http://a:8000]\nscrape:\n  intervall: 1s\n  interval: 5\n"
    )
    code, out, err = run("check-config", bad)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 3
    assert all(re.match(rf"{re.escape(str(bad))}:\d+: ", line) for line in err.splitlines())
    assert run("check-config", tmp_path / "missing.yml")[0] == 2


@pytest.mark.parametrize("command", [("check-config",), ("serve", "--config.file")], ids=["check-config", "serve"])
@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("targets: [http://a:1]\nscrap: {}\n", 2, 'scrap: unknown key; did you mean "scrape"?'),
        ("targets: [http://a:1]\nscrape: {interval: soon}\n", 2, "scrape.interval: invalid duration 'soon'; use 250ms"),
        (
            "targets:\n- http://a:1\n- a:1/metrics\n",
            3,
            "targets[1]: duplicate target http://a:1/metrics (first is targets[0]); remove",
        ),
        ("targets: []\n", 1, "targets: no target; add one"),
    ],
    ids=["unknown key", "bad duration", "duplicate target", "no target"],
)
def test_a_mistake_in_a_configuration_is_one_line_with_its_place_and_exit_code_2(
    run: Run, tmp_path: Path, monkeypatch, command: tuple[str, ...], text: str, line: int, says: str
) -> None:
    monkeypatch.delenv("VLLM_TARGETS", raising=False)
    file = _file(tmp_path / "phasewatch.yml", text.encode())
    code, out, err = run(*command, file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.removeprefix("phasewatch: ").startswith(f"{file}:{line}: {says}")


def test_serve_refuses_a_wrong_configuration_with_a_line_a_mistake(run: Run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("VLLM_TARGETS", raising=False)
    code, out, err = run("serve")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no target" in err
    code, _, err = run("serve", "--config.file", tmp_path / "missing.yml")
    assert code == 2
    assert "missing.yml" in err


def test_serve_takes_targets_from_the_environment_and_ends_cleanly_on_sigterm(
    http_server: Callable[..., HttpServer], free_port: int
) -> None:
    vllm = http_server({"/metrics": page()})
    listen = f"127.0.0.1:{free_port}"
    with start("serve", "--web.listen-address", listen, VLLM_TARGETS=vllm.url) as serving:
        try:
            document = wait_until(lambda: _engines(f"http://{listen}/api/v1/fleet"), "the fleet has an engine")
        finally:
            serving.send_signal(signal.SIGTERM)
            _, err = serving.communicate(timeout=20)
    assert serving.returncode == 0, err
    assert document[0]["target"] == f"127.0.0.1:{vllm.server_port}"
    assert "Traceback" not in err


def _engines(url: str) -> list[dict[str, object]]:
    try:
        return list(requests.get(url, timeout=2).json()["engines"])
    except requests.RequestException:
        return []


def test_a_port_that_is_taken_is_one_line(http_server: Callable[..., HttpServer]) -> None:
    vllm = http_server({"/metrics": page()})
    with start("serve", "--web.listen-address", f"127.0.0.1:{vllm.server_port}", VLLM_TARGETS=vllm.url) as serving:
        _, err = serving.communicate(timeout=20)
    assert serving.returncode == 2
    assert "--web.listen-address" in err.splitlines()[-1]


# --- what is declared once


def test_each_file_of_a_command_is_in_the_table_of_commands_and_the_other_way_round() -> None:
    folder = Path(cli.__file__).parent / "commands"
    files = {path.stem for path in folder.glob("*.py") if "\ndef command(" in path.read_text()}
    assert files == {name.replace("-", "_") for name in cli.COMMANDS}


def test_help_imports_no_command() -> None:
    code = "import sys; from phasewatch import cli; cli.run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {name for name in loaded if name.startswith("phasewatch.")} == {"phasewatch.cli", "phasewatch.commands"}
    assert loaded & {"fastapi", "pydantic", "rich", "requests", "prometheus_client", "promql_parser"} == set()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself_in_a_line_that_begins_its_own_help(run: Run, name: str) -> None:
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert " ".join(out.split()).startswith(f"Usage: phasewatch {name} ")
    assert cli.COMMANDS[name] in " ".join(out.split())


def test_the_choices_of_format_are_the_rows_that_can_print_it(run: Run) -> None:
    for command, printing in (
        ("diagnose", lambda row: row.fleet),
        ("replay", lambda row: row.fleets or row.series),
        ("compare", lambda row: row.compared),
    ):
        names = [name for name, row in FORMATS.items() if printing(row) is not None]
        assert f"--format {'|'.join(names)}" in run(command, "--help")[1]
    assert all(row.fleet or row.fleets or row.series or row.compared for row in FORMATS.values())
