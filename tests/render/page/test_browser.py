"""The page in Chromium: from a file, offline, by mouse and keyboard."""

import json
import re
from dataclasses import replace

import pytest

from jaxresid.render.page.html import page
from jaxresid.results import Location
from tests.render.page.programs import HOSTILE, chromium, comparison, lifetimes, report

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def browser():
    sync_api, executable = chromium()
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield found
        found.close()


class Shown:
    """A page that is shown, with what it asked for and complained of."""

    def __init__(self, browser, html, path, fragment="", **options):
        path.write_text(html)
        self.errors, self.requests = [], []
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, offline=True, **options
        )
        self.page = context.new_page()
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"file://{path}{fragment}")
        self.page.wait_for_selector("html[data-ready]", timeout=20_000)

    def text(self, selector="main"):
        return self.page.inner_text(selector)

    def sums(self, selector):
        return self.page.eval_on_selector_all(
            selector, "nodes => nodes.map(node => Number(node.dataset.nbytes))"
        )

    @property
    def state(self):
        return dict(re.findall(r"(\w+)=([^&]*)", self.page.evaluate("location.hash")))


@pytest.fixture
def show(browser, tmp_path):
    shown = []

    def shower(html, fragment="", **options):
        shown.append(Shown(browser, html, tmp_path / "page.html", fragment, **options))
        return shown[-1]

    yield shower
    for each in shown:
        assert each.errors == []
        assert [url for url in each.requests if not url.startswith("file://")] == []
        each.page.context.close()


@pytest.fixture(scope="module")
def html():
    return page(report())


def test_it_says_first_whether_it_fits_and_what_the_peak_is_made_of(show, html):
    shown = show(html)
    assert "fits" in shown.text(".lead")
    assert "At the peak" in shown.text(".moment h2")
    peak = report().peak
    kinds = dict(peak.breakdown)
    assert shown.sums(".moment tr[data-kind]") == sorted(kinds.values(), reverse=True)
    assert sum(shown.sums(".moment tr[data-kind]")) == peak.nbytes
    listed = shown.sums(".moment tr[data-nbytes]:not([data-kind])")
    assert sum(listed) == peak.nbytes


def test_the_command_to_run_next_is_shown_whole(show):
    """And a loss of ours has no line."""
    found = report()
    assert found.next_step is not None
    message = "one reason after another " * 8
    step = replace(
        found.next_step, action="plan", message=message, words=("x.py:f", "--arg=f32[8]" * 9)
    )
    of_loss = Location("<--loss cross-entropy>", 49, "log_probabilities", "loss")
    shown = show(page(replace(found, next_step=step)))
    assert shown.text(".lead").rstrip().endswith("f32[8]'")
    (run,) = found.lifetimes[:1]
    points = tuple(replace(p, source=replace(p.source, location=of_loss)) for p in run.points)
    shown = show(page(replace(found, lifetimes=(replace(run, points=points),))))
    assert "the loss (--loss cross-entropy) ·" in shown.text(".moment")


def test_a_moment_is_chosen_by_keys_and_by_mouse(show, html):
    shown = show(html)
    shown.page.focus("canvas.chart")
    shown.page.keyboard.press("Home")
    points = report().lifetimes[0].points
    assert shown.state["at"] == "0"
    assert sum(shown.sums(".moment tr[data-kind]")) == points[0].nbytes
    shown.page.keyboard.press("ArrowRight")
    assert shown.state["at"] == "1"
    shown.page.keyboard.press("End")
    assert sum(shown.sums(".moment tr[data-kind]")) == points[-1].nbytes
    shown.page.keyboard.press("p")
    assert sum(shown.sums(".moment tr[data-kind]")) == report().peak.nbytes
    box = shown.page.locator("canvas.chart").bounding_box()
    shown.page.mouse.click(box["x"] + 90, box["y"] + 200)
    assert int(shown.state["at"]) <= len(points) // 10


def test_hovering_tells_what_a_band_is(show, html):
    shown = show(html)
    box = shown.page.locator("canvas.chart").bounding_box()
    shown.page.mouse.move(box["x"] + 300, box["y"] + 352)
    tip = shown.text(".tip")
    assert re.search(r"(parameters|arguments|outputs)", tip)
    assert "live from op 0 until the end" in tip
    shown.page.mouse.move(box["x"] + 10, box["y"] + 10)
    assert not shown.page.is_visible(".tip")


def test_zooming_shows_a_part_and_the_link_keeps_it(show, html):
    shown = show(html)
    shown.page.focus("canvas.chart")
    shown.page.keyboard.press("+")
    shown.page.wait_for_function("location.hash.includes('from=')")
    wide = float(shown.state["to"]) - float(shown.state["from"])
    count = len(report().lifetimes[0].points)
    assert wide < 0.6 * count
    again = show(html, f"#tab=timeline&from={shown.state['from']}&to={shown.state['to']}&at=2")
    assert float(again.state["from"]) == pytest.approx(float(shown.state["from"]), abs=0.5)
    assert again.state["at"] == "2"
    again.page.keyboard.press("Tab")
    shown.page.keyboard.press("0")
    assert float(shown.state["to"]) - float(shown.state["from"]) == pytest.approx(count, abs=0.1)


def test_a_checkpoint_is_taken_away(show, html):
    shown = show(html)
    shown.page.click("role=tab[name=Checkpoints]")
    (checkpoint,) = report().checkpoints
    assert checkpoint.reason in shown.text()
    assert shown.text("tbody td:nth-child(6)") == "1.50 MiB"
    shown.page.click("tbody button")
    assert shown.state["tab"] == "timeline"
    assert shown.state["program"] == "1"
    assert sum(shown.sums(".moment tr[data-kind]")) == checkpoint.peak_without_nbytes
    shown.page.select_option("#program", "0")
    assert sum(shown.sums(".moment tr[data-kind]")) == checkpoint.peak_nbytes


def test_tabs_by_keyboard(show, html):
    shown = show(html)
    shown.page.focus("role=tab[name=Timeline]")
    names = []
    for _ in range(5):
        shown.page.keyboard.press("ArrowRight")
        names.append(shown.page.evaluate("document.activeElement.textContent"))
    assert names == ["Icicle", "Source", "Checkpoints", "Text", "Timeline"]


@pytest.mark.parametrize(("count", "whole"), [("live", "peak"), ("kept", "kept")])
def test_the_icicle_adds_up(show, html, count, whole):
    shown = show(html, f"#tab=icicle&count={count}")
    expected = {
        "peak": report().peak.nbytes,
        "kept": report().totals.computed_nbytes,
    }[whole]
    assert shown.sums("g[data-depth='0']") == [expected]
    assert sum(shown.sums("g[data-depth='1']")) == pytest.approx(expected, rel=0.01)
    shown.page.locator("g[data-depth='1']").first.focus()
    shown.page.keyboard.press("Enter")
    assert shown.sums("g[data-depth='0']")[0] < expected or count == "kept"
    assert len(shown.text(".crumbs").split("›")) > 1


def test_bytes_beside_the_code(show, html):
    shown = show(html, "#tab=source")
    live = shown.page.eval_on_selector_all(
        "tr.has", "rows => rows.map(r => Number(r.dataset.live))"
    )
    by_line = {}
    for value in report().lifetimes[0].live_at(report().lifetimes[0].at):
        place = value.live.source.location
        if place is not None:
            by_line[place.line] = by_line.get(place.line, 0) + value.live.nbytes
    assert {n for n in live if n} == set(by_line.values())
    assert "x = jax.checkpoint(layer)(w, x)" in shown.text(".listing")
    shown.page.locator("tr.has").first.click()
    assert "values of line" in shown.text(".detail")


def test_policies_and_their_frontier(show):
    shown = show(page(comparison()), "#tab=pareto")
    shown_peaks = shown.page.eval_on_selector_all(
        "g.row", "nodes => nodes.map(node => Number(node.dataset.peak))"
    )
    assert sorted(shown_peaks) == sorted(row.peak_nbytes for row in comparison().rows)
    shown.page.locator("g.row").last.focus()
    assert "recompute" in shown.text(".told")
    shown.page.keyboard.press("Enter")
    assert shown.state["tab"] == "timeline"
    program = comparison().lifetimes[int(shown.state["program"])]
    assert sum(shown.sums(".moment tr[data-kind]")) == program.nbytes


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(show, html, scheme):
    shown = show(html, color_scheme=scheme)

    def paper():
        return shown.page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark, light = "rgb(23, 24, 28)", "rgb(255, 255, 255)"
    first, second = (dark, light) if scheme == "dark" else (light, dark)
    assert paper() == first
    shown.page.click("text=theme")
    assert paper() == second


def test_names_stay_text(show):
    first = report().lifetimes[0]
    place = Location(HOSTILE, 3, 0, HOSTILE, HOSTILE)
    values = [
        replace(
            v, live=replace(v.live, path=HOSTILE, source=replace(v.live.source, location=place))
        )
        for v in first.values
    ]
    changed = replace(first, values=tuple(values), name=HOSTILE)
    target = replace(report().target, name=HOSTILE)
    shown = show(page(replace(report(), target=target, lifetimes=(changed,))))
    for tab in ("Icicle", "Source", "Text", "Timeline"):
        shown.page.click(f"role=tab[name={tab}]")
        assert shown.page.locator("img").count() == 0
    assert "<img src=x" in shown.text(".moment")
    assert shown.page.title() != "broken"


@pytest.mark.parametrize("count", [100, 1000, 10_000])
def test_many_values_are_usable(show, count):
    html = page(replace(report(), lifetimes=(lifetimes(count),)))
    shown = show(html)
    assert sum(shown.sums(".moment tr[data-kind]")) == lifetimes(count).nbytes
    ready = shown.page.evaluate(
        "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    )
    assert ready < 10_000  # two seconds where nothing else runs: tests/benchmarks/page.py
    data = json.loads(re.search(r'id="data">(.*?)</script>', html)[1])
    assert len(data["programs"][0]["values"]["start"]) == count
