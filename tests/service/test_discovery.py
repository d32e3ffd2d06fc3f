"""Ways to find targets: each row of the table, and what is said where one leads nowhere."""

import json
from pathlib import Path

import pytest

from phasewatch.service.config import ConfigError, load_config
from phasewatch.service.config_sections import Config, TargetsFromSection
from phasewatch.service.discovery import DISCOVERY, TARGETS_VARIABLE

GROUPS = [
    {"targets": ["vllm-0:8000", "vllm-1:8000"], "labels": {"namespace": "chat", "job": "vllm", "__meta_x": "y"}},
    {"targets": ["gw.example.net"], "labels": {"__scheme__": "https", "__metrics_path__": "/v/metrics"}},
]


def load(folder: Path, text: str, **env: str) -> Config:
    file = folder / "phasewatch.yml"
    file.write_text(text)
    return load_config(file, env=env)


def error_of(folder: Path, text: str, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(folder, text, **env)
    return [line.removeprefix(f"{folder}/") for line in caught.value.lines]


def urls(config: Config) -> list[str]:
    return [section.target().url for section in config.targets]


def test_every_way_has_a_row_and_the_environment_comes_last() -> None:
    assert [way.name for way in DISCOVERY] == [*TargetsFromSection.model_fields, "environment"]
    assert [way.fallback for way in DISCOVERY] == [False] * (len(DISCOVERY) - 1) + [True]


@pytest.mark.parametrize("indent", [None, 1, "\t"], ids=["one line", "indented", "tabs"])
def test_a_file_of_prometheus_gives_targets_with_their_labels(tmp_path: Path, indent: str | int | None) -> None:
    (tmp_path / "chat.json").write_text(json.dumps(GROUPS, indent=indent))
    config = load(tmp_path, "targets: [http://own:1]\ntargets_from: [{file_sd: {files: [chat.json]}}]")
    assert urls(config) == [
        "http://own:1/metrics", "http://vllm-0:8000/metrics", "http://vllm-1:8000/metrics",
        "https://gw.example.net:443/v/metrics",
    ]  # fmt: skip
    assert [section.labels for section in config.targets] == [{}, {"namespace": "chat"}, {"namespace": "chat"}, {}]


def test_files_are_yaml_too_and_a_pattern_takes_all_that_match_in_order(tmp_path: Path) -> None:
    (tmp_path / "sd").mkdir()
    for name in ("b", "a"):
        (tmp_path / "sd" / f"{name}.yml").write_text(f"- targets: [{name}:8000]\n")
    (tmp_path / "sd" / "c.txt").write_text("no")
    (tmp_path / "sd" / "empty.yml").write_text("")
    assert urls(load(tmp_path, "targets_from: [{file_sd: {files: ['sd/*.yml']}}]")) == [
        "http://a:8000/metrics", "http://b:8000/metrics",
    ]  # fmt: skip


def test_the_environment_is_asked_only_where_nothing_else_names_a_target(tmp_path: Path) -> None:
    (tmp_path / "sd.yml").write_text("- targets: [a:8000]\n")
    from_file = "targets_from: [{file_sd: {files: [sd.yml]}}]"
    assert urls(load(tmp_path, from_file, **{TARGETS_VARIABLE: "http://env:1"})) == ["http://a:8000/metrics"]
    (tmp_path / "sd.yml").write_text("[]\n")
    assert urls(load(tmp_path, from_file, **{TARGETS_VARIABLE: "http://env:1"})) == ["http://env:1/metrics"]
    assert "no target" in error_of(tmp_path, from_file)[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{targets: [a:1]}", "sd.yml:1: must be a list, not a mapping; start each entry with '- '"),
        ("- targets: a:1\n", "sd.yml:1: [0].targets: must be a list, not text; start each entry with '- '"),
        ("- labels: {}\n", "sd.yml:1: [0].targets: is missing; add it"),
        ("- target: [a:1]\n", "sd.yml:1: [0].targets: is missing; add it"),
        (
            "- targets: [a:1]\n  labels:\n    shard: 3\n",
            "sd.yml:3: [0].labels.shard: must be text, not a number; put it in quotes",
        ),
        ("- targets: [a:1\n", "sd.yml:2: invalid YAML"),
        ("- targets: [a:1]\n- targets:\n  - 'a:1'\n", "sd.yml:3: [1].targets[0]: a:1: duplicate target"),
        ("- targets: ['a:99999']\n", "sd.yml:1: [0].targets[0]: a:99999: "),
        (
            "- targets: [a:1]\n  labels: {engine: x}\n",
            "sd.yml:1: [0].targets[0]: a:1: labels.engine: is a label that phasewatch or Prometheus sets itself",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_file_line_and_place(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "sd.yml").write_text(content)
    assert error_of(tmp_path, "targets_from: [{file_sd: {files: [sd.yml]}}]")[0].startswith(expected)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("[{file_sd: {files: [gone.json]}}]", "gone.json: no such file; check the path"),
        ("[{file_sd: {files: ['gone/*.json']}}]", "gone/*.json: matches no file; check targets_from"),
        ("[{file_sd: {files: []}}]", "phasewatch.yml:2: targets_from[0].file_sd.files: must have at least 1 entries"),
        ("[{}]", "phasewatch.yml:2: targets_from[0]: must name one way to find targets; use file_sd"),
        (
            "[{file_ds: {files: [a]}}]",
            'phasewatch.yml:2: targets_from[0].file_ds: unknown key; did you mean "file_sd"?',
        ),
        ("{file_sd: {files: [a]}}", "phasewatch.yml:2: targets_from: must be a list, not a mapping"),
    ],
)
def test_a_way_that_leads_nowhere_is_named(tmp_path: Path, section: str, expected: str) -> None:
    assert error_of(tmp_path, f"targets: [http://a:1]\ntargets_from: {section}")[0].startswith(expected)
