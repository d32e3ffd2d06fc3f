"""`phasewatch check-rules` on our own rules, on rules as one finds them, and on broken files."""

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phasewatch.cli import run
from phasewatch.core.pages.catalog import CATALOG
from phasewatch.rulecheck.check import check
from phasewatch.rulecheck.series import Known, phasewatch_series, vllm_families
from rulefiles import RULE_FILES, exported
from support import HttpServer, Reply

FIXTURES = Path(__file__).parent.parent / "fixtures"
PUBLISHED = FIXTURES / "rules" / "published-style.yml"
ON_PHASEWATCH = FIXTURES / "rules" / "on-phasewatch.yml"
PAGES = FIXTURES / "pages"


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., list[str]]:
    """`found(expr, more_yaml="", versions=(...), live=())`: the findings of one alert, as "severity: message"."""

    def findings(expr: str, more: str = "", **known: object) -> list[str]:
        file = tmp_path / "rules.yml"
        file.write_text(
            "groups:\n- name: g\n  rules:\n"
            f"  - alert: A\n    expr: {json.dumps(expr)}\n"
            "    annotations: {summary: s, runbook_url: u}\n" + (more or "    labels: {severity: warning}\n")
        )
        return [f"{one.severity}: {one.message}" for one in check([file], Known(**known))]  # type: ignore[arg-type]

    return findings


# --- our own


def test_the_rules_that_come_with_phasewatch_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check-rules"]) == 0
    out = capsys.readouterr()
    assert out.out == ""
    assert f"{len(RULE_FILES)} file(s)" in out.err


@pytest.mark.parametrize("file", RULE_FILES, ids=lambda path: path.stem)
def test_a_wrong_letter_in_any_series_of_our_rules_is_found(file: Path, tmp_path: Path) -> None:
    text = file.read_text()
    names = set(re.findall(r"\b(?:phasewatch_(?!objective_budget|objective_over\w*:)|vllm:)\w+(?=[{\[])", text))
    assert names
    copy = tmp_path / "rules.yml"
    copy.write_text(re.sub(rf"\b({'|'.join(names)})\b", lambda name: f"{name[0][:-1]}q", text))
    said = " ".join(one.message for one in check([copy], Known()) if one.severity == "error")
    assert [name for name in names if f"{name[:-1]}q" not in said] == []


def test_the_series_it_knows_are_those_that_are_exported() -> None:
    assert set(phasewatch_series()) == set(exported())


def test_the_table_of_vllm_names_has_all_that_the_catalogue_and_the_recorded_pages_have() -> None:
    names = {family.name for family in vllm_families()}
    assert len(names) == len(vllm_families())
    counted = {f"vllm:{name}" if row.prefixed else name for row in CATALOG for name in row.names}
    assert {re.sub("_created$", "_total", name) for name in counted} <= names
    for page in PAGES.glob("real-*.prom.gz"):
        version = re.search(r"real-(\d+\.\d+\.\d+)", page.name)
        assert version
        text = gzip.decompress(page.read_bytes()).decode()
        series = set(re.findall(r"^((?:vllm:|http_|process_|python_)\w+)", text, re.MULTILINE))
        assert series
        of_version = Known((version[1],))
        assert [name for name in series if of_version.of(name).problem or of_version.of(name).foreign] == []


# --- rules as one finds them

EXPECTED = {
    "VLLMPreemptions": ["error: vllm:num_preemptions does not exist", "use vllm:num_preemptions_total"],
    "VLLMQueue": ["error: vllm_num_requests_waiting does not exist", "vllm:num_requests_waiting"],
    "VLLMCacheFull": ["error: vllm:gpu_cache_usage_perc ended with vLLM 0.10.2", "use vllm:kv_cache_usage_perc"],
    "VLLMCacheFullPercent": ["error:", "vllm:kv_cache_usage_perc is a ratio from 0 to 1", "compare with 0.9"],
    "VLLMSwapping": ["vllm:num_requests_swapped ended with vLLM 0.9.0", "no successor"],
    "VLLMTokens": ["error: vllm:iteration_tokens_total is a histogram in spite of its name"],
    "VLLMGone": ["error: vLLM never had vllm:num_requests_run"],
    "VLLMSlowAndHot": ["warning: DCGM_FI_DEV_GPU_TEMP belongs neither"],
    "VLLMAdapters": ["warning: vllm:lora_requests_info exists only with LoRA adapters"],
    "VLLMBroken": ["error: invalid PromQL (unclosed left parenthesis); correct it"],
    "VLLMOther": ["error: tenant:vllm_requests:rate5m is recorded by no rule of these files"],
    "OursQueue": ['phasewatch_diagnosis never has verdict="queue_kv_cach"'],
    "OursP98": ['no phasewatch_ttft_p98_seconds; did you mean "phasewatch_ttft_p99_seconds"'],
    "OursModel": ["description queries what does not exist: phasewatch exports no phasewatch_itl"],
}


def test_what_is_wrong_with_rules_as_one_finds_them_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check-rules", str(PUBLISHED), str(ON_PHASEWATCH)]) == 1
    lines = capsys.readouterr().out.splitlines()
    by_rule: dict[str, str] = {}
    for line in lines:
        match = re.fullmatch(r"(\S+\.yml):(\d+): (?:vllm|ours)/(\w+): (error|warning): .+", line)
        assert match, line
        text = Path(match[1]).read_text().splitlines()
        rule_lines = [i for i, one in enumerate(text, 1) if f"alert: {match[3]}" in one]
        assert 0 <= int(match[2]) - rule_lines[0] <= 8, line
        by_rule[match[3]] = by_rule.get(match[3], "") + line.partition(f"{match[3]}: ")[2] + "\n"
    assert set(by_rule) == set(EXPECTED), "the others have nothing wrong with their names and units"
    for rule, parts in EXPECTED.items():
        assert [part for part in parts if part not in by_rule[rule]] == [], by_rule[rule]


def test_the_versions_in_use_decide_which_names_exist(found: Callable[..., list[str]]) -> None:
    old, new = "vllm:gpu_cache_usage_perc > 0.9", "vllm:num_requests_waiting_by_reason > 9"
    assert found(old, versions=("0.10",)) == [] == found(new, versions=("0.32",))
    assert "exists since vLLM 0.20.0" in found(new, versions=("0.19.1",))[0]
    assert found(old, versions=("0.10", "0.33")) == [], "some of the fleet has it"
    assert "vLLM asked for is 0.11, 0.33" in found(old, versions=("0.11", "0.33"))[0]
    assert "use vllm:time_per_output_token_seconds" in found(
        "sum(rate(vllm:inter_token_latency_seconds_count[5m])) > 1", versions=("0.9",)
    )[0]  # fmt: skip


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        ("vllm:kv_cache_usage_perc * 100 > 90", ""),
        ("vllm:kv_cache_usage_perc > 90", "is a ratio from 0 to 1, not a percentage; compare with 0.9"),
        ("90 < max by (model_name) (max_over_time((vllm:kv_cache_usage_perc)[5m:]))", "compare with 0.9"),
        ("sum(vllm:kv_cache_usage_perc) > 2", ""),
        ("0.5 < vllm:kv_cache_usage_perc", ""),
        ("phasewatch_kv_cache_usage_ratio >= 95", "compare with 0.95"),
        ("vllm:gpu_cache_usage_perc > 20 or vllm:kv_cache_usage_perc > 0.9", "compare with 0.2"),
        ("vllm:gpu_cache_usage_perc > 0.9 and vllm:kv_cache_usage_perc > 0.9", "ended with vLLM 0.10.2"),
        ("vllm:num_requests_waiting unless vllm:gpu_cache_usage_perc", ""),
        ("vllm:num_requests_waiting * absent(vllm:gpu_cache_usage_perc)", ""),
        ("max_over_time(vllm:num_requests_waiting[5m:1m]) > 1 or vector(0) > 1", ""),
        ("-vllm:num_requests_waiting < 0", ""),
        ('{__name__=~"vllm:num_requests_.*"} > 9', ""),
        ('{__name__=~"vllm:num_request_.*"} > 9', "no known series fits"),
        ('{__name__=~"job:.*"} > 9', "warning: no known series fits"),
        ('{__name__="vllm:num_request"} > 9', "vLLM never had vllm:num_request"),
        ('{job="vllm"} > 9', ""),
        ('phasewatch_engine_state{state=~"servin|idl"} == 1', "phasewatch_engine_state never has"),
        ('phasewatch_engine_state{state=~"serving|idle"} == 1', ""),
        ("ray_vllm_num_requests_waiting > 9", ""),
        ("ALERTS{alertname=\"x\"} == 1 and on () up == 0", ""),
    ],
)  # fmt: skip
def test_only_names_and_units_are_judged_and_only_where_they_are_certain(
    found: Callable[..., list[str]], expr: str, says: str
) -> None:
    findings = found(expr)
    assert (says in "\n".join(findings)) if says else findings == []


def test_what_rules_of_the_same_files_record_exists_whatever_their_order(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text("""groups:
- name: g
  rules:
  - {alert: A, expr: 'job:waiting:sum > 5', annotations: {description: '{{ query "job:waiting:sum" }}'}}
  - {record: 'job:waiting:sum', expr: sum by (job) (vllm:num_request_waiting)}
""")
    (finding,) = check([file], Known())
    assert str(finding).startswith(f"{file}:5: g/job:waiting:sum: error: vLLM never had vllm:num_request_waiting")


def test_without_its_parser_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "promql_parser", None)
    for name in ("check", "expression"):
        monkeypatch.delitem(sys.modules, f"phasewatch.rulecheck.{name}", raising=False)
    assert run(["check-rules"]) == 2
    said = "phasewatch: check-rules needs promql_parser; install it with: pip install 'phasewatch[rules]'\n"
    assert capsys.readouterr() == ("", said)


def test_serving_needs_no_promql_parser() -> None:
    code = (
        "import sys; sys.modules['promql_parser'] = None; import phasewatch.service.service, phasewatch.outputs.web.app"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- live servers


@pytest.fixture
def live(http_server: Callable[..., HttpServer]) -> HttpServer:
    page = gzip.decompress((PAGES / "real-0.32.0-single.prom.gz").read_bytes())
    names = json.dumps({"status": "success", "data": ["up", "DCGM_FI_DEV_GPU_TEMP"]}).encode()
    json_type = {"Content-Type": "application/json"}
    return http_server({
        "/metrics": page,
        "/api/v1/label/__name__/values": Reply(names, headers=json_type),
        "/wrong/api/v1/label/__name__/values": Reply(b"{}", headers=json_type),
    })  # fmt: skip


def test_names_of_running_servers_count_too(
    live: HttpServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "rules.yml"
    file.write_text("""groups:
- name: g
  rules:
  - {record: 'a:b', expr: max(DCGM_FI_DEV_GPU_TEMP)}
  - {record: 'a:c', expr: sum(vllm:corrupted_requests_total)}
""")
    assert run(["check-rules", str(file)]) == 0
    assert "DCGM_FI_DEV_GPU_TEMP belongs neither" in capsys.readouterr().out
    against = ["--against", live.url, "--against", f"{live.url}/api/v1/label/__name__/values"]
    assert run(["check-rules", str(file), *against]) == 0
    out = capsys.readouterr().out
    assert "DCGM" not in out
    assert "no server of --against has vllm:corrupted_requests_total; only with VLLM_COMPUTE_NANS" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.yml"], "nowhere.yml: no such file; check the path"),
        (["{tmp}/empty.yml"], "empty.yml:1: has no list `groups`"),
        (["{tmp}/group.yml"], "group.yml:2: groups[0]: has no list `rules`"),
        (["{tmp}/rule.yml"], "rule.yml:4: groups[0].rules[0]: invalid rule; give it"),
        (["{tmp}/labels.yml"], "labels.yml:4: groups[0].rules[0].labels: must be a mapping"),
        (["{tmp}/helm.yml"], "helm.yml:1: invalid YAML"),
        (["--vllm", "latest"], "--vllm latest: invalid version; use"),
        (["--against", "http://127.0.0.1:1"], "--against"),
        (["--against", "http://127.0.0.1:1/api/v1/label/__name__/values"], "--against http://127.0.0.1:1/api"),
        (["--against", "{live}/wrong/api/v1/label/__name__/values"], "answered 200 without a list of names"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line_and_exit_code_2(
    live: HttpServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    for name, text in {
        "empty": "",
        "group": "groups:\n- name: x\n",
        "rule": "groups:\n- name: x\n  rules:\n  - alert: A\n",
        "labels": "groups:\n- name: x\n  rules:\n  - {alert: A, expr: up, labels: [a]}\n",
        "helm": "{{- if .Values.x }}\ngroups: []\n",
    }.items():
        (tmp_path / f"{name}.yml").write_text(text)
    filled = [one.replace("{tmp}", str(tmp_path)).replace("{live}", live.url) for one in arguments]
    assert run(["check-rules", *filled]) == 2
    out = capsys.readouterr()
    assert (out.out, len(out.err.splitlines())) == ("", 1)
    assert says in out.err


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        ("(" * 5_000 + "up" + ")" * 5_000, "brackets more than 100 levels deep"),
        ("abs(" * 100_000 + "up" + ")" * 100_000, "brackets more than 100 levels deep"),
        ("-" * 100_000 + "up", "more than 200 operators in one expression"),
        ("up" + " or up" * 20_000, "more than 200 operators in one expression"),
    ],
    ids=["parentheses", "calls", "signs", "operators"],
)
def test_t9_an_expression_nested_beyond_all_measure_is_one_error(
    found: Callable[..., list[str]], expr: str, why: str
) -> None:
    assert found(expr) == [f"error: invalid PromQL ({why}); correct it"]


def test_an_expression_of_as_many_parts_as_are_allowed_is_read(found: Callable[..., list[str]]) -> None:
    assert found("(" * 100 + "vllm:num_requests_running" + ")" * 100 + " > 1") == []
    assert found("vllm:num_requests_running" + " + vllm:num_requests_running" * 200) == []
