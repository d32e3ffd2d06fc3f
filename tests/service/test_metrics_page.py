"""The page is what prometheus_client's own encoders would have written, to the byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

import fleets
from exported import Exported
from fleets import SERVING, STATES, WALL_OFFSET, engine, fleet, target
from phasewatch.core.model import Fleet
from phasewatch.core.settings import Settings
from phasewatch.service.round import Round


def page(shown: Fleet | None, accept: str = "") -> bytes:
    return Round(shown, Settings(), "1.2.3", WALL_OFFSET).metrics(accept)[0]


def same(shown: Fleet | None) -> bool:
    """In both formats."""
    collector = Exported(shown)
    return page(shown) == exposition.generate_latest(collector) and page(
        shown, "application/openmetrics-text;version=1.0.0"
    ) == generate_openmetrics(collector)


@pytest.mark.parametrize("name", STATES)
def test_the_page_is_the_same_in_every_state(name: str) -> None:
    assert same(STATES[name])


def test_the_page_is_the_same_before_the_first_evaluation() -> None:
    assert same(None)


@given(st.text(), st.text(), st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True))
def test_the_page_is_the_same_whatever_labels_hold(model_name: str, value: str, name: str) -> None:
    engines = (engine(model_name=model_name),)
    models = (fleets.model({"serving": 1}, model_name=model_name),)
    assert same(fleet(engines, models, (target(labels={name: value, "percent": "100%s %"}),)))


@pytest.mark.parametrize("escaping", ["allow-utf-8", "underscores", "dots", "values"])
def test_every_escaping_that_can_be_asked_for_is_answered_as_asked(escaping: str) -> None:
    accept = f"text/plain;version=1.0.0;escaping={escaping}"
    encode, _ = exposition.choose_encoder(accept)
    assert page(SERVING, accept) == encode(Exported(SERVING))
