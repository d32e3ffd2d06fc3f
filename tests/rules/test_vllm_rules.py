"""Percentiles by recording rules over vLLM's own histograms agree with phasewatch's gauges on recorded pages."""

import re
from collections.abc import Callable

import pytest

from phasewatch.core.model import Latency, Numbers
from phasewatch.core.settings import Settings
from phasewatch.sources.replaying import replay
from rulefiles import RULES, rules
from support import Prometheus, Tools, real_pages, real_recording

BASE = 1_700_000_000
AT = 76.0
WINDOW = 60.0
_SAMPLE = re.compile(r"^(vllm:[a-z0-9_]+(?:_bucket|_sum|_count))(\{[^}]*\}) (\S+)$", re.MULTILINE)
LATENCIES = {
    "time_to_first_token_seconds": "ttft",
    "inter_token_latency_seconds": "itl",
    "request_time_per_output_token_seconds": "tpot",
    "e2e_request_latency_seconds": "e2e",
}


def _history(name: str, rename: Callable[[str], str]) -> str:
    """The recorded pages as OpenMetrics with timestamps; only the histograms that the rules read."""
    read = {name for rule in rules(RULES / "vllm.yml") for name in re.findall(r"vllm:\w+", rule.expr)}
    by_name: dict[str, list[str]] = {}
    for seconds, text in real_pages(name).items():
        for series, labels, value in _SAMPLE.findall(rename(text)):
            if series in read:
                by_name.setdefault(series, []).append(f"{series}{labels} {value} {BASE + seconds:.3f}")
    return "\n".join(line for lines in by_name.values() for line in lines) + "\n# EOF\n"


def _older(text: str) -> str:
    return text.replace("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")


def _both(text: str) -> str:
    """As 0.10.2 to 0.11.2: both names with the same samples."""
    return text + "\n" + _older("\n".join(line for line in text.splitlines() if "inter_token_latency" in line))


def _numbers(name: str) -> Numbers:
    settings = Settings(windows=(WINDOW,), estimator="interpolation")
    fleets = list(replay(real_recording(name), settings, 2.0, until=AT))
    return fleets[-1].models[0].windows[WINDOW]


@pytest.mark.parametrize(
    ("recording", "rename"),
    [("interference", str), ("two-engines", str), ("max-num-seqs", _older), ("max-num-seqs", _both)],
    ids=["interference", "two-engines", "older-names", "both-names"],
)
def test_gauge_and_rule_agree_over_the_same_samples(
    tools: Tools,
    prometheus_server: Callable[..., Prometheus],
    recording: str,
    rename: Callable[[str], str],
) -> None:
    """2.42 counts the sample at the start of a range; 3.x leaves it out, so that its range must begin before it."""
    closed = tools.suite == "bookworm"
    window, tolerance = ("60s", 1e-9) if closed else ("60001ms", 1e-4)
    server = prometheus_server("global: {}\n", openmetrics=_history(recording, rename))
    numbers = _numbers(recording)
    compared = 0
    for rule in rules(RULES / "vllm.yml"):
        found = server.query(rule.expr.replace("[5m]", f"[{window}]"), at=BASE + AT)
        expected = _gauge(numbers, rule.name)
        if expected is None:
            assert found == []
            continue
        assert [labels.keys() for labels, _ in found] == [{"model_name"}]
        assert found[0][1] == pytest.approx(expected, rel=tolerance)
        compared += 1
    assert compared >= 9


def _gauge(numbers: Numbers, record: str) -> float | None:
    name, _, statistic = record.removeprefix("model:vllm_").partition(":")
    statistic = statistic.removesuffix("_rate5m")
    if statistic == "mean":
        mean: float | None = getattr(numbers.phases, name.split("_")[1]).mean_seconds
        return mean
    latency: Latency = getattr(numbers, f"{LATENCIES[name]}_seconds")
    estimate = getattr(latency, statistic)
    return None if estimate is None else float(estimate.value)


def test_without_traffic_nothing_is_recorded_rather_than_nan(prometheus_server: Callable[..., Prometheus]) -> None:
    server = prometheus_server("global: {}\n", openmetrics=_history("idle", str))
    assert server.query("count(vllm:time_to_first_token_seconds_bucket)", at=BASE + 20) != []
    for rule in rules(RULES / "vllm.yml"):
        assert server.query(rule.expr.replace("[5m]", "[20s]"), at=BASE + 20) == []
