"""`-f svg`, by the suffix too, and what it refuses."""

import xml.etree.ElementTree as ET

import pytest

REPORT = ("report", "fixtures/inspect/block.py:plain", "--on", "gpu:h100", "-q")


@pytest.mark.parametrize("view", [(), ("--view", "timeline"), ("--view", "icicle")])
def test_report(call, tmp_path, view):
    code, out, err = call(*REPORT, *view, "-f", "svg")
    assert (code, err) == (0, "")
    title = ET.fromstring(out).find("{http://www.w3.org/2000/svg}title").text
    assert ("kept for the backward pass" in title) == ("icicle" in view)
    assert 'class="band residual"' in out or "icicle" in view  # stacked, by the lifetimes
    assert call(*REPORT, *view, "-o", str(tmp_path / "a.svg")) == (0, "", "")
    assert (tmp_path / "a.svg").read_text() == out


@pytest.mark.integration
def test_compare_and_plan(call):
    code, out, _ = call("compare", *REPORT[1:], "--policy", "nothing_saveable", "-f", "svg")
    assert code == 0
    ET.fromstring(out)
    code, out, _ = call("plan", *REPORT[1:], "--budget", "64MiB", "-f", "svg")
    assert code in (0, 1)  # 1: too close to tell
    assert "budget 64.00 MiB" in out


def test_nothing_to_draw(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "impala.py").write_text("def f(x): return x * 2.0\n")
    code, out, err = call(
        *("report", "impala.py:f", "--arg", "f32[]", "--on", "gpu:h100", "-q"),
        *("--view", "icicle", "-f", "svg"),
    )
    assert (code, out) == (2, "")
    assert err == "jaxresid: error: no icicle: nothing is kept for the backward pass\n"


def test_a_comparison_without_figures(call, monkeypatch):
    def to_svg(self):
        raise ValueError("no frontier: no policy gave figures")

    monkeypatch.setattr("jaxresid.results.comparison.comparison.Comparison.to_svg", to_svg)
    code, out, err = call("compare", *REPORT[1:], "--policy", "nothing_saveable", "-f", "svg")
    assert (code, out) == (2, "")
    assert err == "jaxresid: error: no frontier: no policy gave figures\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--view", "icicle"), "--view icicle is a picture: add -f svg, or -o icicle.svg"),
        (("--view", "peak", "-f", "svg"), "--view peak is text; -f svg draws timeline or icicle"),
        (("-v", "-f", "svg"), "-v shows everything as text, and -f svg draws one thing: --view"),
    ],
)
def test_what_is_no_picture(call, options, message):
    code, out, err = call(*REPORT, *options)
    assert (code, out) == (2, "")
    assert message in err


def test_a_cpu_has_no_timeline(call):
    code, out, err = call(*REPORT[:2], "--on", "cpu", "-q", "-f", "svg")
    assert (code, out) == (2, "")
    assert "no estimate" in err or "there is none for cpu" in err
    assert len(err.splitlines()) == 1
