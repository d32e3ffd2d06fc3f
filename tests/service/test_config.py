import os
import re
from pathlib import Path

import pytest

from phasewatch.core.settings import OBJECTIVE_NAMES, PROFILES, Limit, Objectives, Settings
from phasewatch.service.config import DEFAULT_EDGES, ConfigError, check_config, load_config
from phasewatch.service.config_sections import Config, LimitsSection, parse_listen_address

FIXTURES = Path(__file__).parents[1] / "fixtures" / "config"
SHIPPED = Path(__file__).parents[2] / "config" / "phasewatch.yml"
URL = "http://127.0.0.1:8000"


def load(tmp_path: Path, text: str, **options: object) -> Config:
    file = tmp_path / "phasewatch.yml"
    file.write_text(text)
    return load_config(file, **{"env": {}, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.glob("bad-*.yml")))
def test_a_bad_configuration_names_file_line_key_and_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)
    expected = [
        line.removeprefix("# expect: ")
        for line in Path(name).read_text(encoding="latin-1").split("\n")
        if line.startswith("# expect: ")
    ]
    assert expected
    with pytest.raises(ConfigError) as caught:
        load_config(Path(name), env={})
    assert list(caught.value.lines) == expected
    for line in expected:
        assert re.match(rf"{re.escape(name)}(:\d+)?: .+(; |, as in ).+", line), "a line says what is wrong; what to do"


def test_no_secret_of_a_url_is_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "targets: ['ftp://user:geheim@h/m', 'http://u:geheim@h', 'http://v:geheim@h']")
    assert len(caught.value.lines) == 1
    assert "geheim" not in str(caught.value)
    config = load(tmp_path, "targets: ['http://u:geheim@h', 'http://v:geheim@h2']")
    assert "geheim" not in repr(config)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file; check the path"),
        (lambda path: path.mkdir(), "is a folder, not a file; give the YAML file in it"),
        (lambda path: path.write_bytes(b"#" * 5_000_000), "is larger than 4 MiB; give a configuration file"),
        (
            lambda path: path.write_text("[" * 1500),
            "is nested too deeply; a configuration needs no more than five levels",
        ),
    ],
    ids=["missing", "folder", "huge", "deep"],
)
def test_a_file_that_is_none_is_one_line(tmp_path: Path, make, message: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "x.yml"
    make(path)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_config(path, env={})
    assert caught.value.lines == (f"{path}: {message}",)


def test_a_file_without_permission_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.yml"
    path.touch(mode=0)
    user = os.geteuid()
    if user == 0:  # who may read everything
        os.seteuid(65534)
    try:
        with pytest.raises(ConfigError, match=r"cannot be read \(Permission denied\); check the path"):
            load_config(path, env={})
    finally:
        os.seteuid(user)


def test_the_shipped_file_shows_the_defaults_and_needs_only_targets() -> None:
    with pytest.raises(ConfigError, match="no target; add one below targets:"):
        load_config(SHIPPED, env={})
    config, warnings = check_config(SHIPPED, env={"VLLM_TARGETS": URL})
    default = load_config(None, env={"VLLM_TARGETS": URL})
    assert config.model_copy(update={"scrape": default.scrape}) == default
    assert config.scrape.total_timeout == default.scrape.total_timeout
    assert config.settings() == Settings()
    assert warnings == ()


def test_every_example_in_the_shipped_file_works(tmp_path: Path) -> None:
    examples = re.sub(r"^#(?! \S)", "", SHIPPED.read_text(), flags=re.MULTILINE)
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "more.json").write_text('[{"targets": ["vllm-2:8000"]}]')
    config = load(tmp_path, examples)
    assert [target.target().name for target in config.targets] == ["vllm-0:8000", "vllm-1", "vllm-2:8000"]
    assert config.targets[1].bearer_token_file == tmp_path / "vllm-token"
    assert config.settings().objectives.limits["e2e_p99"] == Limit(60, 60)
    assert config.settings().objectives.of("meta-llama/Llama-3.1-8B-Instruct") == {
        "ttft_p99": Limit(0.5, 1), "itl_p99": Limit(0.04, 0.1),
    }  # fmt: skip


def test_flags_win_over_the_file_and_the_file_over_the_environments_targets(tmp_path: Path) -> None:
    text = "targets: [http://h:1]\nweb: {listen_address: ':1'}\nlog: {level: error}"
    config = load(
        tmp_path, text, flags={"web.listen_address": ":2", "log.level": None}, env={"VLLM_TARGETS": "http://h:2"}
    )
    assert config.web.host_and_port == ("", 2)
    assert config.log.level == "error"
    assert [target.url for target in config.targets] == ["http://h:1"]
    config = load(tmp_path, "targets: []", env={"VLLM_TARGETS": " http://h:2, h:3 ,"})
    assert [target.target().url for target in config.targets] == ["http://h:2/metrics", "http://h:3/metrics"]


def test_p28_models_by_path_on_one_port_are_two_targets(tmp_path: Path) -> None:
    config = load(tmp_path, "targets: ['http://h:1/a/metrics', 'h:1/b/metrics', {url: h:1, name: c}, h:2]")
    assert [target.target().name for target in config.targets] == ["h:1/a/metrics", "h:1/b/metrics", "c", "h:2"]
    with pytest.raises(ConfigError, match=r"duplicate target http://h:1/a \(first is targets\[0\]\)"):
        load(tmp_path, "targets: ['http://h:1/a', 'h:1/b', 'h:1/a']")
    with pytest.raises(ConfigError, match="too long for a folder"):
        load(tmp_path, f"targets: [h:1/a, h:1/{'b' * 300}]")


def test_what_came_from_elsewhere_is_blamed_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "scrape: 3", flags={"web.listen_address": "here"}, env={"VLLM_TARGETS": "h:1,h:1"})
    lines = sorted(line.replace(str(tmp_path), "") for line in caught.value.lines)
    assert lines == [
        "--web.listen-address: invalid listen address 'here'; use 127.0.0.1:9321, [::1]:9321 or :9321",
        "/phasewatch.yml:1: scrape: must be a mapping (key: value), not a number; indent its keys below it",
        "VLLM_TARGETS: duplicate target http://h:1/metrics (first is targets[0]); remove one",
    ]


def test_an_empty_section_means_its_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, f"targets: [{URL}]\nscrape:\nobjectives:\n  models:\nweb:\n  listen_address:")
    assert config == load(tmp_path, f"targets: [{URL}]")


def test_objectives_go_from_profile_to_all_models_to_one_model(tmp_path: Path) -> None:
    text = f"""
targets: [{URL}]
objectives:
  profile: large
  ttft_p99: {{warning: 5s, critical: 10s}}
  e2e_p90: 1m
  itl_stall: off
  models:
    "org/a:1": {{ttft_mean: 500ms}}
    b: {{profile: interactive}}
    c: {{profile: batch, e2e_p99: 2m}}
    d: {{e2e_p90: off}}
"""
    objectives = load(tmp_path, text).settings().objectives
    general = {"ttft_p99": Limit(5, 10), "itl_p99": Limit(0.2, 0.3), "e2e_p90": Limit(60, 60)}
    assert objectives.of("any") == general
    assert objectives.of("org/a:1") == {
        **{k: v for k, v in general.items() if k != "ttft_p99"},
        "ttft_mean": Limit(0.5, 0.5),
    }
    assert objectives.of("b") == PROFILES["interactive"]
    assert objectives.of("c") == {"e2e_p99": Limit(120, 120)}
    assert objectives.of("d") == {k: v for k, v in general.items() if k != "e2e_p90"}


def test_objective_names_and_edges_are_the_cores() -> None:
    assert tuple(LimitsSection.model_fields) == OBJECTIVE_NAMES
    assert set(DEFAULT_EDGES) == {name.partition("_")[0] for name in OBJECTIVE_NAMES}
    assert Objectives().limits == PROFILES["standard"]


def test_a_limit_beside_the_buckets_is_warned_of_with_its_neighbours(tmp_path: Path) -> None:
    file = tmp_path / "phasewatch.yml"
    file.write_text(
        f"targets: [{URL}]\nobjectives:\n  ttft_p99: 2s\n  itl_mean: 37ms\n"
        "  e2e_p50: {warning: 100ms, critical: 5h}\n"
        "  models:\n    m: {itl_p99: {warning: 40ms, critical: 50ms}, itl_stall: off}\n"
    )
    _, warnings = check_config(file, env={})
    beside = "is not an edge of vLLM's default buckets, so values near it are neither surely missed nor surely met"
    assert [warning.removeprefix(f"{file}:") for warning in warnings] == [
        f"3: objectives.ttft_p99: 2s {beside}; the nearest edges are 1s and 2.5s",
        f"5: objectives.e2e_p50: 100ms {beside}; the nearest edges are 300ms",
        f"5: objectives.e2e_p50: 5h {beside}; the nearest edges are 2h8m",
        f"7: objectives.models.m.itl_p99: 40ms {beside}; the nearest edges are 25ms and 50ms",
    ]


def test_a_file_that_a_target_needs_and_nobody_can_read_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "phasewatch.yml"
    for token in (tmp_path / "token", tmp_path):
        file.write_text(f"targets:\n  - url: {URL}\n    bearer_token_file: {token}\n    tls:\n      ca_file: {file}\n")
        _, warnings = check_config(file, env={})
        assert warnings == (
            f"{file}:3: targets[0].bearer_token_file: cannot read {token}; check the path and its permissions",
        )


def test_thresholds_are_overridden_by_name(tmp_path: Path) -> None:
    settings = load(tmp_path, f"targets: [{URL}]\nthresholds: {{min_over: 3, stall_seconds: 20}}").settings()
    assert (settings.thresholds.min_over, settings.thresholds.stall_seconds) == (3, 20)
    assert settings.thresholds.sure_score == Settings().thresholds.sure_score


def test_a_scrape_is_over_before_the_next_begins(tmp_path: Path) -> None:
    assert load(tmp_path, f"targets: [{URL}]\nscrape: {{interval: 2s}}").scrape.total_timeout == 1.8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9321", ("127.0.0.1", 9321)),
        ("[::1]:0", ("::1", 0)),
        (":80", ("", 80)),
        ("localhost:1", ("localhost", 1)),
    ],
)
def test_a_listen_address_is_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen_address(text) == expected


@pytest.mark.parametrize("text", ["", "9321", "localhost", "::1:9321", "h:99999", "h:-1", "h:port", "http://h:1"])
def test_anything_else_is_no_listen_address(text: str) -> None:
    with pytest.raises(ValueError, match="invalid listen address"):
        parse_listen_address(text)
