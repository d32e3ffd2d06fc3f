"""docker-compose.yml, tried as far as that goes without a daemon.

Compose itself reads it. Services whose programs can be had run by their own commands, with copies of what they mount
and on other ports, until the demo's incident arrives at Alertmanager.
"""

import json
import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import phasewatch
from bundle import PATIENCE_SECONDS, Bundle, compose
from phasewatch.commands import demo
from support import ROOT, Alertmanager, Tools, wait_until

PROFILES = {
    "fleet": {"phasewatch", "prometheus", "alertmanager", "grafana"},
    "demo": {"phasewatch-demo", "demo-fleet", "prometheus", "alertmanager", "grafana-demo"},
}


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    return {"fleet": compose(VLLM_TARGETS="http://a:8000,http://b:8000"), "demo": compose("--profile", "demo")}


@pytest.fixture(params=PROFILES)
def services(request: pytest.FixtureRequest, documents: dict[str, Any]) -> dict[str, Any]:
    """The services of one profile, by name."""
    return dict(documents[request.param]["services"])


def test_each_profile_starts_its_services_and_no_other(documents: dict[str, Any]) -> None:
    assert {profile: set(document["services"]) for profile, document in documents.items()} == PROFILES


def test_the_targets_are_all_that_must_be_set_and_the_demo_needs_none(documents: dict[str, Any]) -> None:
    watching = documents["fleet"]["services"]["phasewatch"]
    assert watching["environment"] == {"VLLM_TARGETS": "http://a:8000,http://b:8000"}
    assert watching["extra_hosts"] == ["host.docker.internal=host-gateway"]
    assert "environment" not in documents["demo"]["services"]["phasewatch-demo"]


def test_every_image_has_one_version(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), name
        if "build" in service:
            assert service["image"] == f"phasewatch:{phasewatch.__version__}"
            assert service["build"]["context"] == str(ROOT)


def test_every_port_is_published_on_loopback_only(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}
    assert sorted(port["published"] for port in published) == ["3000", "9090", "9093", "9321"]


def test_no_service_may_more_than_it_needs(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name


def test_what_is_mounted_exists_and_cannot_be_written(services: dict[str, Any]) -> None:
    binds = [(name, mount) for name, service in services.items() for mount in _binds(service)]
    for name, mount in binds:
        assert Path(mount["source"]).exists(), f"{name}: {mount['source']}"
        assert mount["read_only"], f"{name}: {mount['target']}"
    assert {"config/prometheus", "config/alertmanager", "grafana/dashboards"} <= {
        str(Path(mount["source"]).relative_to(ROOT)) for _, mount in binds
    }


def test_what_is_written_outlives_a_container(documents: dict[str, Any]) -> None:
    for document in documents.values():
        mounts = [mount for service in document["services"].values() for mount in service.get("volumes", [])]
        named = {mount["source"]: mount["target"] for mount in mounts if mount["type"] == "volume"}
        assert named == {
            "prometheus-data": "/prometheus",
            "alertmanager-data": "/alertmanager",
            "grafana-data": "/var/lib/grafana",
        }
        assert set(document["volumes"]) == set(named)


def test_every_service_has_a_health_check_and_waits_for_those_it_needs(services: dict[str, Any]) -> None:
    for name, service in services.items():
        how, *command = service["healthcheck"]["test"]
        assert how == "CMD", f"{name}: without a shell"
        assert command, name
        for other, need in service.get("depends_on", {}).items():
            assert need["condition"] == "service_healthy", f"{name}: {other}"
            assert other in services or not need["required"], f"{name} waits for {other}, which is not started"


def test_phasewatch_is_asked_for_its_health_as_its_image_asks(documents: dict[str, Any]) -> None:
    for profile, name in (("fleet", "phasewatch"), ("demo", "phasewatch-demo")):
        assert documents[profile]["services"][name]["healthcheck"]["test"][-1] in (ROOT / "Dockerfile").read_text()


def test_grafana_finds_its_home_its_dashboards_and_all_that_is_provisioned(services: dict[str, Any]) -> None:
    [grafana] = [service for service in services.values() if service["image"].startswith("grafana/")]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert json.loads(_outside(grafana, home).read_text())["title"]
    for folder in (ROOT / "grafana" / "provisioning").iterdir():
        assert _outside(grafana, f"/etc/grafana/provisioning/{folder.name}") == folder
    provider = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/phasewatch.yml").read_text())["providers"][0]
    assert _outside(grafana, provider["options"]["path"]) == ROOT / "grafana" / "dashboards"


def test_the_data_sources_are_services_of_the_bundle(services: dict[str, Any]) -> None:
    provisioned = yaml.safe_load((ROOT / "grafana/provisioning/datasources/phasewatch.yml").read_text())
    known = {f"http://{name}:{port['target']}" for name, s in services.items() for port in s.get("ports", [])}
    assert {source["url"] for source in provisioned["datasources"]} <= known


def test_only_the_demo_shows_grafana_without_a_login(documents: dict[str, Any]) -> None:
    fleet = documents["fleet"]["services"]["grafana"]["environment"]
    demonstrated = documents["demo"]["services"]["grafana-demo"]["environment"]
    assert not [name for name in fleet if "ANONYMOUS" in name]
    assert fleet | {"GF_AUTH_ANONYMOUS_ENABLED": "true", "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer"} == demonstrated


def test_grafanas_password_comes_from_a_file_where_one_is_named(documents: dict[str, Any]) -> None:
    name = "GF_SECURITY_ADMIN_PASSWORD__FILE"
    assert documents["fleet"]["services"]["grafana"]["environment"][name] == ""
    document = compose(GRAFANA_ADMIN_PASSWORD_FILE="./secret")
    [secret] = document["services"]["grafana"]["secrets"]
    assert document["services"]["grafana"]["environment"][name] == f"/run/secrets/{secret['source']}"
    assert document["secrets"][secret["source"]]["file"] == str(ROOT / "secret")


def test_secrets_stay_out_of_git_and_of_the_image() -> None:
    assert "/config/alertmanager/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "config/alertmanager/secrets" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_demos_configuration_says_what_the_demo_command_says(documents: dict[str, Any]) -> None:
    config = yaml.safe_load((ROOT / "config" / "demo.yml").read_text())
    ports = documents["demo"]["services"]["demo-fleet"]["expose"]
    names = [target.name for target in demo.demo_recording().targets]
    assert config["targets"] == [
        {"name": name, "url": f"http://demo-fleet:{port}"} for name, port in zip(names, ports, strict=True)
    ]
    assert config["objectives"] == demo.OBJECTIVES
    assert config["scrape"]["interval"] == demo.INTERVAL


def _binds(service: Any) -> list[Any]:
    return [mount for mount in service.get("volumes", []) if mount["type"] == "bind"]


def _outside(service: Any, path: str) -> Path:
    """Where a path of the container lies in the repository."""
    for mount in _binds(service):
        if Path(path).is_relative_to(mount["target"]):
            return Path(mount["source"]) / Path(path).relative_to(mount["target"])
    raise AssertionError(f"{path} is not mounted")


def _sooner(text: str) -> str:
    """Rules and scrapes of a copy that do not let a test wait for minutes; addresses of the world lead nowhere."""
    text = re.sub(r"(?m)^( *(?:scrape|evaluation)_interval:) \S+$", r"\1 1s", text)
    text = re.sub(r"(?m)^( +for:) \S+$", r"\1 2s", text)
    return text.replace("heartbeat.example.net", "127.0.0.1:9")


def test_without_targets_phasewatch_says_what_to_set(tmp_path: Path) -> None:
    bundle = Bundle(compose()["services"], tmp_path, None)
    bundle.lay("phasewatch", str)
    ran = subprocess.run(
        bundle.command("phasewatch"),
        env={"PATH": os.environ["PATH"], **bundle.services["phasewatch"]["environment"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "set VLLM_TARGETS=http://" in ran.stderr


def test_the_demos_incident_arrives_at_alertmanager(tools: Tools, documents: dict[str, Any], tmp_path: Path) -> None:
    bundle = Bundle(documents["demo"]["services"], tmp_path, tools)
    with ExitStack() as running:
        for name in ("alertmanager", "demo-fleet", "phasewatch-demo", "prometheus"):
            needed = bundle.services[name].get("depends_on", {})
            assert all(bundle.healthy(other) for other, need in needed.items() if need["required"])
            process = running.enter_context(bundle.run(name, _sooner))
        holder = Alertmanager(bundle.url("alertmanager"), process, tmp_path, tmp_path)

        def incident() -> list[dict[str, Any]]:
            firing = [a for a in holder.alerts() if a["labels"]["alertname"] == "PhasewatchTTFTHigh"]
            named = [a for a in firing if "queue_batch_limit" in a["annotations"]["description"]]
            return [a for a in named if a["status"]["state"] == "active"]

        alerts = wait_until(incident, "the slow first tokens are an alert that says why", PATIENCE_SECONDS, 0.5)
        assert {(a["labels"]["model_name"], a["labels"]["target"]) for a in alerts} == {("demo-llama", "vllm-2")}
        assert alerts[0]["generatorURL"].startswith("http://localhost:9090/")
        names = {alert["labels"]["alertname"] for alert in holder.alerts()}
        assert not names & {"PhasewatchDown", "PhasewatchNotEvaluating", "PhasewatchTargetsDown"}
    assert not bundle.healthy("phasewatch-demo"), "the check sees that phasewatch has gone"
