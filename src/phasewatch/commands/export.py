"""`phasewatch export`: dashboards and rules as files, for people who have their own Grafana and Prometheus."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml

from phasewatch.commands import CommandError
from phasewatch.commands.options import one_of
from phasewatch.shipped import DASHBOARDS, RULES, RUNBOOKS, shipped

What = Literal["dashboards", "rules", "all"]
# What each word brings, by folder of the repository.
FOLDERS: Mapping[What, tuple[str, ...]] = {
    "dashboards": (DASHBOARDS, "grafana/provisioning"),
    "rules": (RULES, RUNBOOKS),
    "all": (DASHBOARDS, "grafana/provisioning", RULES, RUNBOOKS),
}
FOLDER_IN_GRAFANA = "vLLM"
NAMES = {"app.kubernetes.io/name": "phasewatch", "app.kubernetes.io/part-of": "phasewatch"}
# A service monitor's own labels on the target would win over those of the vLLM servers that the series speak of.
_OF_THE_SCRAPE = "pod|service|endpoint|namespace"


def command(
    what: Annotated[
        What, typer.Argument(help="Grafana's dashboards, Prometheus' rules with runbooks, or both.", **one_of(*FOLDERS))
    ],
    out: Annotated[Path, typer.Option(help="Folder to write to; made if missing.")],
    format: Annotated[
        Literal["files", "kubernetes"],
        typer.Option(
            help="Plain files, or ConfigMaps, PrometheusRules and a ServiceMonitor.", **one_of("files", "kubernetes")
        ),
    ] = "files",
    label: Annotated[
        list[str],
        typer.Option(metavar="NAME=VALUE", help="With --format kubernetes: a label that your operator selects by."),
    ] = [],  # noqa: B006
    force: Annotated[bool, typer.Option("--force", help="Write over files with other contents.")] = False,
) -> None:
    """Prints the path of each file. Never writes over a file with other contents, unless with --force."""
    if label and format != "kubernetes":
        raise CommandError("--label needs --format kubernetes; remove it")
    written = dict(_manifests(what, _labels(label)) if format == "kubernetes" else _files(what))
    changed = [path for path, text in written.items() if _differs(out / path, text)]
    if changed and not force:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise CommandError(f"{out / changed[0]}{more}: exists with other contents; --force writes over it")
    for path, text in written.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_text(text, encoding="utf-8")
        print(out / path)


def _differs(path: Path, text: str) -> bool:
    return path.exists() and path.read_bytes() != text.encode()


def _files(what: What) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS[what]:
        yield from shipped(folder)


def _labels(labels: Sequence[str]) -> dict[str, str]:
    pairs = [label.partition("=") for label in labels]
    for label, (name, equals, _) in zip(labels, pairs, strict=True):
        if not name or not equals:
            raise CommandError(f"--label {label}: write NAME=VALUE, such as release=kube-prometheus-stack")
    return {name: value for name, _, value in pairs}


# --- Kubernetes --------------------------------------------------------------------------------------------------


def _manifests(what: What, labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if what in ("dashboards", "all"):
        yield "dashboards.yaml", _yaml(_config_maps(labels))
    if what in ("rules", "all"):
        yield "rules.yaml", _yaml(_prometheus_rules(labels))
        yield "servicemonitor.yaml", _yaml([_service_monitor(labels)])


def _metadata(name: str, labels: Mapping[str, str], **more: object) -> dict[str, object]:
    return {"name": name, "labels": {**NAMES, **labels}, **more}


def _config_maps(labels: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """One a dashboard, as Grafana's sidecar looks for them."""
    for path, text in shipped(DASHBOARDS):
        name = path.rpartition("/")[2]
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(
                f"{name.removesuffix('.json')}-dashboard",
                {"grafana_dashboard": "1", **labels},
                annotations={"grafana_folder": FOLDER_IN_GRAFANA},
            ),
            "data": {name: text},
        }


def _prometheus_rules(labels: Mapping[str, str]) -> Iterator[dict[str, object]]:
    for path, text in shipped(RULES):
        name = path.rpartition("/")[2].removesuffix(".yml")
        yield {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": _metadata(f"phasewatch-{name}", labels),
            "spec": {"groups": yaml.safe_load(text)["groups"]},
        }


def _service_monitor(labels: Mapping[str, str]) -> dict[str, object]:
    endpoint = {
        "port": "http",
        "path": "/metrics",
        "interval": "15s",
        "honorLabels": True,
        "relabelings": [{"action": "labeldrop", "regex": _OF_THE_SCRAPE}],
    }
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _metadata("phasewatch", labels),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": "phasewatch"}},
            "sampleLimit": 50_000,
            "endpoints": [endpoint],
        },
    }


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that a dashboard or an alert stays readable."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(documents: Iterable[object]) -> str:
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=True, width=1_000_000
    )
