"""Views in notebooks: the answer first, all escaped, no scripts, whole without styles."""

import base64
import dataclasses
import html.parser
import re

import pytest

import jaxresid
from fixtures.inspect import block
from jaxresid.render.notebook.parts import folded
from tests.render.svg.test_svg import EVIL, renamed
from tests.serialization.test_frames import COMPARISON, REPORT, SHOWN

ALLOWED = set(
    "div p b br img details summary table thead tbody tr th td pre span".split()
)  # what GitHub and JupyterLab leave


class Page(html.parser.HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.parametrize("value", SHOWN, ids=lambda v: type(v).__name__)
def test_a_view_is_whole_without_styles_and_scripts(value):
    page = Page(value._repr_html_())
    assert page.open == []
    assert set(page.tags) <= ALLOWED
    assert {name for name, _ in page.attributes} <= {"class", "style", "alt", "src", "open"}
    assert all(v.startswith("data:image/svg+xml;base64,") for k, v in page.attributes if k == "src")
    assert page.tags[:3] == ["div", "p", "b"]  # the answer is first
    assert "details" in page.tags


@pytest.mark.parametrize("value", SHOWN, ids=lambda v: type(v).__name__)
def test_a_view_begins_as_its_text_does(value):
    first = Page(value._repr_html_()).words[0]
    if type(value).__name__ == "ResidualGroups":
        assert "in all of" in first
    else:
        from jaxresid.results.display import to_text

        assert first == to_text(value, 140).splitlines()[0].strip()


def test_a_picture_says_what_it_shows():
    page = Page(REPORT._repr_html_())
    alts = [value for name, value in page.attributes if name == "alt"]
    assert "bytes live over the program" in alts[0]
    assert "Live at the peak" in alts[0]
    assert "kept for the backward pass" in alts[1]
    assert "memory against compute" in COMPARISON._repr_html_()


@pytest.mark.parametrize("value", SHOWN, ids=lambda v: type(v).__name__)
def test_names_stay_text(value):
    if not hasattr(value, "target"):
        pytest.skip("it names no target")
    if isinstance(value.target, str):
        evil = dataclasses.replace(value, target=EVIL)
    else:
        evil = renamed(value)
    page = Page(evil._repr_html_())
    assert set(page.tags) <= ALLOWED
    assert "onerror" not in {name for name, _ in page.attributes}
    assert not re.search("[\x1b\u202e]", evil._repr_html_())


def test_a_report_with_lifetimes_is_stacked():
    def timeline(lifetimes):
        report = jaxresid.inspect(block.plain, on="gpu:h100", lifetimes=lifetimes)
        page = Page(report(*block.example_inputs())._repr_html_())
        source = next(value for name, value in page.attributes if name == "src")
        return base64.b64decode(source.partition(",")[2]).decode()

    assert '<path class="band residual"' in timeline(True)
    assert '<path class="band all"' in timeline(False)


def test_a_comparison_without_figures_has_no_picture():
    rows = tuple(dataclasses.replace(row, recompute_fraction=None) for row in COMPARISON.rows)
    assert "<img" not in dataclasses.replace(COMPARISON, rows=rows)._repr_html_()


def test_a_summary_is_text():
    assert "<b>" not in folded("<b>", "x")
    assert folded("<b>") == ""


def test_a_page_of_jupyter_gets_one_output(capsys, monkeypatch):
    """Rich puts what is printed into the page by itself where it sees Jupyter."""
    import rich.console

    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    shown = []
    monkeypatch.setattr("rich.jupyter.display", lambda *args: shown.append(args))
    for value in SHOWN:
        value._repr_html_()
    assert shown == []
    assert capsys.readouterr().out == ""
