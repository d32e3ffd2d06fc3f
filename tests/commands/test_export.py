"""`phasewatch export`, from a wheel as people have it."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from phasewatch import cli
from phasewatch.core.report.families import PREFIX
from support import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    ran = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (built,) = folder.glob("*.whl")
    zipfile.ZipFile(built).extractall(folder / "site")
    return folder / "site"


def export(wheel: Path, out: Path, *arguments: str) -> list[str]:
    """Paths that it printed, relative to `out`. Run elsewhere, so that nothing of the repository is at hand."""
    ran = subprocess.run(
        [sys.executable, "-m", "phasewatch", "export", *arguments, "--out", str(out)],
        cwd=out.parent,
        env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return [str(Path(line).relative_to(out)) for line in ran.stdout.splitlines()]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_the_repository(*folders: str) -> dict[str, bytes]:
    return {f"{folder}/{name}": data for folder in folders for name, data in files(ROOT / folder).items()}


DASHBOARDS = ("grafana/dashboards", "grafana/provisioning")
RULES = ("config/prometheus/rules", "config/runbooks")


@pytest.mark.parametrize(
    ("what", "folders"), [("dashboards", DASHBOARDS), ("rules", RULES), ("all", DASHBOARDS + RULES)]
)
def test_the_wheel_exports_what_the_repository_has(
    wheel: Path, tmp_path: Path, what: str, folders: tuple[str, ...]
) -> None:
    printed = export(wheel, tmp_path / "out", what)
    written = files(tmp_path / "out")
    assert sorted(printed) == sorted(written)
    assert written == in_the_repository(*folders)
    assert len(written) >= 6


def test_the_wheel_runs_without_the_generator(wheel: Path) -> None:
    assert not (wheel / "phasewatch" / "dashboards").exists()
    sources = "".join(path.read_text() for path in wheel.rglob("*.py"))
    assert "grafana_foundation_sdk" not in sources


def test_promtool_accepts_the_exported_rules(wheel: Path, tmp_path: Path, promtool: Path) -> None:
    export(wheel, tmp_path / "out", "rules")
    rules = sorted((tmp_path / "out" / "config" / "prometheus" / "rules").iterdir())
    ran = subprocess.run([promtool, "check", "rules", *rules], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# --- Kubernetes


@pytest.fixture(scope="module")
def manifests(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("kubernetes") / "out"
    printed = export(wheel, out, "all", "--format", "kubernetes", "--label", "release=kube-prometheus-stack")
    assert sorted(printed) == ["dashboards.yaml", "rules.yaml", "servicemonitor.yaml"]
    return [document for name in printed for document in yaml.safe_load_all((out / name).read_text())]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in manifests if document["kind"] == kind]


NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


def test_every_manifest_has_a_name_and_labels_that_kubernetes_takes(manifests: list[dict[str, Any]]) -> None:
    names = [(document["kind"], document["metadata"]["name"]) for document in manifests]
    assert len(set(names)) == len(names)
    for document in manifests:
        metadata = document["metadata"]
        assert NAME.fullmatch(metadata["name"])
        assert len(metadata["name"]) <= 63
        assert metadata["labels"]["release"] == "kube-prometheus-stack"
        for value in (*metadata["labels"].values(), *metadata.get("annotations", {}).values()):
            assert isinstance(value, str)
            assert LABEL.fullmatch(value)
        assert set(document) <= {"apiVersion", "kind", "metadata", "spec", "data"}


def test_each_dashboard_is_a_config_map_that_the_sidecar_finds(manifests: list[dict[str, Any]]) -> None:
    maps = of_kind(manifests, "ConfigMap")
    assert {one["apiVersion"] for one in maps} == {"v1"}
    found: dict[str, str] = {}
    for one in maps:
        assert one["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((name, text),) = one["data"].items()
        assert name.endswith(".json")
        assert len(text.encode()) < 1_000_000  # a ConfigMap holds a mebibyte
        found[name] = text
    assert found == {path.name: path.read_text() for path in (ROOT / "grafana" / "dashboards").iterdir()}
    assert all(json.loads(text)["uid"] for text in found.values())


def test_each_rule_file_is_a_prometheus_rule_that_promtool_accepts(
    manifests: list[dict[str, Any]], promtool: Path, tmp_path: Path
) -> None:
    rules = of_kind(manifests, "PrometheusRule")
    originals = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "config/prometheus/rules").iterdir())]
    assert [rule["spec"] for rule in rules] == originals
    for rule in rules:
        assert rule["apiVersion"] == "monitoring.coreos.com/v1"
        path = tmp_path / "rules.yml"
        path.write_text(yaml.safe_dump(rule["spec"]))
        ran = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_service_monitor_leaves_the_series_the_labels_of_the_servers_they_speak_of(
    manifests: list[dict[str, Any]],
) -> None:
    (monitor,) = of_kind(manifests, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True
    (drop,) = endpoint["relabelings"]
    assert drop["action"] == "labeldrop"
    for label in ("pod", "service", "endpoint", "namespace"):
        assert re.fullmatch(drop["regex"], label)
    assert not re.fullmatch(drop["regex"], "instance")
    prometheus = yaml.safe_load((ROOT / "config" / "prometheus" / "prometheus.yml").read_text())
    (job,) = [job for job in prometheus["scrape_configs"] if job["job_name"] == PREFIX.rstrip("_")]
    assert monitor["spec"]["sampleLimit"] == job["sample_limit"]
    assert endpoint["interval"] == prometheus["global"]["scrape_interval"]


# --- care


def test_a_file_that_says_something_else_is_kept_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["export", "dashboards", "--out", str(tmp_path)]) == 0
    assert cli.run(["export", "dashboards", "--out", str(tmp_path)]) == 0  # the same again changes nothing
    edited = tmp_path / "grafana" / "dashboards" / "phasewatch-fleet.json"
    edited.write_text("{}")
    capsys.readouterr()
    assert cli.run(["export", "all", "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert str(edited) in err
    assert "--force" in err
    assert not (tmp_path / "config").exists()
    assert cli.run(["export", "all", "--out", str(tmp_path), "--force"]) == 0
    assert edited.read_text() != "{}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export", "rules", "--label", "a=b"], "--label needs --format kubernetes"),
        (["export", "rules", "--format", "kubernetes", "--label", "ab"], "NAME=VALUE"),
    ],
)
def test_a_wrong_label_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*arguments, "--out", str(tmp_path / "x")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("")
    assert cli.run(["export", "rules", "--out", str(tmp_path / "x")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
