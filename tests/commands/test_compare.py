"""`phasewatch compare` as a user meets it: recordings and documents, tables and JSON, exit codes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import Run, real
from vllm_pages import Server


def recorded(folder: Path, *servers: Server, seconds: int = 60, start: float = 0.0, **served: Any) -> Path:
    """A page of each server every 2 s, each engine having served two requests since the one before."""
    for at in range(0, seconds + 1, 2):
        for server in servers:
            for engine in server.engines:
                engine.serves(2, **served)
            page = folder / server.name / f"{start + at:.0f}.prom"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(server.text())
    return folder


def one(answer: tuple[int, str, str]) -> dict[str, Any]:
    """The only model's comparison in JSON."""
    document = json.loads(answer[1])
    assert document["schema"] == "phasewatch/compare/v1"
    (model,) = document["models"]
    return dict(model)


def words(text: str) -> str:
    return " ".join(text.split())


# --- real recordings


def test_a_smaller_token_budget_took_the_stalls_away_and_left_ttft(run: Run) -> None:
    code, out, err = run("compare", real("interference"), real("interference-fixed"))
    assert (code, err) == (0, "")
    sentence = words(out.partition("before ")[0])
    assert sentence.startswith("Better: stalls are gone (35 % of the streaming time, then 0 %); ITL p99 fell from")
    assert "TTFT stayed (mean 1.87 s, then 1.85 s)" in sentence
    assert max(map(len, out.splitlines())) <= 80
    back = one(run("compare", real("interference-fixed"), real("interference"), "--format", "json"))
    assert back["conclusion"] == "worse"


def test_prefix_caching_made_first_tokens_quicker_and_left_the_pace(run: Run) -> None:
    found = one(run("compare", real("prefix-off"), real("prefix-on"), "--format", "json"))
    assert found["conclusion"] == "better"
    assert "TTFT mean fell from 1.99 s to 301 ms" in found["sentence"]
    assert "ITL stayed" in found["sentence"]


def test_documents_of_two_incidents_compare_like_their_recordings(run: Run, tmp_path: Path) -> None:
    names = ("prefix-off", "prefix-on")
    for name in names:
        code, out, _ = run("diagnose", real(name), "--format", "json")
        assert code in (0, 1)
        (tmp_path / f"{name}.json").write_text(out)
    # The last line of a replay is a document as well.
    (tmp_path / "replayed").write_text(run("replay", real(names[1]))[1])
    for after in ("prefix-on.json", "replayed"):
        found = one(run("compare", tmp_path / "prefix-off.json", tmp_path / after, "--format", "json"))
        assert found["conclusion"] == "better"
        assert {row["name"]: row["alike"] for row in found["load"] if row["name"] != "in_flight"} == {
            "arrivals": True,
            "prompt_length": True,
            "output_length": True,
        }


def test_two_engines_are_one_model_from_pages_and_from_a_document(run: Run, tmp_path: Path) -> None:
    _, out, _ = run("diagnose", real("two-engines"), "--format", "json")
    (tmp_path / "two.json").write_text(out)
    found = one(run("compare", tmp_path / "two.json", real("two-engines"), "--format", "json"))
    assert found["conclusion"] == "same"
    assert [found[side]["engines"] for side in ("before", "after")] == [2, 2]
    rows = {row["name"]: row for row in found["rows"]}
    for name in ("ttft_mean", "itl_mean", "decode_speed", "generation_speed", "prefill_speed"):
        assert rows[name]["before"]["value"] == pytest.approx(rows[name]["after"]["value"], rel=0.1), name


def test_moments_of_one_recording_compare_before_and_after_a_fault(run: Run) -> None:
    slow = real("long-context")
    found = one(run("compare", slow, slow, "--before-at", 44, "--after-at", 130, "--window", "30s", "--format", "json"))
    assert found["conclusion"] == "not comparable", "contexts grew: that is another load"
    assert "prompts rose from" in found["sentence"]
    assert found["before"]["window_seconds"] <= 30


# --- pages made by hand


def test_twice_the_pace_is_better_and_the_table_shows_by_how_much(run: Run, tmp_path: Path) -> None:
    before = recorded(tmp_path / "before", Server(), itl=0.06)
    after = recorded(tmp_path / "after", Server(), itl=0.03)
    code, out, err = run("compare", before, after)
    assert (code, err) == (0, "")
    assert words(out).startswith("Better: ITL mean fell from 60 ms to 30 ms; e2e")
    lines = {line.split("  ")[0]: words(line) for line in out.splitlines()}
    assert lines["arrivals"] == "arrivals 1/s 1/s +0 % alike"
    assert lines["prompts"] == "prompts 100 tokens 100 tokens +0 % alike"
    assert lines["decode speed"] == "decode speed 16.7 tok/s 33.3 tok/s +100 %"


def test_another_load_is_not_comparable_and_exit_code_1(run: Run, tmp_path: Path) -> None:
    before, after = recorded(tmp_path / "a", Server(), prompt=100), recorded(tmp_path / "b", Server(), prompt=400)
    code, out, _ = run("compare", before, after)
    assert code == 1
    assert words(out).startswith("Not comparable: the load differs by more than 20 %: prompts rose from 100 to 400")
    assert "unlike" in out


def test_replicas_of_a_model_are_added_up(run: Run, tmp_path: Path) -> None:
    alone = recorded(tmp_path / "alone", Server())
    pair = recorded(tmp_path / "pair", Server(name="a"), Server(name="b"))
    found = one(run("compare", alone, pair, "--format", "json"))
    assert found["load"][0] == {
        "name": "arrivals", "unit": "per_second", "before": 1.0, "after": 2.0, "alike": False,
    }  # fmt: skip
    assert found["after"]["engines"] == 2


def test_the_only_model_on_each_side_is_compared_under_another_name(run: Run, tmp_path: Path) -> None:
    before = recorded(tmp_path / "a", Server(model_name="m"), itl=0.06)
    after = recorded(tmp_path / "b", Server(model_name="m-fp8"), itl=0.03)
    code, out, err = run("compare", before, after)
    assert code == 0
    assert out.startswith("Better")
    assert err == "comparing m with m-fp8: each is the only model left on its side\n"


def test_models_on_one_side_only_are_named_and_the_others_compared(run: Run, tmp_path: Path) -> None:
    before = recorded(
        tmp_path / "a", Server(name="a"), Server(name="b", model_name="n"), Server(name="c", model_name="o")
    )
    after = recorded(tmp_path / "b", Server(name="a"))
    code, out, err = run("compare", before, after)
    assert (code, out.count("tok/s") > 0) == (0, True)
    assert err.splitlines() == [f"{before}: {name} is only on this side" for name in ("n", "o")]


def test_a_recording_in_unix_time_takes_moments_from_its_start(run: Run, tmp_path: Path) -> None:
    recording = recorded(tmp_path / "r", Server(), seconds=120, start=1.7e9)
    small = run("compare", recording, recording, "--before-at", 50, "--after-at", 110, "--format", "json")
    large = run(
        "compare", recording, recording, "--before-at", 1.7e9 + 50, "--after-at", 1.7e9 + 110, "--format", "json"
    )
    assert small == large
    assert one(small)["before"]["window_seconds"] == 40


def test_pages_that_cannot_be_read_are_counted_and_left_out(run: Run, tmp_path: Path) -> None:
    before, after = recorded(tmp_path / "a", Server()), recorded(tmp_path / "b", Server())
    (after / "s" / "30.prom").write_text("<html>no</html>")
    (after / "s" / "32.prom").rename(after / "s" / "32.fail")
    code, out, err = run("compare", before, after)
    assert (code, err) == (0, f"{after}: 2 scrapes could not be read and are left out\n")
    assert out.startswith("No change")


# --- what is no comparison


@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (lambda path: "http://127.0.0.1:1", 2, "phasewatch diagnose http://127.0.0.1:1 --format json > FILE"),
        (lambda path: path / "missing", 3, "no such folder"),
        (lambda path: _file(path, b""), 3, "is empty"),
        (lambda path: _file(path, b"\xff\xfe{"), 3, "not a text file"),
        (lambda path: _file(path, b"{"), 3, "neither the file nor its last line is JSON"),
        (lambda path: _file(path, b"[1]"), 3, "not a phasewatch/v1 document"),
        (lambda path: _file(path, b'{"schema": "phasewatch/v2"}'), 3, "not a phasewatch/v1 document"),
        (lambda path: _file(path, b'{"schema": "phasewatch/v1", "engines": 3}'), 3, "invalid document"),
        (lambda path: _file(path, b'{"schema": NaN}'), 3, "NaN is not a finite number"),
        (
            lambda path: _file(path, b'{"schema": 1' + b"0" * 400 + b"}"),
            3,
            "..., 401 characters, is not a finite number",
        ),
        (
            lambda path: _file(
                path, b'{"schema": "phasewatch/v1", "window_seconds": 1, "engines": [], "models": [], "targets": []}'
            ),
            3,
            "no engine to compare",
        ),
    ],
)
def test_a_bad_source_is_one_line_that_names_it(
    run: Run, tmp_path: Path, make: Callable[[Path], object], code: int, says: str
) -> None:
    good = recorded(tmp_path / "good", Server())
    source = make(tmp_path)
    for arguments in ((source, good), (good, source)):
        got, out, err = run("compare", *arguments)
        assert (got, out, err.count("\n")) == (code, "", 1), err
        assert says in err
        assert str(source) in err


def _file(path: Path, content: bytes) -> Path:
    (path / "document.json").write_bytes(content)
    return path / "document.json"


def test_a_stretch_of_a_document_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    good = recorded(tmp_path / "good", Server())
    document = tmp_path / "document.json"
    document.write_text(run("diagnose", good, "--format", "json")[1])
    for option, value in (("--window", "30s"), ("--after-at", "30")):
        code, _, err = run("compare", good, document, option, value)
        assert code == 2
        assert f"{option} applies to recordings only" in err


def test_a_recording_that_is_all_warm_up_says_so(run: Run, tmp_path: Path) -> None:
    long, short = recorded(tmp_path / "a", Server()), recorded(tmp_path / "b", Server(), seconds=8)
    code, _, err = run("compare", long, short)
    assert code == 3
    assert "nothing to compare between second 0 and 8" in err


def test_two_fleets_without_a_common_model_are_not_comparable(run: Run, tmp_path: Path) -> None:
    names = (("m", "n"), ("o", "p"))
    before, after = (recorded(tmp_path / a, *(Server(name=name, model_name=name) for name in (a, b))) for a, b in names)
    code, out, err = run("compare", before, after)
    assert (code, out) == (1, "")
    assert err.endswith("have no model in common\n")
