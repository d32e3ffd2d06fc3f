"""The shipped configuration in a real Prometheus that scrapes what phasewatch really exports."""

from collections.abc import Callable
from typing import Any

import yaml

from rulefiles import PROMETHEUS, RULE_FILES, rules
from support import ROOT, HttpServer, Prometheus, wait_until

PAGE = ROOT / "tests" / "fixtures" / "golden" / "serving.prom"


def _config(*targets: str) -> str:
    """The shipped configuration with these targets and short times, and nobody to send alerts to."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    del config["alerting"]
    return yaml.safe_dump(config)


def _rules(server: Prometheus) -> list[dict[str, Any]]:
    groups = server.get("/api/v1/rules")["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_rule_evaluates_on_a_real_page_and_two_phasewatches_make_one_alert_an_engine(
    prometheus_server: Callable[..., Prometheus], http_server: Callable[..., HttpServer]
) -> None:
    pair = [http_server({"/metrics": PAGE.read_bytes()}) for _ in range(2)]
    files = {f"rules/{path.name}": path.read_text() for path in RULE_FILES}
    server = prometheus_server(_config(*(one.url.removeprefix("http://") for one in pair)), files=files)

    def pending() -> list[dict[str, Any]]:
        alerts = server.get("/api/v1/alerts")["data"]["alerts"]
        return [one for one in alerts if one["labels"]["alertname"] == "PhasewatchQueueGrowing"]

    found = wait_until(pending, "a queue that grows is seen")
    assert sorted(one["labels"]["target"] for one in found) == ["gpu-1:8000", "gpu-2:8000"]
    assert all(one["labels"].keys().isdisjoint({"instance", "job", "window"}) for one in found)
    assert all(one["labels"]["namespace"] == "llm" for one in found), "the target's own labels stay"
    text = next(one["annotations"]["description"] for one in found if one["labels"]["target"] == "gpu-2:8000")
    assert "expected wait 4.5s and rising; warning limit of TTFT 2.5s. KV cache 42% full." in text
    assert "Cause: queue_batch_limit for 100% of the last 10 minutes." in text
    assert "First: shed load: lower the rate limit, or route part of the traffic elsewhere (now)." in text
    assert len(_rules(server)) == len(rules())
    wait_until(lambda: all(rule["health"] != "unknown" for rule in _rules(server)), "all rules were evaluated")
    assert [(rule["name"], rule.get("lastError")) for rule in _rules(server) if rule["health"] != "ok"] == []


def test_series_of_two_phasewatches_differ_only_by_instance(
    prometheus_server: Callable[..., Prometheus],
    http_server: Callable[..., HttpServer],
) -> None:
    pair = [http_server({"/metrics": PAGE.read_bytes()}) for _ in range(2)]
    server = prometheus_server(
        _config(*(one.url.removeprefix("http://") for one in pair)), files={"rules/none.yml": "groups: []"}
    )
    found = wait_until(
        lambda: series if len(series := server.query('phasewatch_target_up{target="gpu-1:8000"}')) == 2 else None,
        "both are scraped",
    )
    (one, _), (other, _) = found
    assert {name for name in one if one[name] != other.get(name)} == {"instance"}
    assert one["pod"] == "gpu-1", "the vLLM server's, not the scrape's"
