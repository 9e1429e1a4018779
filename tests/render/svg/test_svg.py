"""Pictures: well-formed, escaped, readable without colour, and as high as the bytes say."""

import dataclasses
import re
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from fixtures.inspect import gpt
from jaxresid.render.svg.axes import Scale, ticks
from jaxresid.render.svg.bands import bands_at_peak, bands_over
from jaxresid.render.svg.canvas import WIDTH, cut, element, written
from jaxresid.render.svg.icicle import tree
from jaxresid.results import Computed, FrontRow, Selection
from jaxresid.results.plan.joint import Configuration
from tests.render.made_by_hand import COMPARISON, GIB, PLAN
from tests.small import f32

EVIL = "</text><script>alert(1)</script><img src=x onerror=y>\x1b[31m\u202e&"
SVG = "{http://www.w3.org/2000/svg}"


def mlp(params, x):
    for w in params:
        with jax.named_scope("mlp"):
            x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


@pytest.fixture(scope="module")
def report():
    return jaxresid.inspect(mlp, on="gpu:h100", lifetimes=True)([f32(256, 256)] * 6, f32(512, 256))


def words(svg):
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}text")]


def renamed(value, name=EVIL):
    return dataclasses.replace(value, target=dataclasses.replace(value.target, name=name))


def pictures(report):
    """Return every picture, of values with names that a browser would act on."""
    where = dataclasses.replace(
        report.peak.live[0].source.location or report.residuals[-1].origin.location,
        function=EVIL,
        code=EVIL,
        file=f"{EVIL}.py",
    )
    source = dataclasses.replace(report.peak.source, location=where, scope=f"{EVIL}/x")
    residuals = tuple(
        dataclasses.replace(r, origin=dataclasses.replace(r.origin, source=source, name=EVIL))
        if isinstance(r.origin, Computed)
        else r
        for r in report.residuals
    )
    live = tuple(dataclasses.replace(v, source=source) for v in report.peak.live)
    peak = dataclasses.replace(report.peak, live=live, source=source)
    first = report.lifetimes[0]
    values = tuple(
        dataclasses.replace(v, live=dataclasses.replace(v.live, source=source))
        for v in first.values
    )
    lifetimes = (dataclasses.replace(first, values=values),)
    evil = renamed(dataclasses.replace(report, residuals=residuals, peak=peak, lifetimes=lifetimes))
    rows = (*COMPARISON.rows, dataclasses.replace(COMPARISON.rows[4], policy=EVIL, kept_nbytes=1))
    front = FrontRow(Configuration(), EVIL, GIB, "fits", 1, 0.5)
    yield evil.to_svg()
    yield dataclasses.replace(evil, lifetimes=()).to_svg()
    yield evil.to_svg("icicle")
    yield renamed(dataclasses.replace(COMPARISON, rows=rows)).to_svg()
    selection = Selection(Configuration(), (front,))
    yield renamed(dataclasses.replace(PLAN, selection=selection)).to_svg()


def test_what_comes_from_code_stays_text(report):
    for svg in pictures(report):
        root = ET.fromstring(svg)
        allowed = "svg title desc style rect path line circle text".split()
        assert {each.tag for each in root.iter()} <= {f"{SVG}{name}" for name in allowed}
        names = {name for each in root.iter() for name in each.attrib}
        assert not [name for name in names if name.startswith("on") or "href" in name]
        assert "\x1b" not in svg
        assert "\u202e" not in svg
        assert "alert(1)" in svg
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_a_picture_is_described_and_has_dark_colours(report):
    for svg in pictures(report):
        root = ET.fromstring(svg)
        assert (root.get("role"), root.get("aria-labelledby")) == ("img", "title desc")
        assert root.find(f"{SVG}title").text
        assert len(root.find(f"{SVG}desc").text) > 40
        assert "@media (prefers-color-scheme: dark)" in root.find(f"{SVG}style").text
        classes = {c for each in root.iter() for c in (each.get("class") or "").split()}
        for name in classes - {"small", "muted", "bold", "title", "key", "tick"}:
            assert re.search(rf"\.{name}\b", root.find(f"{SVG}style").text), name


class TestTimeline:
    def test_bands_add_up_to_each_point(self, report):
        lifetimes = report.lifetimes[0]
        bands, columns = bands_over(lifetimes)
        for i, column in enumerate(columns):
            assert sum(band.heights[i] for band in bands) == lifetimes.points[column].nbytes
        assert max(lifetimes.points[i].nbytes for i in columns) == lifetimes.nbytes
        assert sum(band.nbytes for band in bands) == lifetimes.nbytes

    def test_columns_show_the_highest_point_of_long_programs(self, report):
        lifetimes = report.lifetimes[0]
        points = lifetimes.points * 50
        long = dataclasses.replace(
            lifetimes, points=points, at=lifetimes.at + 7 * len(points) // 50
        )
        _, columns = bands_over(dataclasses.replace(long, values=()))
        assert len(columns) == 240
        assert long.at in columns
        nbytes = [point.nbytes for point in points]
        for i, at in enumerate(columns):
            stretch = nbytes[i * len(points) // 240 : (i + 1) * len(points) // 240]
            assert nbytes[at] == max(stretch)

    def test_of_equal_points_the_peak_is_shown(self, report):
        lifetimes = report.lifetimes[0]
        points = (lifetimes.points[lifetimes.at],) * 500
        _, columns = bands_over(dataclasses.replace(lifetimes, points=points, at=401, values=()))
        assert 401 in columns

    def test_the_bands_at_the_peak_are_those_over_the_program(self, report):
        over, _ = bands_over(report.lifetimes[0])
        at_peak = bands_at_peak(report.peak.live)
        found = [(band.label, band.nbytes) for band in over if band.nbytes]
        assert found == [(band.label, band.nbytes) for band in at_peak]

    def test_a_line_is_as_high_as_its_bytes(self, report):
        root = ET.fromstring(report.to_svg())
        total = sum(_height(path.get("d")) for path in root.iter(f"{SVG}path") if _is_band(path))
        bands, columns = bands_over(report.lifetimes[0])
        at = columns.index(report.lifetimes[0].at)
        axis = [each for each in root.iter(f"{SVG}line") if each.get("class") == "grid"]
        pixels = float(axis[0].get("y1")) - float(axis[-1].get("y1"))
        # The outline of every band at the column of the peak, in pixels, against the axis.
        assert total > 0
        per_pixel = _tick(words(report.to_svg())) / pixels
        for path, band in zip(filter(_is_band, root.iter(f"{SVG}path")), bands, strict=True):
            top, bottom = _column(path.get("d"), at, len(columns))
            assert (bottom - top) * per_pixel == pytest.approx(band.heights[at], abs=per_pixel / 5)

    def test_it_is_readable_without_colour(self, report):
        shown = words(report.to_svg())
        bands, _ = bands_over(report.lifetimes[0])
        for letter in "ABC"[: len(bands)]:
            assert letter in shown
        assert all(band.label in shown or band.label[-20:] in str(shown) for band in bands)

    def test_what_has_no_estimate_has_none(self, report):
        with pytest.raises(ValueError, match="no timeline: the peak on gpu:h100 is not estimated"):
            dataclasses.replace(report, peak=None, lifetimes=()).to_svg()

    def test_the_memory_of_the_place_is_a_line_where_it_is_near(self, report):
        def drawn(nbytes):
            place = dataclasses.replace(report.place, memory_nbytes=nbytes)
            return "of gpu:h100" in " ".join(
                words(dataclasses.replace(report, place=place).to_svg())
            )

        assert drawn(report.peak.nbytes)
        assert drawn(report.peak.nbytes * 13 // 10)
        assert drawn(report.peak.nbytes // 2)
        assert not drawn(report.peak.nbytes * 10)


class TestIcicle:
    def test_children_add_up(self):
        report = jaxresid.inspect(gpt.loss_scan, on="tpu:v5e")(*gpt.loss_scan_inputs())
        kept = sum(r.nbytes for r in report.residuals if r.origin.kind == "computed")

        def check(node):
            if node.children:
                assert sum(child.nbytes for child in node.children) == node.nbytes
            for child in node.children:
                check(child)

        nodes = tree(report)
        assert sum(node.nbytes for node in nodes) == kept
        for node in nodes:
            check(node)
        lines = {leaf.label: leaf.nbytes for node in nodes for leaf in node.children}
        by_line = {
            f"{file}:{line}": nbytes
            for file, line, nbytes in (
                (*group.keys[0].rsplit(":", 1), group.nbytes)
                for group in report.group_by("line").rows
            )
        }
        assert lines == by_line

    def test_modules_hold_functions(self, report):
        node, last = tree(report)
        assert (node.kind, node.label) == ("module", "mlp")
        assert (last.kind, last.label) == ("function", "mlp")  # the squares are in no module
        assert {child.kind for child in node.children} == {"function"}

    def test_heights_are_shares(self, report):
        root = ET.fromstring(report.to_svg("icicle"))
        heights = {}
        for each in root.iter(f"{SVG}rect"):
            kind = (each.get("class") or "").removeprefix("cell ")
            heights[kind] = heights.get(kind, 0) + float(each.get("height"))
        assert heights["function"] == heights["line"] == pytest.approx(400, abs=0.1)
        module = tree(report)[0]
        kept = report.totals.computed_nbytes
        assert heights["module"] == pytest.approx(400 * module.nbytes / kept, abs=0.1)

    def test_nothing_kept(self, report):
        with pytest.raises(ValueError, match="nothing is kept"):
            dataclasses.replace(report, residuals=()).to_svg("icicle")

    def test_no_such_view(self, report):
        with pytest.raises(ValueError, match="view must be one of timeline, icicle, not 'x'"):
            report.to_svg("x")


class TestFrontier:
    def test_the_axes_place_each_point(self):
        root = ET.fromstring(COMPARISON.to_svg())
        dots = {}
        for each in root.iter(f"{SVG}circle"):
            title = each.find(f"{SVG}title")
            if title is not None:
                dots[title.text.split(":")[0]] = float(each.get("cx")), float(each.get("cy"))
        none, least = dots["no checkpoint, everything_saveable"], dots["nothing_saveable"]
        half = dots["dots_with_no_batch_dims_saveable"]
        assert none[1] < half[1] < least[1]
        assert none[0] < half[0] < least[0]
        share = (half[1] - none[1]) / (least[1] - none[1])
        assert share == pytest.approx((14.125 - 3.125) / (14.125 - 1.75), abs=1e-3)
        share = (half[0] - none[0]) / (least[0] - none[0])
        assert share == pytest.approx(0.048 / 0.333, abs=1e-3)

    def test_the_knee_is_marked(self):
        assert any("knee" in text for text in words(COMPARISON.to_svg()))

    def test_no_figures(self):
        failed = tuple(row for row in COMPARISON.rows if row.error)
        with pytest.raises(ValueError, match="no policy gave figures"):
            dataclasses.replace(COMPARISON, rows=failed).to_svg()

    def test_a_plan_shows_its_budget_and_the_plan(self):
        shown = words(PLAN.to_svg())
        assert any("budget" in text for text in shown)
        assert any("chosen" in text for text in shown)
        assert any("without any checkpoint" in text for text in shown)

    def test_of_many_plans_few_are_listed(self):
        rows = tuple(
            FrontRow(
                Configuration(), f"plan {i}", GIB * (50 - i), "fits", i, i / 100, chosen=i == 7
            )
            for i in range(40)
        )
        plan = dataclasses.replace(PLAN, selection=Selection(Configuration(), rows))
        shown = words(plan.to_svg())
        assert any("plan 7" in text for text in shown)
        assert sum("recomputed" in text for text in shown) < 14
        assert any(re.fullmatch(r"and \d+ between them", text) for text in shown)
        assert plan.to_svg().count("<circle") > 40


@pytest.mark.parametrize(
    ("low", "high", "unit", "found"),
    [
        (0, 10, 1, (0, 2, 4, 6, 8, 10)),
        (0, 1, 1, (0, 0.2, 0.4, 0.6, 0.8, 1)),
        (1.5, 14.2, 1, (5, 10)),
        (0, 6 * GIB, GIB, tuple(i * GIB for i in range(7))),
        (3, 3, 1, (3,)),
    ],
)
def test_ticks_are_round(low, high, unit, found):
    assert ticks(low, high, unit) == pytest.approx(found)


def test_a_scale_of_one_number():
    assert Scale(2, 2, 10, 20)(2) == 10


def test_words_are_cut_to_their_room():
    assert cut("a" * 10, 1000) == "a" * 10
    assert cut("abcdefghij", 40) == "abcd…"
    assert cut("abcdefghij", 40, keeps_end=True) == "…ghij"
    assert cut("abcdefghij", 15) == ""
    assert written(0, 0, "abc", room=5) == ""


def test_what_xml_has_no_place_for():
    ET.fromstring(element("text", written(0, 0, "a\x00\ufffe\ud800b"), class_='"<'))


def test_everything_is_inside(report):
    for svg in pictures(report):
        root = ET.fromstring(svg)
        height = float(root.get("height"))
        for each in root.iter(f"{SVG}text"):
            assert 0 <= float(each.get("x")) <= WIDTH
            assert 0 <= float(each.get("y")) <= height


def _is_band(path):
    return (path.get("class") or "").startswith("band")


def _corners(d):
    """Return the corners of a path of horizontal and vertical lines."""
    x, y = map(float, re.match(r"M([\d.]+),([\d.]+)", d).groups())
    corners = [(x, y)]
    for way, number in re.findall(r"([HV])([\d.]+)", d):
        x, y = (float(number), y) if way == "H" else (x, float(number))
        corners.append((x, y))
    return corners


def _height(d):
    ys = [y for _, y in _corners(d)]
    return max(ys) - min(ys)


def _column(d, at, count):
    """Return the top and the bottom of an outline in the middle of a column."""
    corners = _corners(d)
    left, right = min(x for x, _ in corners), max(x for x, _ in corners)
    x = left + (at + 0.5) * (right - left) / count
    crossed = []
    for (x1, y1), (x2, y2) in zip(corners, [*corners[1:], corners[0]], strict=True):
        if y1 == y2 and min(x1, x2) <= x < max(x1, x2):
            crossed.append(y1)
    return min(crossed), max(crossed)


def _tick(shown):
    """Return the bytes between the lowest and the highest line of the axis."""
    found = [re.fullmatch(r"([\d.]+) (B|KiB|MiB|GiB)", text) for text in shown]
    values = [float(m[1]) * 1024 ** ("B", "KiB", "MiB", "GiB").index(m[2]) for m in found if m]
    return values[-1] - values[0]
