import json
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from phasewatch import cli
from support import Prometheus, real

OBJECTIVES = ("--objective", "ttft_p99=1s")
START = 1_790_000_000
CONFIG = "global: {scrape_interval: 15s}\n"


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> str:
    """What `replay --format openmetrics` writes for an incident that comes and goes."""
    arguments = ["replay", str(real("burst")), *OBJECTIVES, "--format", "openmetrics", "--unix-start", str(START)]
    assert cli.run(arguments) == 0
    return capsys.readouterr().out


def test_the_text_is_openmetrics_with_every_family_once_and_time_only_going_on(written: str) -> None:
    families = list(text_string_to_metric_families(written))  # raises where the format is broken
    names = [family.name for family in families]
    assert len(names) == len(set(names)) > 40
    times = [float(sample.timestamp) for family in families for sample in family.samples]
    assert (min(times), max(times)) == (START + 10, START + 120)
    assert written.endswith("\n# EOF\n")


def test_a_real_prometheus_answers_from_it_what_the_documents_say(
    written: str, capsys: pytest.CaptureFixture[str], prometheus_server: Callable[..., Prometheus]
) -> None:
    server = prometheus_server(CONFIG, openmetrics=written, arguments=("--query.lookback-delta=5s",))
    assert cli.run(["replay", str(real("burst")), *OBJECTIVES]) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(documents) == 12
    for told in documents:
        (engine,) = told["engines"]
        verdicts = server.query("phasewatch_diagnosis == 1", START + told["at"])
        assert [labels["verdict"] for labels, _ in verdicts] == [v for v in [engine["verdict"]] if v]
        p99 = server.query('phasewatch_ttft_p99_seconds{window="60s"}', START + told["at"])
        shown = engine["ttft_seconds"]["p99"]
        assert [value for _, value in p99] == ([] if shown is None else [pytest.approx(shown["value"])])
    windows = {labels["window"] for labels, _ in server.query("phasewatch_ttft_observations", START + 120)}
    assert windows == {"60s", "5m"}


def test_without_unix_time_it_asks_for_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["replay", str(real("idle")), "--format", "openmetrics"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--unix-start" in err


def test_a_recording_of_our_own_keeps_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"
    for second in (START, START + 10):
        (tmp_path / f"{second}.prom").write_text(page)
    assert cli.run(["replay", str(tmp_path), "--format", "openmetrics"]) == 0
    assert f"phasewatch_last_evaluation_timestamp_seconds 1.79000001e+09 {START + 10}.0\n" in capsys.readouterr().out


def test_a_unix_start_means_nothing_to_other_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["replay", str(real("idle")), "--unix-start", "5"]) == 2
    assert "--unix-start needs --format openmetrics" in capsys.readouterr().err
