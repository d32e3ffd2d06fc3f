"""From vLLM's page to the page that wakes somebody: real processes on loopback, with the shipped rules and routes.

Recorded servers -> phasewatch serve -> Prometheus -> Alertmanager -> webhook and Slack. Only durations and addresses of
the shipped files are changed, so that an incident takes seconds instead of minutes.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

import acts
from acts import Acts, Part
from rulefiles import RULE_FILES
from support import (
    ROOT,
    SUITES,
    Daemon,
    HttpServer,
    Tools,
    free_port,
    real,
    start_alertmanager,
    start_prometheus,
    wait_until,
)

pytestmark = [
    pytest.mark.xdist_group("end-to-end"),
    pytest.mark.parametrize("tools", SUITES[:1], indirect=True),
]
PATIENCE = 120.0  # generous: machines are slow at times, and nothing here is measured
ALERTMANAGER = ROOT / "config" / "alertmanager"
QUEUE, STREAMS, WELL = "model-queue", "model-streams", "model-well"
# phasewatch's windows, and what the rules call them; then every other duration of the rules.
WINDOWS = {"60s": "10s", "5m": "16s"}
RANGES = {"2m": "20s", "5m": "16s", "10m": "60s", "30m": "30m"}
FOR, KEEP = "10s", "8s"


def shorter(text: str, ranges: Mapping[str, str] = RANGES, for_: str = FOR, keep: str = KEEP) -> str:
    """Rules with other durations and windows, and nothing else changed."""
    text = re.sub(r"\[(\d+[smhd])\]", lambda m: f"[{ranges.get(m[1], m[1])}]", text)
    text = re.sub(r"(?m)^( +for:) .+$", rf"\1 {for_}", text)
    text = re.sub(r"(?m)^( +keep_firing_for:) .+$", rf"\1 {keep}", text)
    return re.sub(r'window=(\\?)"(60s|5m)', lambda m: f'window={m[1]}"{WINDOWS[m[2]]}', text)


def restart(daemon: Daemon, folder: Path) -> None:
    """Kills it as the kernel would, and starts it again on the same port and data."""
    daemon.process.kill()
    daemon.process.wait()
    with daemon.log.open("ab") as out:
        daemon.process = subprocess.Popen(
            daemon.process.args, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder
        )
    wait_until(lambda: _answers(f"{daemon.url}/-/ready"), f"{daemon.url} is back", PATIENCE)


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.RequestException:
        return False


@dataclass
class Message:
    """One notification. text: what the template of Slack made of it, where it went there."""

    path: str
    status: str
    labels: dict[str, str]
    targets: set[str]
    body: dict[str, Any]

    @property
    def alert(self) -> str:
        return self.labels["alertname"]


class Stack:
    """phasewatch, Prometheus and Alertmanager watching `servers` (name -> URL), and what they send."""

    def __init__(self, tools: Tools, folder: Path, servers: Mapping[str, str], objectives: Mapping[str, Any]) -> None:
        self.tools, self.folder = tools, folder
        self._end: list[Callable[[], None]] = []
        self.hooks = HttpServer(
            {f"/{name}": b"ok" for name in ("pages", "tickets", "heartbeat", "slack", "pager/v2/enqueue")}
        )
        self._end.append(self.hooks.stop)
        try:
            self.alertmanager = start_alertmanager(tools, folder / "alertmanager", self._routes())
            self._end.append(lambda: self.alertmanager.stop())
            self.port = free_port()
            self._config(servers, objectives)
            self.start_phasewatch()
            self._end.append(self.kill_phasewatch)
            files = {f"rules/{path.name}": shorter(path.read_text()) for path in RULE_FILES}
            arguments = ("--rules.alert.resend-delay=3s",)
            self.prometheus = start_prometheus(
                tools, folder / "prometheus", self._scrapes(), files=files, arguments=arguments
            )
            self._end.append(lambda: self.prometheus.stop())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for end in reversed(self._end):
            end()
        self._end.clear()

    def _config(self, servers: Mapping[str, str], objectives: Mapping[str, Any]) -> None:
        config = {
            "targets": [{"name": name, "url": url} for name, url in servers.items()],
            "scrape": {"interval": "2s"},
            "windows": list(WINDOWS.values()),
            # Shorter in the same measure as the windows: a verdict needs opinions that agree for a sixth of one.
            "thresholds": {"agree_seconds": 2.0},
            "objectives": {"models": dict(objectives)},
        }
        (self.folder / "phasewatch.yml").write_text(yaml.safe_dump(config))

    def start_phasewatch(self) -> None:
        command = [str(Path(sys.executable).with_name("phasewatch")), "serve"]
        command += ["--config.file", str(self.folder / "phasewatch.yml")]
        command += ["--web.listen-address", f"127.0.0.1:{self.port}"]
        with (self.folder / "phasewatch.log").open("ab") as log:
            self.phasewatch = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill_phasewatch(self) -> None:
        self.phasewatch.kill()
        self.phasewatch.wait()

    def _scrapes(self) -> str:
        config = yaml.safe_load((ROOT / "config" / "prometheus" / "prometheus.yml").read_text())
        config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{self.port}"]}]
        address = self.alertmanager.url.removeprefix("http://")
        config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [address]}]}]
        return yaml.safe_dump(config)

    def _routes(self) -> str:
        """The shipped file with its addresses led to us, a webhook beside each receiver, and short times."""
        secrets = self.folder / "secrets"
        secrets.mkdir()
        (secrets / "slack-url").write_text(f"{self.hooks.url}/slack")
        (secrets / "pagerduty-routing-key").write_text("key")
        (secrets / "heartbeat-token").write_text("token")
        text = (ALERTMANAGER / "alertmanager.yml").read_text().replace("/etc/alertmanager/secrets", str(secrets))
        config = yaml.safe_load(text)
        config["global"] = {"pagerduty_url": f"{self.hooks.url}/pager/v2/enqueue"}
        config["templates"] = [str(ALERTMANAGER / "templates" / "*.tmpl")]
        for route in (config["route"], *config["route"]["routes"]):
            heartbeat = route["receiver"] == "heartbeat"
            route |= {"group_wait": "1s", "group_interval": "2s", "repeat_interval": "2s" if heartbeat else "4h"}
        for receiver in config["receivers"]:
            receiver["webhook_configs"] = [{"url": f"{self.hooks.url}/{receiver['name']}", "send_resolved": True}]
        return yaml.safe_dump(config)

    # --- what came

    def messages(self, *paths: str) -> list[Message]:
        found = []
        for request in list(self.hooks.requests):
            path = request.path.strip("/")
            if path in (paths or ("pages", "tickets")):
                body = request.json()
                targets = {a["labels"].get("target", "") for a in body["alerts"] if a["status"] == body["status"]}
                found.append(Message(path, body["status"], body["commonLabels"], targets, body))
        return found

    def page(
        self, alert: str, model: str | None, *, targets: int = 1, status: str = "firing", after: int = 0
    ) -> Message:
        """The first page of that alert and model, after so many messages, that speaks of so many targets."""

        def arrived() -> Message | None:
            return next(
                (
                    m for m in self.messages("pages", "tickets")[after:]
                    if m.path == "pages" and m.status == status and m.alert == alert
                    and m.labels.get("model_name") == model and len(m.targets) >= targets
                ), None,
            )  # fmt: skip

        return wait_until(arrived, f"{status} {alert} {model} has arrived", PATIENCE, every=0.2)

    def slack(self, word: str) -> str:
        """Title and text of the first Slack message whose title has that word."""

        def arrived() -> str:
            bodies = [r.json()["attachments"][0] for r in list(self.hooks.requests) if r.path == "/slack"]
            return next((f"{b['title']}\n{b['text']}" for b in bodies if word in b["title"]), "")

        return wait_until(arrived, f"Slack was told of {word}", PATIENCE, every=0.2)

    def scraped(self, name: str, count: int) -> None:
        wait_until(lambda: len(self.prometheus.query(name)) >= count, f"{count} series {name}", PATIENCE, every=0.2)

    def judged(self, model: str, verdict: str) -> None:
        self.scraped(f'phasewatch_model_diagnosis{{model_name="{model}",verdict="{verdict}"}} == 1', 1)


LIMITS = {
    QUEUE: {"ttft_p99": "1s", "itl_p99": "250ms"},
    STREAMS: {"ttft_p99": "10s", "itl_p99": "250ms", "itl_stall": {"warning": "1s", "critical": "2s"}},
    WELL: {"ttft_p99": "1s", "itl_p99": "250ms"},
}


@dataclass
class Story:
    """What was said in a fleet with two incidents. before: messages by the end of the healthy beginning."""

    before: list[Message]
    queue: Message
    streams: Message
    slack: str
    again: set[str]
    by_recovery: list[Message]
    resolved: list[Message]
    all: list[Message]
    heartbeats: int


def _incidents(tools: Tools, folder: Path) -> Story:
    cast = {"q-0": Acts(QUEUE), "s-0": Acts(STREAMS), "s-1": Acts(STREAMS), "w-0": Acts(WELL)}
    for server in cast.values():
        server.begin(real("healthy"), 20.0, 106.0)
    served = {name: server.serve() for name, server in cast.items()}
    stack = None
    try:
        stack = Stack(tools, folder, {name: f"{one.url}/metrics" for name, one in served.items()}, LIMITS)
        for model in LIMITS:
            stack.judged(model, "healthy")
        before = stack.messages()

        cast["q-0"].begin(real("max-num-seqs"), 10.0)
        for name in ("s-0", "s-1"):
            cast[name].begin(real("interference"), 34.0)
        queue = stack.page("PhasewatchQueueGrowing", QUEUE)
        streams = stack.page("PhasewatchITLStalls", STREAMS, targets=2)
        slack = stack.slack("PhasewatchQueueGrowing")

        # Each is killed in the middle of it, one after the other, and must be whole again before the next.
        seen = len(stack.messages())
        restart(stack.alertmanager, tools.alertmanager_home)
        again = {stack.page("PhasewatchQueueGrowing", QUEUE, after=seen).alert}
        restart(stack.prometheus, folder)
        stack.kill_phasewatch()
        stack.scraped('up{job="phasewatch"} == 0', 1)
        stack.start_phasewatch()
        stack.judged(STREAMS, "decode_interference")
        stack.scraped(f'ALERTS{{alertstate="firing",alertname="PhasewatchQueueGrowing",model_name="{QUEUE}"}}', 1)
        stack.scraped(f'ALERTS{{alertstate="firing",alertname="PhasewatchITLStalls",model_name="{STREAMS}"}}', 2)
        by_recovery = stack.messages()

        for name in ("q-0", "s-0", "s-1"):
            cast[name].begin(real("healthy"), 20.0, 106.0)
        resolved = [
            stack.page("PhasewatchQueueGrowing", QUEUE, status="resolved"),
            stack.page("PhasewatchITLStalls", STREAMS, status="resolved"),
        ]
        return Story(
            before, queue, streams, slack, again, by_recovery, resolved, stack.messages(),
            len(stack.messages("heartbeat")),
        )  # fmt: skip
    finally:
        if stack is not None:
            stack.stop()
        for one in served.values():
            one.stop()


@dataclass
class Quiet:
    """A healthy fleet, until phasewatch is killed for good."""

    healthy: list[Message]
    heartbeats: int
    down: Message
    after: list[Message]


def _quiet(tools: Tools, folder: Path) -> Quiet:
    server = Acts(WELL)
    server.begin(real("healthy"), 20.0, 106.0)
    served = server.serve()
    stack = None
    try:
        stack = Stack(tools, folder, {"w-0": f"{served.url}/metrics"}, LIMITS)
        # Longer than any `for`, and twice the longer window.
        stack.scraped('count_over_time(phasewatch_diagnosis{verdict="healthy"}[2m]) > 30', 1)
        healthy, heartbeats = stack.messages(), len(stack.messages("heartbeat"))
        stack.kill_phasewatch()
        down = stack.page("PhasewatchDown", None)
        return Quiet(healthy, heartbeats, down, stack.messages())
    finally:
        if stack is not None:
            stack.stop()
        served.stop()


@pytest.fixture(scope="module")
def played(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> tuple[Story, Quiet]:
    """Both stories, at the same time: they wait most of it."""
    folders = [tmp_path_factory.mktemp(name) for name in ("incidents", "quiet")]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(play, tools, f) for play, f in zip((_incidents, _quiet), folders, strict=True)]
        return runs[0].result(), runs[1].result()


def _text(message: Message) -> str:
    return str(message.body["alerts"][0]["annotations"]["description"])


def test_a_queue_incident_is_one_page_that_names_verdict_numbers_remedy_and_runbook(
    played: tuple[Story, Quiet],
) -> None:
    page = played[0].queue
    assert page.labels["severity"] == "critical"
    assert page.body["groupLabels"] == {"alertname": "PhasewatchQueueGrowing", "model_name": QUEUE}
    text = _text(page)
    assert re.search(
        r"Engine 0 on q-0 \(model-queue\): expected wait \d\S* and rising; critical limit of TTFT 1s\.", text
    )
    assert re.search(r"\d+ requests waiting\. 2 running\.", text)
    assert re.search(r"Cause: queue_batch_limit for \d\S*% of the last 10 minutes\.", text)
    assert re.search(r"First: shed load.* \(now\)\.", text)
    assert "Read on: config/runbooks/verdicts/queue_batch_limit.md" in text
    annotations = page.body["commonAnnotations"]
    assert (ROOT / annotations["runbook_url"]).name == "PhasewatchQueueGrowing.md"


def test_slack_says_the_same_through_the_shipped_template(played: tuple[Story, Quiet]) -> None:
    title, _, text = played[0].slack.partition("\n")
    assert re.match(r"\[(WARNING|CRITICAL)\] PhasewatchQueueGrowing model-queue", title)  # it grows past 10 waiting
    assert "Cause: queue_batch_limit" in text
    assert "Runbook: config/runbooks/alerts/PhasewatchQueueGrowing.md" in text


def test_stalls_on_two_replicas_are_one_page_with_both(played: tuple[Story, Quiet]) -> None:
    page = played[0].streams
    assert page.targets == {"s-0", "s-1"}
    text = _text(page)
    assert re.search(r"Cause: decode_interference for \d\S*% of the last 10 minutes\.", text)
    assert "First: " in text
    assert "verdicts/decode_interference.md" in text
    assert re.search(r"Prefill takes \d\S*% of the engine time\.", text)
    groups = {m.body["groupKey"] for m in played[0].all if m.alert == page.alert and m.path == "pages"}
    assert len(groups) == 1


def test_both_resolve_after_recovery_and_not_before(played: tuple[Story, Quiet]) -> None:
    story = played[0]
    assert [one.status for one in story.resolved] == ["resolved", "resolved"]
    early = [m.alert for m in story.by_recovery if m.status == "resolved" and m.path == "pages"]
    assert early == [], "a restart of one part ended a page in the middle of the incident"


def test_killing_each_part_in_the_middle_loses_no_page_and_sends_no_wrong_one(played: tuple[Story, Quiet]) -> None:
    story = played[0]
    assert story.again == {"PhasewatchQueueGrowing"}, "an Alertmanager that forgot is told again"
    areas = {QUEUE: {"ttft"}, STREAMS: {"itl"}}
    wrong = [
        (m.alert, one["labels"])
        for m in story.all
        for one in m.body["alerts"]
        if one["labels"]["area"] not in areas.get(one["labels"].get("model_name", ""), set())
    ]
    assert wrong == []


def test_nothing_but_the_heartbeat_arrives_in_a_healthy_run(played: tuple[Story, Quiet]) -> None:
    story, quiet = played
    assert [m.alert for m in (*story.before, *quiet.healthy)] == []
    assert quiet.heartbeats >= 5


def test_phasewatch_killed_for_good_pages_as_down_and_as_nothing_else(played: tuple[Story, Quiet]) -> None:
    quiet = played[1]
    assert {m.alert for m in quiet.after} == {"PhasewatchDown"}
    assert "No phasewatch has been scraped" in _text(quiet.down)
    assert quiet.down.body["commonAnnotations"]["runbook_url"] == "config/runbooks/alerts/PhasewatchDown.md"


# --- a minute later

STALL_LIMITS = ["ttft_p99=10s", "itl_p99=250ms", "itl_stall=1s"]


@pytest.mark.parametrize(
    ("recording", "objectives", "alert", "cause"),
    [
        ("max-num-seqs", ["ttft_p99=1s"], "PhasewatchTTFTHigh", "queue_batch_limit"),
        ("interference", STALL_LIMITS, "PhasewatchITLStalls", "decode_interference"),
    ],
)
def test_a_page_rendered_a_minute_after_the_incident_ended_still_names_its_cause(
    tools: Tools, tmp_path: Path, recording: str, objectives: list[str], alert: str, cause: str
) -> None:
    """The shipped rules with nothing but `for` changed, over a history whose incident ended a minute ago."""
    folder = tmp_path / "recording" / "vllm-0"
    folder.mkdir(parents=True)
    well = real("healthy"), 20.0, 106.0
    parts = [Part(*well, 30.0), Part(real(recording), 20.0, 106.0, 86.0), Part(*well, 150.0)]
    _, ended, over = acts.write(folder, "m", parts)
    assert over - ended > 60 + 60, "the verdict's window has passed, and a minute more"
    phasewatch = str(Path(sys.executable).with_name("phasewatch"))
    now = time.time()
    command = [phasewatch, "replay", str(folder.parent), "--format", "openmetrics", f"--unix-start={now - over}"]
    ran = subprocess.run(
        [*command, *(part for one in objectives for part in ("--objective", one))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    files = {f"rules/{path.name}": re.sub(r"(?m)^( +for:) .+$", r"\1 0s", path.read_text()) for path in RULE_FILES}
    config = yaml.safe_dump({"global": {"evaluation_interval": "1s"}, "rule_files": ["rules/*.yml"]})
    server = start_prometheus(tools, tmp_path / "prometheus", config, files=files, openmetrics=ran.stdout)
    try:

        def firing() -> list[dict[str, Any]]:
            alerts = server.get("/api/v1/alerts")["data"]["alerts"]
            return [a for a in alerts if a["labels"]["alertname"] == alert]

        one, *_ = wait_until(firing, f"{alert} fires", PATIENCE)
        last = f'last_over_time(phasewatch_diagnosis{{verdict="{cause}"}}[2m])'
        assert [value for _, value in server.query(last)] == [0.0], "the verdict itself is gone by now"
        text = one["annotations"]["description"]
        assert re.search(rf"Cause: {cause} for \d\S*% of the last 10 minutes\.", text), text
        assert "First: " in text
        assert f"verdicts/{cause}.md" in text
    finally:
        server.stop()
