import gzip
from dataclasses import replace

import pytest
import requests
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fleets import IDLE, SERVING, STATES, engine, fleet
from phasewatch.core.report.document import document

from .conftest import Still

CLASSIC = "text/plain; version=0.0.4"
TEXT_1 = "text/plain;version=1.0.0;escaping=allow-utf-8"
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def get(still: Still, path: str, **headers: str) -> requests.Response:
    return requests.get(still.url + path, headers=headers, timeout=10, allow_redirects=False)


@pytest.mark.parametrize("state", STATES)
def test_metrics_speak_the_format_that_was_asked_for(still: Still, state: str) -> None:
    still.show(STATES[state])
    classic, text, openmetrics = (get(still, "/metrics", Accept=accept) for accept in (CLASSIC, TEXT_1, OPENMETRICS))
    assert [answer.status_code for answer in (classic, text, openmetrics)] == [200, 200, 200], "no redirect either"
    assert classic.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert text.headers["Content-Type"].startswith("text/plain; version=1.0.0")
    assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.text.endswith("# EOF\n")
    pages = [
        {(s.name, *sorted(s.labels.items())): s.value for family in parse(page.text) for s in family.samples}
        for parse, page in ((parse_text, classic), (parse_text, text), (parse_openmetrics, openmetrics))
    ]
    assert pages[0] == pages[1] == pages[2]
    assert not any(name[0].startswith(("python_", "process_")) for name in pages[0]), "its own registry only"


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/html", "text/plain;version=abc", "application/openmetrics-text;version=x.y", "¥"]
)
def test_a_strange_accept_header_still_gets_a_page(still: Still, accept: str) -> None:
    still.show(SERVING)
    answer = requests.get(still.url + "/metrics", headers={"Accept": accept.encode()}, timeout=10)
    assert answer.status_code == 200
    assert "phasewatch_engine_state" in answer.text


def test_a_page_is_rendered_once_a_round_and_made_up_types_take_no_memory(still: Still) -> None:
    still.show(SERVING)
    round_ = still.round
    assert round_.metrics(CLASSIC)[0] is round_.metrics(CLASSIC)[0]
    for number in range(50):
        round_.metrics(f"application/openmetrics-text;version={number + 2}.0.0")
    assert len(round_._pages) <= 8


def test_pages_are_compressed_when_asked(still: Still) -> None:
    still.show(SERVING)
    plain = requests.get(still.url + "/metrics", headers={"Accept-Encoding": "identity"}, timeout=10)
    assert "Content-Encoding" not in plain.headers
    zipped = requests.get(still.url + "/metrics", headers={"Accept-Encoding": "gzip"}, timeout=10, stream=True)
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(zipped.raw.read(decode_content=False)) == plain.content


def test_the_fleet_is_the_document_in_unix_time(still: Still) -> None:
    still.show(SERVING)
    answer = get(still, "/api/v1/fleet")
    assert answer.json() == document(SERVING, wall_offset=still.round.wall_offset)
    assert answer.headers["Phasewatch-Interval-Seconds"] == "10"


def test_before_the_first_round_the_lists_are_empty_and_it_is_not_ready(still: Still) -> None:
    nothing = get(still, "/api/v1/fleet").json()
    assert (nothing["at"], nothing["engines"], nothing["models"], nothing["targets"]) == (None, [], [], [])
    assert get(still, "/-/ready").status_code == 503
    assert get(still, "/-/healthy").status_code == 200
    assert "phasewatch_build_info" in get(still, "/metrics").text
    still.show(IDLE)
    assert get(still, "/-/ready").status_code == 200
    still.why = "phasewatch has had no successful evaluation for 40 s."
    unready = get(still, "/-/ready")
    assert (unready.status_code, unready.text) == (503, "phasewatch has had no successful evaluation for 40 s.\n")
    assert get(still, "/-/healthy").status_code == 200


def test_engines_are_filtered_by_any_of_their_three_names(still: Still) -> None:
    other = engine("gpu-3:8000", model_name='org/b "q"&x=1')
    still.show(replace(SERVING, engines=(*SERVING.engines, other)))

    def targets(**query: str) -> list[str]:
        answer = requests.get(still.url + "/api/v1/engines", params=query, timeout=10)
        return [found["target"] for found in answer.json()["engines"]]

    assert targets() == ["gpu-1:8000", "gpu-2:8000", "gpu-3:8000"]
    assert targets(target="gpu-2:8000") == ["gpu-2:8000"]
    assert targets(model_name='org/b "q"&x=1') == ["gpu-3:8000"]
    assert targets(engine="0", target="gpu-1:8000", model_name=other.key.model_name) == []
    assert targets(engine="1") == []


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/api/v1/engines?modle_name=x", 400, "unknown parameter 'modle_name'; did you mean \"model_name\"?"),
        ("/api/v1/fleet?pretty=1", 400, "unknown parameter 'pretty'; remove it"),
        ("/nothing", 404, "Not Found"),
        ("/metrics/", 404, "Not Found"),
        ("/static/../app.py", 404, "Not Found"),
        ("/static/%2e%2e/app.py", 404, "Not Found"),
        ("/docs", 404, "Not Found"),
    ],
)
def test_an_error_is_json_with_one_line(still: Still, path: str, status: int, error: str) -> None:
    answer = get(still, path)
    assert (answer.status_code, answer.json()) == (status, {"error": error})
    assert requests.post(still.url + "/metrics", timeout=10).json() == {"error": "Method Not Allowed"}


def test_a_mistake_of_ours_is_json_too_and_costs_one_answer(still: Still, caplog: pytest.LogCaptureFixture) -> None:
    still.show(fleet())
    still.round.fleet = 3  # type: ignore[assignment]
    answer = get(still, "/metrics")
    assert (answer.status_code, list(answer.json())) == (500, ["error"])
    assert get(still, "/-/healthy").status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/fleet", "/api/v1/vocabulary", "/static/page.js"]
)
def test_head_is_get_without_the_body(still: Still, path: str) -> None:
    still.show(SERVING)
    head = requests.head(still.url + path, timeout=10)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Type"] == get(still, path).headers["Content-Type"]


def test_every_answer_forbids_scripts_from_elsewhere(still: Still) -> None:
    for path in ("/", "/metrics", "/static/page.js", "/nothing"):
        headers = get(still, path).headers
        assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
    page = get(still, "/").text
    assert "://" not in page, "it works without internet"
