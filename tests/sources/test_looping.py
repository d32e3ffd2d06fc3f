"""A recording served again and again must never look like a restarted server."""

import re
from itertools import pairwise

import pytest

from phasewatch.sources.looping import Loop
from support import real_pages

FIRST = """\
# HELP vllm:x_total A counter with "# TYPE" in its help.
# TYPE vllm:x_total counter
vllm:x_total{name="a } 1 b",engine="0"} 10.0
# TYPE vllm:x_created gauge
vllm:x_created{engine="0"} 1.7e+09
# TYPE vllm:running gauge
vllm:running 3.0
# TYPE http_requests_total counter
http_requests_total{handler="/metrics"} 1.0
# TYPE vllm:h histogram
vllm:h_bucket{le="1.0"} 4.0
vllm:h_bucket{le="+Inf"} 5.0
vllm:h_count 5.0
vllm:h_sum 7.5
# TYPE plain untyped
plain 5
"""
LAST = (
    FIRST.replace("} 10.0", "} 25.0")
    .replace("running 3.0", "running 8.0")
    .replace('"/metrics"} 1.0\n', '"/metrics"} 2.0\nhttp_requests_total{handler="/v1/completions"} 6.0\n')
    .replace('le="1.0"} 4.0', 'le="1.0"} 6.0')
    .replace("5.0\nvllm:h_count 5.0\nvllm:h_sum 7.5", "9.0\nvllm:h_count 9.0\nvllm:h_sum 11.5")
)


def values(text: str) -> dict[str, float]:
    return {m[1]: float(m[2]) for m in re.finditer(r"^([^#\s].*)[ ](\S+)$", text, re.MULTILINE)}


def test_the_first_round_is_served_byte_for_byte():
    loop = Loop([FIRST, LAST], period=2.0)
    assert loop.page(FIRST, 0, 0) == FIRST
    assert loop.page(LAST, 1, 0) == LAST


def test_a_round_begins_with_the_counters_the_round_before_ended_with():
    loop = Loop([FIRST, LAST], period=2.0)
    again = values(loop.page(FIRST, 0, 1))
    ended = values(LAST)
    counted = {series for series in ended if series not in ("vllm:running", "plain")}
    assert {s: again[s] for s in counted} == {s: ended[s] for s in counted}
    assert values(loop.page(FIRST, 0, 2)) == values(loop.page(LAST, 1, 1)) | {"vllm:running": 3.0}


def test_gauges_creation_times_and_untyped_samples_are_left_alone():
    again = Loop([FIRST, LAST], period=2.0).page(FIRST, 0, 1)
    for line in ('vllm:x_created{engine="0"} 1.7e+09\n', "vllm:running 3.0\n", "plain 5\n"):
        assert line in again


def test_a_series_made_at_its_first_event_stays_in_later_rounds_inside_its_family():
    again = Loop([FIRST, LAST], period=2.0).page(FIRST, 0, 1)
    assert (
        'http_requests_total{handler="/metrics"} 2.0\nhttp_requests_total{handler="/v1/completions"} 6.0\n# TYPE'
        in again
    )


def test_openmetrics_names_counters_without_total_in_their_type_line():
    first = '# TYPE x counter\nx_total{a="b"} 1 # {trace="t"} 0.5\nx_created{a="b"} 1.7e9\n# EOF\n'
    last = first.replace("} 1 #", "} 4 #")
    assert Loop([first, last], 1.0).page(first, 0, 1) == first.replace("} 1 #", "} 4.0 #")


def test_a_restart_inside_the_recording_is_one_again_with_a_later_start_each_round():
    started = (
        "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {}\n# TYPE n_total counter\nn_total {}\n"
    )
    pages = [started.format(100.0, 50), started.format(100.0, 60), started.format(140.0, 2), started.format(140.0, 9)]
    loop = Loop(pages, period=200.0)
    served = [values(loop.page(page, i, cycle)) for cycle in range(3) for i, page in enumerate(pages)]
    assert [v["n_total"] for v in served] == [50, 60, 2, 9, 9, 19, 2, 9, 9, 19, 2, 9]
    assert [v["process_start_time_seconds"] for v in served] == [100] * 2 + [140] * 4 + [340] * 4 + [540] * 2


@pytest.mark.parametrize("name", ["healthy", "burst", "two-engines", "two-frontends"])
def test_no_count_of_a_real_recording_ever_falls_over_three_rounds(name):
    pages = list(real_pages(name).values())[::10]
    loop = Loop(pages, period=100.0)
    served = [values(loop.page(page, i, cycle)) for cycle in range(3) for i, page in enumerate(pages)]
    counted = [s for s in served[0] if re.search(r"_(total|count|bucket)(\{|$)", s)]
    assert len(counted) > 100
    for before, after in pairwise(served):
        assert [s for s in counted if after[s] < before[s]] == []
