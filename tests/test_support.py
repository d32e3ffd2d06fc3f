"""The helpers themselves: what other tests stand on must do what it says."""

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import pytest
import requests

from support import Alertmanager, HttpServer, Prometheus, Reply, wait_until

SCRAPE = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: page
    static_configs: [{{targets: ["{}"]}}]
"""


def test_a_real_prometheus_scrapes_a_served_page_and_takes_a_new_configuration(
    prometheus_server: Callable[..., Prometheus], http_server: Callable[..., HttpServer]
) -> None:
    page = http_server({"/metrics": b"temperature_celsius 21.5\n"})
    prometheus = prometheus_server("scrape_configs: []\n")
    assert prometheus.query("temperature_celsius") == []
    prometheus.reload(SCRAPE.format(page.url.removeprefix("http://")))
    [(labels, value)] = wait_until(lambda: prometheus.query("temperature_celsius"), "the page is scraped")
    assert (labels["job"], value) == ("page", 21.5)
    with pytest.raises(AssertionError, match="reload"):
        prometheus.reload("no_such_key: 1\n")


def test_history_is_there_before_the_first_scrape(prometheus_server: Callable[..., Prometheus]) -> None:
    start = int(time.time()) - 7200
    samples = "".join(f"orders_total {10 * i} {start + 15 * i}\n" for i in range(100))
    prometheus = prometheus_server(
        "scrape_configs: []\n",
        openmetrics=f"# TYPE orders counter\n{samples}# EOF\n",
        files={"rules/none.yml": "groups: []\n"},
    )
    [(_, rate)] = prometheus.query("rate(orders_total[5m])", at=start + 900)
    assert rate == pytest.approx(10 / 15)
    assert prometheus.query("1 + 1") == [({}, 2.0)]


def test_a_broken_configuration_fails_with_the_servers_own_words(prometheus_server: Callable[..., Prometheus]) -> None:
    with pytest.raises(AssertionError, match="no_such_key"):
        prometheus_server("no_such_key: 1\n")


def test_a_stopped_server_is_gone_and_may_be_stopped_again(prometheus_server: Callable[..., Prometheus]) -> None:
    prometheus = prometheus_server("scrape_configs: []\n")
    prometheus.stop()
    prometheus.stop()
    assert prometheus.process.returncode == 0
    with pytest.raises(requests.ConnectionError):
        prometheus.query("1")


def test_a_real_alertmanager_sends_an_alert_to_a_served_webhook(
    alertmanager_server: Callable[..., Alertmanager], http_server: Callable[..., HttpServer]
) -> None:
    hook = http_server({"/hook": b""})
    alertmanager = alertmanager_server(
        f"""
route: {{receiver: hook, group_wait: 0s}}
receivers:
  - name: hook
    webhook_configs: [{{url: "{hook.url}/hook"}}]
"""
    )
    alertmanager.post_alerts([{"labels": {"alertname": "Slow"}, "annotations": {"summary": "it is slow"}}])
    wait_until(lambda: hook.requests, "the webhook is called")
    assert hook.requests[0].method == "POST"
    assert hook.requests[0].json()["alerts"][0]["labels"]["alertname"] == "Slow"
    assert [alert["labels"]["alertname"] for alert in alertmanager.alerts()] == ["Slow"]


def test_the_http_server_answers_what_it_was_given_and_remembers_who_asked(
    http_server: Callable[..., HttpServer], free_port: int
) -> None:
    def stutter(request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        request.wfile.write(b"HTTP/1.1 200 OK\r\n\r\nhalf a pa")

    server = http_server(
        {"/": b"hello", "/no": Reply(b"who?", 401, {"WWW-Authenticate": "Basic"}), "/half": stutter}, port=free_port
    )
    assert server.url == f"http://127.0.0.1:{free_port}"
    with requests.Session() as session:
        assert session.get(server.url + "/?q=1", timeout=5).content == b"hello"
        denied = session.get(server.url + "/no", headers={"X-Asker": "me"}, timeout=5)
        assert (denied.status_code, denied.headers["WWW-Authenticate"], denied.content) == (401, "Basic", b"who?")
        assert session.head(server.url + "/", timeout=5).headers["Content-Length"] == "5"
        assert session.get(server.url + "/other", timeout=5).status_code == 404
        server.routes["/other"] = b"now"
        assert session.get(server.url + "/other", timeout=5).content == b"now"
        assert server.connections == 1
        assert session.get(server.url + "/half", timeout=5).content == b"half a pa"
    assert [request.path for request in server.requests] == ["/?q=1", "/no", "/", "/other", "/other", "/half"]
    assert server.requests[1].headers["X-Asker"] == "me"


def test_a_hanging_route_ends_with_its_server(http_server: Callable[..., HttpServer]) -> None:
    entered = threading.Event()

    def hang(_: BaseHTTPRequestHandler) -> None:
        entered.set()
        server.stopping.wait()

    server = http_server({"/hang": hang})
    failures: list[Exception] = []

    def ask() -> None:
        try:
            requests.get(server.url + "/hang", timeout=30)
        except requests.RequestException as error:
            failures.append(error)

    client = threading.Thread(target=ask)
    client.start()
    assert entered.wait(10)
    server.stop()
    client.join(10)
    assert [type(error) for error in failures] == [requests.ConnectionError]
    with pytest.raises(requests.ConnectionError):
        requests.get(server.url, timeout=5)


@pytest.mark.xdist_group("one-worker")
def test_a_group_of_tests_stays_with_one_worker(request: pytest.FixtureRequest) -> None:
    """By its mark at the end of the test's id; without it each worker sets the dear fixtures up for itself."""
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.endswith("@one-worker")
