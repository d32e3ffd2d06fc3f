"""The page in a real browser."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from fleets import CAUSE, DOWN, IDLE, NEVER_SEEN, NO_ENGINE, RESTARTED, SERVING, engine, fleet, slow_engine, target
from phasewatch.core.model import Fleet, Remedy

from .conftest import Still

NASTY = """<img src=x onerror="document.title='owned'">"><script>document.title='owned'</script>'&lt;b\\"""


@pytest.fixture
def view(browser: Browser, still: Still) -> Iterator[Callable[..., Page]]:
    """`view(fleet)` shows the page for a fleet; it fails the test where the page complains on its console."""

    contexts: list[BrowserContext] = []

    def open_page(shown: Fleet | None, age: float = 2.0, width: int = 1280, **context: str) -> Page:
        if shown is not None:
            still.show(shown, age)
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **context))  # type: ignore[arg-type]
        page = contexts[-1].new_page()
        page.clock.install()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.complaints = complaints  # type: ignore[attr-defined]
        page.goto(still.url)
        expect(page.locator("#nothing")).not_to_contain_text("Waiting for phasewatch")
        return page

    yield open_page
    for context in contexts:
        context.close()


def later(page: Page, seconds: int = 4) -> Page:
    """The page after it has asked again, without waiting for it."""
    page.clock.run_for(seconds * 1000)
    return page


def complaints(page: Page) -> list[str]:
    return page.complaints  # type: ignore[attr-defined,no-any-return]


def test_an_incident_shows_verdict_confidence_summary_and_what_to_do_first(view: Callable[..., Page]) -> None:
    page = view(SERVING)
    cards = page.locator("article")
    expect(cards).to_have_count(2)
    slow = cards.first
    for text in (
        "queue batch limit", "confidence high", CAUSE.summary, "First: shed load", "demand is above capacity",
        "9.7 s", "(7.5\u201310)", "≤ 10 ms", "> 2.13 h",
        "64 running, 31 waiting, +0.4/s, 2 deferred, expected wait 4.5 s",
        "42 % in use, 120,000 tokens in all",
        "queue 2.8 s · 31 %", "prefill 500 ms · 5.0 %", "decode 5.6 s · 62 %", "front end 100 ms · 2.0 %",
    ):  # fmt: skip
        expect(slow).to_contain_text(text)
    expect(cards.nth(1)).to_contain_text("✓ healthy")
    expect(page.locator("#overview")).to_have_text("2 engines on 2 targets, 1 to look at: queue batch limit")
    expect(page).to_have_title("(1) phasewatch")
    assert complaints(page) == []


def test_the_bar_is_divided_as_the_time_was(view: Callable[..., Page]) -> None:
    bar = view(SERVING).locator("article .bar").first
    widths = bar.evaluate("bar => [...bar.children].map(part => part.getBoundingClientRect().width / bar.clientWidth)")
    assert widths == pytest.approx([0.31, 0.05, 0.62, 0.02], abs=0.02)


@pytest.mark.parametrize(
    ("shown", "texts"),
    [
        (IDLE, ["idle", "Objectives met."]),
        (fleet((engine(state="idle", summary=""),)), ["idle", "No request in this window."]),
        (DOWN, ["✕ down", "connection refused"]),
        (RESTARTED, ["warming up"]),
        (NO_ENGINE, ["no engine metrics", "The server answers, but its /metrics has no engine metrics."]),
        (NEVER_SEEN, ["✕ down", "Three scrapes in a row failed.", "never"]),
        (fleet(targets=(target(state="down", last_error="nobody listens; start it"),)), ["nobody listens; start it"]),
        (fleet(), ["No targets are configured."]),
        (None, ["The first round of scrapes is running"]),
    ],
    ids=["idle", "idle-silent", "down", "restarted", "no-engine", "never-seen", "error", "no-targets", "first-round"],
)  # fmt: skip
def test_a_state_without_numbers_says_why(view: Callable[..., Page], shown: Fleet | None, texts: list[str]) -> None:
    page = view(shown)
    for text in texts:
        expect(page.locator("main")).to_contain_text(text)
    assert complaints(page) == []


def test_names_and_errors_from_outside_stay_text(view: Callable[..., Page]) -> None:
    remedies = (Remedy(NASTY, NASTY, "now", NASTY),)
    cause = replace(CAUSE, summary=NASTY, remedies=remedies, evidence={NASTY: NASTY}, refuted_by=NASTY)
    nasty = slow_engine(NASTY)
    key = nasty.key._replace(model_name=NASTY, engine=NASTY)
    nasty = replace(nasty, key=key, causes=(cause,), summary=NASTY, missing=(NASTY,))
    page = view(
        fleet(
            (nasty,),
            tuple(replace(m, model_name=NASTY) for m in SERVING.models),
            (target(NASTY, last_error=NASTY, url=NASTY),),
        )
    )
    expect(page.locator("h3")).to_have_text(NASTY)
    expect(page.locator(".first b")).to_have_text(f"First: {NASTY}")
    expect(page.locator("article .error")).to_have_text(NASTY)
    expect(page.locator("#targets th.text")).to_contain_text(NASTY)
    assert page.locator("img, main script").count() == 0
    expect(page).to_have_title("(1) phasewatch")
    assert complaints(page) == []


def test_it_refreshes_itself_and_keeps_open_what_was_opened(view: Callable[..., Page], still: Still) -> None:
    page = view(SERVING)
    page.locator("article summary").click()
    expect(page.locator("article details")).to_have_attribute("open", "")
    worse = replace(slow_engine(), summary="Requests now wait 7 s.", causes=(replace(CAUSE, score=0.9),))
    still.show(replace(SERVING, at=130.0, engines=(worse, SERVING.engines[1])))
    expect(later(page).locator("article").first).to_contain_text("Requests now wait 7 s.")
    expect(page.locator("article details")).to_have_attribute("open", "")
    still.show(replace(SERVING, at=140.0, engines=(engine(),), targets=(target(),)))
    expect(later(page).locator("article")).to_have_count(1)
    expect(page.locator("#overview")).to_have_text("1 engine on 1 target, no problems")
    expect(page).to_have_title("phasewatch")


def test_old_numbers_are_called_old(view: Callable[..., Page]) -> None:
    page = view(SERVING, age=300)
    expect(page.locator("#alarm")).to_contain_text("its last evaluation is 30")
    expect(page.locator("main")).to_have_class("old")
    expect(view(SERVING, age=20).locator("#alarm")).to_be_hidden()


def test_a_server_that_has_gone_is_said_and_its_numbers_are_greyed(view: Callable[..., Page]) -> None:
    page = view(SERVING)
    page.route("**/api/v1/fleet", lambda route: route.abort())
    alarm = later(page).locator("#alarm")
    expect(alarm).to_contain_text("phasewatch does not answer (no connection). The numbers below are")
    expect(page.locator("main")).to_have_class("old")
    page.unroute("**/api/v1/fleet")
    page.route("**/api/v1/fleet", lambda route: route.fulfill(status=502, body="<html>"))
    later(page)
    expect(alarm).to_contain_text("(status 502)")
    page.unroute("**/api/v1/fleet")
    later(page)
    expect(alarm).to_be_hidden()
    expect(page.locator("main")).not_to_have_class("old")


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_and_can_be_read(view: Callable[..., Page], width: int, scheme: str) -> None:
    page = view(SERVING, width=width, color_scheme=scheme)
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    low = page.evaluate(CONTRAST)
    assert low == [], "text below 4.5 : 1 of contrast"


# WCAG 2's contrast of every text against the nearest background that is not transparent.
CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.tagName === "NOSCRIPT" || !element.checkVisibility()) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push([element.textContent, behind(element)]);
  }
  return low;
}"""
