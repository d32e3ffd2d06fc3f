"""Alertmanager of both Debian suites: routes, inhibition by a real server, and what a page reads like."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rulefiles import alerts, fired
from support import ROOT, Alertmanager, HttpServer, wait_until

HOME = ROOT / "config" / "alertmanager"
CONFIG = HOME / "alertmanager.yml"
TEMPLATES = HOME / "templates"
Labels = dict[str, str]
FIRED = fired()


def _config() -> dict[str, Any]:
    return dict(yaml.safe_load(CONFIG.read_text()))


def _run(amtool: Path, *arguments: str | Path) -> str:
    ran = subprocess.run([amtool, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def labels_of(alert: str, severity: str, **changes: str) -> Labels:
    """The labels that promtool proves this alert to have, and what `changes` says."""
    return {**FIRED[(alert, severity)][0][0], **changes}


# --- as text


def test_the_configuration_and_its_templates_load(amtool: Path) -> None:
    assert "1 templates" in _run(amtool, "check-config", CONFIG)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule.id)
def test_every_alert_goes_where_its_severity_says(amtool: Path, rule: Any) -> None:
    receiver = {"critical": "pages", "warning": "tickets", "info": "shown", "none": "heartbeat"}[rule.severity]
    labels = [f"{name}={value}" for name, value in labels_of(rule.name, rule.severity).items() if "/" not in value]
    arguments = ("config", "routes", "test", f"--config.file={CONFIG}", f"--verify.receivers={receiver}")
    assert receiver in _run(amtool, *arguments, *labels)


def test_what_no_rule_of_ours_made_is_a_ticket(amtool: Path) -> None:
    arguments = ("config", "routes", "test", f"--config.file={CONFIG}", "--verify.receivers=tickets")
    _run(amtool, *arguments, "alertname=Other")


def test_no_secret_is_written_down() -> None:
    text = CONFIG.read_text()
    assert re.findall(r"(api_url|routing_key|service_key|credentials|password|bearer_token):", text) == []
    files = re.findall(r"(\w+_file): (\S+)", text)
    assert {name for name, _ in files} == {"api_url_file", "routing_key_file", "credentials_file"}
    assert all(path.startswith("/etc/alertmanager/secrets/") for _, path in files)


def _matches(matchers: list[str], labels: Mapping[str, str]) -> bool:
    tests: dict[str, Callable[[str, str], bool]] = {
        "=": lambda value, wanted: value == wanted,
        "!=": lambda value, wanted: value != wanted,
        "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
        "!~": lambda value, wanted: re.fullmatch(wanted, value) is None,
    }
    for matcher in matchers:
        parts = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher)
        assert parts, matcher
        if not tests[parts[2]](labels.get(parts[1], ""), parts[3]):
            return False
    return True


@pytest.mark.parametrize("number", range(len(_config()["inhibit_rules"])))
def test_e09_every_label_that_must_be_equal_is_on_all_alerts_of_both_sides(number: int) -> None:
    """Two alerts that both lack a label would count as equal, and mute each other across models."""
    rule = _config()["inhibit_rules"][number]
    for side in ("source_matchers", "target_matchers"):
        labels = [one for ways in FIRED.values() for one, _ in ways if _matches(rule[side], one)]
        assert labels, f"{side} of rule {number} matches no alert of ours"
        lacking = {one["alertname"] for one in labels if not set(rule["equal"]) <= set(one)}
        assert lacking == set(), side


@pytest.mark.parametrize("number", range(len(_config()["inhibit_rules"])))
def test_inhibition_never_reaches_another_model_and_a_warning_never_hides_a_page(number: int) -> None:
    rule = _config()["inhibit_rules"][number]
    assert "model_name" in rule["equal"]
    sources = {one["severity"] for ways in FIRED.values() for one, _ in ways if _matches(rule["source_matchers"], one)}
    targets = {one["severity"] for ways in FIRED.values() for one, _ in ways if _matches(rule["target_matchers"], one)}
    assert sources == {"critical"} or targets == {"warning"}


# --- by a real Alertmanager


def _served(receiver: str, url: str) -> dict[str, Any]:
    """The shipped configuration with every receiver replaced by a webhook, and short times."""
    config = _config()
    config["templates"] = []
    config["receivers"] = [
        {"name": one["name"], "webhook_configs": [{"url": f"{url}/{one['name']}", "send_resolved": True}]}
        for one in config["receivers"]
    ]
    routes = [config["route"], *config["route"]["routes"]]
    for route in routes:
        route |= {"group_wait": "200ms", "group_interval": "300ms"}
    return config


@pytest.fixture
def hooked(
    alertmanager_server: Callable[..., Alertmanager], http_server: Callable[..., HttpServer]
) -> tuple[Alertmanager, HttpServer]:
    """A real Alertmanager with the shipped routes and inhibition, and what it sends to."""
    hooks = http_server({f"/{name}": b"" for name in ("pages", "tickets", "heartbeat")})
    return alertmanager_server(yaml.safe_dump(_served("", hooks.url))), hooks


def _hides(server: Alertmanager, *expected: tuple[str, str, str], count: int) -> None:
    """Waits until, of `count` alerts, just these (alert, severity, target) are hidden by something else.

    Alertmanager takes an alert in before it has gone past the inhibitor: a first answer may still lack some.
    """

    def hidden() -> bool:
        held = server.alerts()
        found = {
            (one["labels"]["alertname"], one["labels"]["severity"], one["labels"].get("target", ""))
            for one in held
            if one["status"]["inhibitedBy"]
        }
        return len(held) == count and found == set(expected)

    wait_until(hidden, f"of {count} alerts just {expected} are hidden")
    assert hidden()


def _post(server: Alertmanager, *labels: Labels) -> None:
    texts = {"summary": "s", "description": "d", "runbook_url": "r"}
    server.post_alerts([{"labels": one, "annotations": texts} for one in labels])


def test_e09_a_cause_hides_the_symptoms_of_its_own_engine_only(hooked: tuple[Alertmanager, HttpServer]) -> None:
    server, hooks = hooked
    _post(
        server,
        labels_of("PhasewatchEngineStalled", "critical", target="r1", model_name="a"),
        labels_of("PhasewatchEngineStalled", "warning", target="r1", model_name="a"),
        labels_of("PhasewatchTTFTHigh", "warning", target="r1", model_name="a"),
        labels_of("PhasewatchITLHigh", "critical", target="r1", model_name="a"),
        labels_of("PhasewatchITLHigh", "warning", target="r1", model_name="a", engine="1"),
        labels_of("PhasewatchTTFTHigh", "warning", target="r7", model_name="b"),
        labels_of("PhasewatchTTFTHigh", "warning", target="r7", model_name="a"),
    )
    _hides(
        server,
        ("PhasewatchEngineStalled", "warning", "r1"),
        ("PhasewatchTTFTHigh", "warning", "r1"),
        ("PhasewatchITLHigh", "critical", "r1"),
        count=7,
    )
    sent = _sent(hooks, "/tickets", 3)
    assert {(one["target"], one["model_name"], one["engine"]) for one in sent} == {
        ("r7", "b", "0"),
        ("r7", "a", "0"),
        ("r1", "a", "1"),
    }


def test_a_cause_hides_only_symptoms_of_its_area_and_a_ticket_never_a_page(
    hooked: tuple[Alertmanager, HttpServer],
) -> None:
    server, _ = hooked
    here = {"target": "r1", "model_name": "a"}
    _post(
        server,
        labels_of("PhasewatchKVCacheExhausted", "warning", **here),
        labels_of("PhasewatchTTFTHigh", "warning", **here),
        labels_of("PhasewatchTTFTHigh", "critical", **here),
        labels_of("PhasewatchQueueGrowing", "critical", **here),
        labels_of("PhasewatchITLStalls", "warning", **here),
        labels_of("PhasewatchRequestsFailing", "warning", **here),
    )
    _hides(
        server,
        ("PhasewatchTTFTHigh", "warning", "r1"),
        count=6,
    )


def test_half_a_model_down_hides_its_latency_and_no_other_models(hooked: tuple[Alertmanager, HttpServer]) -> None:
    server, _ = hooked
    _post(
        server,
        labels_of("PhasewatchTargetsDown", "critical", model_name="a"),
        labels_of("PhasewatchTargetsDown", "warning", model_name="a"),
        labels_of("PhasewatchTTFTHigh", "critical", target="r2", model_name="a"),
        labels_of("PhasewatchTTFTBudgetBurn", "critical", model_name="a"),
        labels_of("PhasewatchRequestsFailing", "critical", target="r2", model_name="a"),
        labels_of("PhasewatchTTFTHigh", "critical", target="r3", model_name="b"),
        labels_of("PhasewatchITLBudgetBurn", "critical", model_name="b"),
        labels_of("PhasewatchDown", "critical"),
    )
    _hides(
        server,
        ("PhasewatchTargetsDown", "warning", ""),
        ("PhasewatchTTFTHigh", "critical", "r2"),
        ("PhasewatchTTFTBudgetBurn", "critical", ""),
        count=8,
    )


def _sent(hooks: HttpServer, path: str, count: int) -> list[Labels]:
    """Labels of all firing alerts that arrived there, each once, when there are that many."""

    def arrived() -> list[Labels] | None:
        found = [
            alert["labels"]
            for request in list(hooks.requests)
            if request.path == path
            for alert in request.json()["alerts"]
            if alert["status"] == "firing"
        ]
        each = [dict(one) for one in {tuple(sorted(labels.items())) for labels in found}]
        return each if len(each) >= count else None

    return wait_until(arrived, f"{count} alerts arrived at {path}")


def test_e05_a_warning_that_becomes_critical_is_told_twice(hooked: tuple[Alertmanager, HttpServer]) -> None:
    server, hooks = hooked
    warning = labels_of("PhasewatchKVCacheExhausted", "warning")
    critical = labels_of("PhasewatchKVCacheExhausted", "critical")
    _post(server, warning)
    assert _sent(hooks, "/tickets", 1) == [dict(sorted(warning.items()))]
    _post(server, warning, critical)
    assert _sent(hooks, "/pages", 1) == [dict(sorted(critical.items()))]
    _hides(
        server,
        ("PhasewatchKVCacheExhausted", "warning", warning["target"]),
        count=2,
    )


def test_thirty_engines_of_one_model_are_one_page_and_the_heartbeat_goes_its_own_way(
    hooked: tuple[Alertmanager, HttpServer],
) -> None:
    server, hooks = hooked
    many = [labels_of("PhasewatchTTFTHigh", "critical", target=f"gpu-{n}:8000") for n in range(30)]
    _post(server, *many, labels_of("PhasewatchWatchdog", "none"))
    assert len(_sent(hooks, "/pages", 30)) == 30
    _sent(hooks, "/heartbeat", 1)
    pages = [request.json() for request in hooks.requests if request.path == "/pages"]
    assert len(pages) == 1
    assert pages[0]["groupLabels"] == {"alertname": "PhasewatchTTFTHigh", "model_name": "Qwen/Qwen3-8B"}
    assert not [request for request in hooks.requests if request.path == "/tickets"]


# --- what a page reads like


def _data(firing: list[Labels], resolved: list[Labels] | None = None) -> dict[str, Any]:
    """What Alertmanager gives its templates, for one group of alerts with the texts that promtool proves."""
    everyone = [*firing, *(resolved or [])]
    texts = {one["severity"]: FIRED[(one["alertname"], one["severity"])][0][1] for one in everyone}
    common = {k: v for k, v in everyone[0].items() if all(one.get(k) == v for one in everyone)}
    described = [
        {
            "status": "firing" if one in firing else "resolved",
            "labels": one,
            "annotations": texts[one["severity"]]
            | {"description": texts[one["severity"]]["description"].replace("gpu-1:8000", one.get("target", ""))},
            "startsAt": "2026-08-20T10:15:00Z",
            "endsAt": "0001-01-01T00:00:00Z" if one in firing else "2026-08-20T10:45:00Z",
            "generatorURL": "http://prometheus.example.net/graph",
        }
        for one in everyone
    ]
    return {
        "receiver": "pages",
        "status": "firing" if firing else "resolved",
        "alerts": described,
        "groupLabels": {k: v for k, v in common.items() if k in ("alertname", "model_name")},
        "commonLabels": common,
        "commonAnnotations": {k: v for k, v in texts[everyone[0]["severity"]].items() if k != "description"},
        "externalURL": "http://alertmanager.example.net",
    }


def _rendered(amtool: Path, folder: Path, template: str, data: dict[str, Any]) -> str:
    path = folder / "data.json"
    path.write_text(json.dumps(data))
    text = f'{{{{ template "phasewatch.{template}" . }}}}'
    return _run(
        amtool,
        "template",
        "render",
        f"--template.glob={TEMPLATES}/*.tmpl",
        f"--template.text={text}",
        f"--template.data={path}",
    ).rstrip("\n")


def test_a_page_of_one_alert_says_cause_numbers_remedy_and_links(amtool: Path, tmp_path: Path) -> None:
    data = _data([labels_of("PhasewatchQueueGrowing", "critical")])
    assert _rendered(amtool, tmp_path, "title", data) == (
        "[CRITICAL] PhasewatchQueueGrowing Qwen/Qwen3-8B: "
        "The queue grows, and a new request waits longer than the TTFT limit."
    )
    assert _rendered(amtool, tmp_path, "text", data) == (
        "Engine 0 on gpu-1:8000 (Qwen/Qwen3-8B): expected wait 31s and rising; critical limit of TTFT 10s."
        " KV cache 42% full. Prefill takes 6% of the engine time. 118 requests waiting. 64 running.\n"
        "Cause: queue_batch_limit for 50% of the last 10 minutes.\n"
        "First: shed load (now).\n"
        "Read on: config/runbooks/verdicts/queue_batch_limit.md\n"
        "Since 10:15 UTC | http://prometheus.example.net/graph\n\n"
        "Runbook: config/runbooks/alerts/PhasewatchQueueGrowing.md"
    )


def test_the_link_of_a_page_can_be_clicked_on(amtool: Path, tmp_path: Path) -> None:
    data = _data([labels_of("PhasewatchQueueGrowing", "critical")])
    assert _rendered(amtool, tmp_path, "link", data) == "http://alertmanager.example.net", "a path is no address"
    data["commonAnnotations"]["runbook_url"] = "https://git.example.net/runbooks/alerts/PhasewatchQueueGrowing.md"
    assert _rendered(amtool, tmp_path, "link", data) == data["commonAnnotations"]["runbook_url"]


def test_a_page_of_thirty_alerts_tells_ten_in_full_and_names_the_others(amtool: Path, tmp_path: Path) -> None:
    data = _data([labels_of("PhasewatchTTFTHigh", "critical", target=f"gpu-{n}:8000") for n in range(30)])
    assert _rendered(amtool, tmp_path, "title", data).startswith(
        "[CRITICAL] PhasewatchTTFTHigh Qwen/Qwen3-8B (30): TTFT p99 is above"
    )
    text = _rendered(amtool, tmp_path, "text", data)
    told = re.findall(
        r"^Engine 0 on (gpu-\d+):8000 .*\nCause: queue_batch_limit .*\nFirst: shed load", text, re.MULTILINE
    )
    assert told == [f"gpu-{n}" for n in range(10)]
    also = next(line for line in text.splitlines() if line.startswith("And also:"))
    assert also == "And also: " + " ".join(f"gpu-{n}:8000/0" for n in range(10, 30))
    assert text.count("Runbook: ") == 1
    assert len(text) < 6000, "chat systems cut long messages"


def test_what_has_ended_is_named_and_a_page_without_target_too(amtool: Path, tmp_path: Path) -> None:
    ended = _data([], [labels_of("PhasewatchTTFTHigh", "critical")])
    assert _rendered(amtool, tmp_path, "title", ended).startswith("[RESOLVED] PhasewatchTTFTHigh Qwen/Qwen3-8B: ")
    assert _rendered(amtool, tmp_path, "text", ended).startswith("Resolved: gpu-1:8000/0\n")
    both = _data(
        [labels_of("PhasewatchTTFTHigh", "critical")], [labels_of("PhasewatchTTFTHigh", "critical", target="x")]
    )
    assert "\n\nResolved: x/0\n" in _rendered(amtool, tmp_path, "text", both)
    down = _data([], [labels_of("PhasewatchDown", "critical")])
    assert _rendered(amtool, tmp_path, "title", down).startswith("[RESOLVED] PhasewatchDown: phasewatch is down")
    assert _rendered(amtool, tmp_path, "text", down).startswith("Resolved: PhasewatchDown\n")


def test_chat_gets_that_text_through_the_shipped_receiver(
    alertmanager_server: Callable[..., Alertmanager], http_server: Callable[..., HttpServer]
) -> None:
    chat = http_server({"/chat": b"ok"})
    config = _config()
    config["receivers"] = [
        {"name": one["name"], "slack_configs": [_with_url(slack, chat.url) for slack in one.get("slack_configs", [])]}
        for one in config["receivers"]
    ]
    for route in (config["route"], *config["route"]["routes"]):
        route["group_wait"] = "100ms"
    templates = {f"templates/{path.name}": path.read_text() for path in TEMPLATES.glob("*.tmpl")}
    server = alertmanager_server(yaml.safe_dump(config), files=templates)
    _, texts = FIRED[("PhasewatchITLHigh", "warning")][0]
    server.post_alerts([{"labels": labels_of("PhasewatchITLHigh", "warning"), "annotations": texts}])
    message = wait_until(lambda: [request.json() for request in chat.requests], "a message arrives")[0]
    assert message["channel"] == "#tickets"
    shown = message["attachments"][0]
    assert shown["title"] == "[WARNING] PhasewatchITLHigh Qwen/Qwen3-8B: ITL p99 is above its limit."
    assert shown["title_link"].startswith("http://")
    assert shown["text"].startswith(texts["description"])
    assert shown["color"] == "warning"


def _with_url(slack: dict[str, Any], url: str) -> dict[str, Any]:
    return {name: value for name, value in slack.items() if name != "api_url_file"} | {"api_url": f"{url}/chat"}
