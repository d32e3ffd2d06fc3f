"""P29: rules on seconds, ratios and lifetime sums whose numbers are in another unit, and those that are right."""

import json
from pathlib import Path

import pytest

from phasewatch.cli import run
from phasewatch.rulecheck.check import check
from phasewatch.rulecheck.series import Known

ITL = "histogram_quantile(0.99, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[5m])))"
TTFT = "histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))"
MEAN = "sum(rate(vllm:e2e_request_latency_seconds_sum[5m])) / sum(rate(vllm:e2e_request_latency_seconds_count[5m]))"
HITS = "sum(rate(vllm:prefix_cache_hits_total[5m])) / sum(rate(vllm:prefix_cache_queries_total[5m]))"

ACCEPTED = "rate(vllm:spec_decode_num_accepted_tokens_total[5m]) / rate(vllm:spec_decode_num_draft_tokens_total[5m])"

OLD_ITL = "vllm:time_per_output_token_seconds_bucket"
FAILED = 'sum by (model_name) (rate(vllm:request_success_total{finished_reason="error"}[5m]))'
ALL = "sum by (model_name) (rate(vllm:request_success_total[5m]))"


def findings(folder: Path, expr: str, description: str = "d", *recorded: tuple[str, str]) -> list[str]:
    file = folder / "rules.yml"
    file.write_text(
        "groups:\n- name: g\n  rules:\n"
        f"  - {{alert: A, expr: {json.dumps(expr)}, annotations: {{description: {json.dumps(description)}}}}}\n"
        + "".join(f"  - {{record: {json.dumps(name)}, expr: {json.dumps(text)}}}\n" for name, text in recorded)
    )
    return [f"{one.severity}: {one.message}" for one in check([file], Known())]


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        (f"{ITL} > 150", "error|is never true|ends at 80 s|compare with 0.15"),
        (f"150 <= max({ITL})", "error|is never true|ends at 80 s"),
        (f"{ITL} < 150", "error|is always true|ends at 80 s"),
        (f"{ITL} > 80", "error|is never true"),
        (f"{ITL} * 1000 > 100000", "error|is never true|seconds times 1000"),
        (f"{TTFT} > 3000", "error|is never true|ends at 2560 s|compare with 3"),
        (f"{TTFT} > 2000", "warning|is in seconds, and this is 33m20s|compare with 2"),
        (f"{ITL} > 50", "warning|is in seconds, and this is 50s|compare with 0.05"),
        (f"avg_over_time(({MEAN})[10m:]) > 30000", "warning|is in seconds|compare with 30"),
        ("phasewatch_ttft_p99_seconds > 2000", "warning|phasewatch_ttft_p99_seconds|is in seconds|compare with 2"),
        ("phasewatch_model_itl_p99_seconds >= 200", "warning|compare with 0.2"),
        ("ray_vllm_inter_token_latency_seconds_count > 0 and " + ITL.replace("vllm:", "ray_vllm_") + " > 150", "80 s"),
        (f"{HITS} < 30", "error|is always true|is a ratio from 0 to 1|compare with 0.3"),
        (f"(1 - {HITS}) > 70", "error|is never true|is a ratio from 0 to 1|compare with 0.7"),
        ("vllm:kv_cache_usage_perc < 30", "error|is always true|compare with 0.3"),
        ("phasewatch_prefix_cache_hit_ratio < 30", "error|is always true|compare with 0.3"),
        (f"100 * ({HITS}) < 300", "error|is always true|here times 100"),
        (f"{ITL} > 150".replace("rate(", f"rate({OLD_ITL}[5m]) or rate("), "is never true|ends at 80 s"),
        (f"({FAILED}) / ({ALL}) > 5", "error|is never true|the share of vllm:request_success_total|compare with 0.05"),
        ("vllm:prompt_tokens_cached_total / vllm:prompt_tokens_total < 40", "error|is always true|compare with 0.4"),
        (f"{ACCEPTED} < 50",
         "error|is always true|compare with 0.5"),
        ("vllm:time_to_first_token_seconds_sum / vllm:time_to_first_token_seconds_count > 2",
         "error|since the server's start|use rate(vllm:time_to_first_token_seconds_sum[5m])"),
        ("sum(vllm:request_queue_time_seconds_sum) / (sum(vllm:request_queue_time_seconds_count)) > 2",
         "error|since the server's start"),
    ],
)  # fmt: skip
def test_p29_a_limit_in_another_unit_is_named(tmp_path: Path, expr: str, says: str) -> None:
    text = " ".join(findings(tmp_path, expr))
    assert [part for part in says.split("|") if part not in text] == [], text


@pytest.mark.parametrize(
    "expr",
    [
        f"{ITL} > 0.15",
        f"{ITL} * 1000 > 150",
        f"1000 * {TTFT} > 2000",
        f"{TTFT} > 60",
        f"{MEAN} > 120",
        f"{HITS} < 0.3",
        f"100 * ({HITS}) < 30",
        f"{HITS} * 100 < 30 or vector(0) > 1",
        "sum(vllm:kv_cache_usage_perc) > 2",
        f"{FAILED} / {ALL} > 0.05",
        f"100 * {FAILED} / {ALL} > 5",
        f"{ALL} / {FAILED} > 5",
        f"{FAILED} / {ALL.replace('5m', '1h')} > 5",
        f"{FAILED} / {ALL} > 5".replace("sum", "avg"),
        f"{FAILED} / {ALL.replace('[5m]', '[5m] offset 1h')} > 5",
        "vllm:kv_cache_usage_perc > bool 0.9 == 1",
        "sum(rate(vllm:generation_tokens_total[5m])) / sum(rate(vllm:request_success_total[5m])) > 3000",
        "histogram_quantile(0.9, sum by (le) (rate(vllm:request_prompt_tokens_bucket[5m]))) > 20000",
        "rate(vllm:e2e_request_latency_seconds_sum[5m]) > 100",
        "(vllm:e2e_request_latency_seconds_sum - vllm:e2e_request_latency_seconds_sum offset 5m)"
        " / (vllm:e2e_request_latency_seconds_count - vllm:e2e_request_latency_seconds_count offset 5m) > 9",
    ],
)
def test_p29_limits_in_the_right_unit_pass(tmp_path: Path, expr: str) -> None:
    assert findings(tmp_path, expr) == []


@pytest.mark.parametrize(
    ("expr", "description", "says"),
    [
        (f"{TTFT} > 2", "p95 is {{ $value }} ms.", "writes $value in ms is in seconds humanizeDuration"),
        (f"{TTFT} > 2", '{{ printf "%.0f" $value }}ms', "writes $value in ms"),
        (f"{TTFT} > 2", '{{ $value | printf "%.2f ms" }} now', "writes $value in ms"),
        (f"{MEAN} > 2", "{{ .Value }} milliseconds", "writes $value in ms"),
        (f"{TTFT} * 1000 > 2", "{{ $value }}s", "writes $value in s here times 1000"),
        ("vllm:kv_cache_usage_perc > 0.9", "KV cache at {{ $value }}%", "writes $value in % humanizePercentage"),
        ("vllm:kv_cache_usage_perc > 0.9", '{{ printf "%.1f%%" $value }}', "writes $value in %"),
        (f"{HITS} < 0.3", "{{ $value | humanize }} percent", "writes $value in %"),
        ("phasewatch_ttft_p99_seconds > 2", "{{ $value | humanize }} ms", "writes $value in ms"),
        (f"{TTFT} > 2", "{{ $value }} s", ""),
        (f"{TTFT} > 2", "{{ $value | humanizeDuration }} (ms are for ITL)", ""),
        (f"1000 * {TTFT} > 2000", "{{ $value }} ms", ""),
        ("vllm:kv_cache_usage_perc > 0.9", "{{ $value | humanizePercentage }}", ""),
        ("100 * vllm:kv_cache_usage_perc > 90", '{{ $value | printf "%.0f" }} %', ""),
        ("vllm:num_requests_waiting > 9", "{{ $value }} % of nothing known", ""),
        (f"{TTFT} > 2", "{{ if gt $value 9.0 }}ms{{ end }} of {{ $labels.model_name }} ms", ""),
        (f"{TTFT} > bool 2", "{{ $value }} ms", ""),
    ],
)
def test_p29_a_value_written_in_another_unit_is_named(tmp_path: Path, expr: str, description: str, says: str) -> None:
    found = findings(tmp_path, expr, description)
    if not says:
        assert found == []
        return
    (text,) = found
    assert text.startswith("error: description ")
    assert [word for word in says.split() if word not in text] == []


def test_p29_the_unit_goes_through_rules_that_record_it(tmp_path: Path) -> None:
    assert "is never true" in findings(tmp_path, "job:itl:p99 > 150", "d", ("job:itl:p99", ITL))[0]
    assert findings(tmp_path, "job:itl:p99 > 150", "d", ("job:itl:p99", f"1000 * {ITL}")) == []
    assert findings(tmp_path, "job:a > 150", "d", ("job:a", "job:b"), ("job:b", "job:a")) == []


def test_p29_no_runbook_is_a_hint_and_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert findings(tmp_path, f"{TTFT} > 2") == []
    assert run(["check-rules", str(tmp_path / "rules.yml")]) == 0
    out = capsys.readouterr()
    assert out.out == ""
    assert "hint: 1 alert(s) without runbook_url" in out.err
    assert run(["check-rules"]) == 0
    assert "hint" not in capsys.readouterr().err
