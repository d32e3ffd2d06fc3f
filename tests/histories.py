"""Histories for a real Prometheus: what phasewatch would have exported, as OpenMetrics with timestamps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import fleets
from boards import Target, expand, variable_query
from phasewatch.commands.common import recording_of
from phasewatch.core.model import EngineReport, Fleet
from phasewatch.core.report.families import families, metrics
from phasewatch.core.settings import Objectives, Settings, parse_objectives
from phasewatch.outputs.backfill import Backfill
from phasewatch.sources.recording import Recording, timeline
from support import ROOT, Prometheus, real_recording

START = 1_790_000_000
STEP = 10
OBJECTIVES = parse_objectives(["ttft_p99=1s", "itl_p99=250ms", "e2e_p99=300s"])
# Together they show every phase, a restart and a target that is gone for a while. All run the same model.
INCIDENTS = ("burst", "interference", "kv-exhausted", "prefix-on", "restart", "spec-decode-low")
RAW = ("burst", "interference")
SCRAPED = {"instance": "phasewatch:9321", "job": "phasewatch"}
# As for `--query.lookback-delta`: what ends is gone at the next step, since backfilled series have no stale markers.
FLAGS = (f"--query.lookback-delta={STEP + 1}s",)
CONFIG = "global: {scrape_interval: 15s}\n"


@dataclass(frozen=True)
class Filled:
    """Prometheus with history from `start` to `end`, Unix seconds."""

    server: Prometheus
    start: float
    end: float
    step: float = STEP

    def ask(self, query: Target, /, scrape: float = STEP, **values: str) -> list[dict[str, Any]]:
        """The series that Grafana would draw, over the whole history."""
        expr = expand(query.expr, values, scrape=scrape, span=self.end - self.start)
        if query.kind == "instant":
            answer = self.server.get("/api/v1/query", query=expr, time=self.end)
        else:
            answer = self.server.get(
                "/api/v1/query_range", query=expr, start=self.start, end=self.end, step=max(scrape, self.step)
            )
        return list(answer["data"]["result"])

    def values(self, variable: dict[str, Any], /, **values: str) -> list[str]:
        """What a variable offers, as Grafana asks for label_values(selector, label)."""
        selector, label = variable_query(variable)
        answer = self.server.get(
            f"/api/v1/label/{label}/values",
            **{"match[]": expand(selector, values), "start": self.start, "end": self.end},
        )
        return list(answer["data"])


def text_of(written: Backfill) -> str:
    """As Backfill.text, but names with colons (vLLM's, recording rules') stay what they are."""
    return generate_latest(written, escaping=ALLOWUTF8).decode()


def scraped(page: Iterable[Metric], **more: str) -> Iterator[Metric]:
    """What Prometheus adds to a page that it scrapes: labels of its own, and two series about the scrape."""
    count = 0
    for family in page:
        family.samples = [s._replace(labels={**more, **SCRAPED, **s.labels}) for s in family.samples]
        count += len(family.samples)
        yield family
    for name, value in (("scrape_samples_post_metric_relabeling", count), ("scrape_duration_seconds", 0.01)):
        own = Metric(name, "", "gauge")
        own.add_sample(name, SCRAPED, value)
        yield own


def alert(target: str) -> Metric:
    firing = Metric("ALERTS", "", "gauge")
    labels = {"alertname": "PhasewatchTTFTHigh", "alertstate": "firing", "severity": "critical", "target": target}
    firing.add_sample("ALERTS", {**labels, "model_name": "demo-llama"}, 1)
    return firing


def exported(fleet: Fleet, wall_offset: float, objectives: Objectives = OBJECTIVES) -> Iterator[Metric]:
    return metrics(
        families(
            fleet,
            settings=Settings(objectives=objectives),
            version="1.2.3",
            wall_offset=wall_offset,
        )
    )


def incidents(folder: Path) -> Recording:
    """One recording whose targets are the incidents."""
    for name in INCIDENTS:
        (folder / name).mkdir()
        # Every second page: a scrape every 4 s.
        (target,) = real_recording(name).targets
        for entry in target.entries[::2]:
            (folder / name / entry.path.name).write_bytes(entry.path.read_bytes())
    return recording_of(folder)


def raw(recording: Recording, written: Backfill) -> None:
    """vLLM's own histograms, as a Prometheus has them that scrapes vLLM itself."""
    due: dict[str, float] = {}
    for seconds, target, entry in timeline(recording):
        if target not in RAW or seconds < due.get(target, 0) or entry.kind != "page":
            continue
        due[target] = seconds + STEP - 1
        page = []
        for family in text_string_to_metric_families(entry.read()):
            if family.name.startswith("vllm:") and family.type == "histogram":
                family.samples = [
                    s._replace(labels={**s.labels, "instance": target, "job": "vllm"})
                    for s in family.samples
                    if s.name.endswith("_bucket")
                ]
                page.append(family)
        # Of one moment each, or one family would have samples of different orders.
        written.add(page, START + round(seconds / STEP) * STEP)


def told(fleet: Fleet) -> Fleet:
    """These recordings lack how long scrapes took, which a live poll knows."""
    return replace(fleet, targets=tuple(replace(t, scrape_seconds=0.02) for t in fleet.targets))


RULES = ROOT / "config" / "prometheus" / "rules"


def recorded(server: Prometheus, start: float, end: float) -> Backfill:
    """What the recording rules would have written."""
    written = Backfill()
    rules = [
        rule
        for file in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule and "phasewatch" in rule["record"]
    ]
    at = start
    while at <= end:
        page = []
        for rule in rules:
            family = Metric(rule["record"], "", "gauge")
            for labels, value in server.query(rule["expr"], at):
                family.add_sample(rule["record"], {k: v for k, v in labels.items() if k != "__name__"}, value)
            page.append(family)
        written.add(page, at)
        at += 3 * STEP
    return written


# --- a large fleet with everything that can be exported

LARGE = 200


def large_fleet(at: float) -> Fleet:
    """Every number known; every tenth engine queues, every twentieth is down, ten models of twenty engines."""
    engines: list[EngineReport] = []
    targets = []
    for number in range(LARGE):
        name, model = f"gpu-{number}:8000", f"model-{number % 10}"
        if number % 20 == 7:
            engines.append(fleets.engine(name, model_name=model, state="down"))
            targets.append(fleets.target(name, "down", restarts=1))
            continue
        make = fleets.slow_engine if number % 10 == 0 else fleets.engine
        counts = {key: value + at for key, value in fleets.COUNTS.items()}
        counts |= {(kind, "itl_p99", severity): value for (kind, _, severity), value in counts.items()}
        engines.append(make(name, model_name=model, objective_counts=counts))
        targets.append(fleets.target(name, scrape_failures={"timeout": 0, "connect": 0}))
    models = tuple(fleets.model({"serving": 19, "down": 1}, model_name=f"model-{n}") for n in range(10))
    return replace(fleets.fleet(tuple(engines), models, tuple(targets)), at=at)


LARGE_MOMENTS = (0, 10, 20, 30)


LARGE_MOMENTS = (0, 10, 20, 30)


def large_page() -> str:
    """One page of it, with an alert that fires."""
    written = Backfill()
    written.add(scraped(exported(large_fleet(0.0), START)), START)
    written.add([alert("gpu-0:8000")], START)
    return text_of(written)


def moved(text: str, moments: Sequence[int] = LARGE_MOMENTS) -> Iterator[str]:
    """The lines of a page at each of these seconds after START; counters grow by one a second."""
    for line in text.splitlines():
        if line.startswith("#"):
            yield f"{line}\n"
            continue
        series, value, _ = line.rsplit(" ", 2)
        step = 1 if "_total{" in series else 0
        first = float(value)
        for at in moments:
            yield f"{series} {first + step * at} {START + at}\n"
