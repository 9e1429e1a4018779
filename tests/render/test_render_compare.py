"""Comparisons as text, and with plans as JSON, on values made by hand: whole outputs, no jax."""

import dataclasses
import html
import json
import os
import re
import subprocess
import sys
from itertools import pairwise

import jsonschema
import pytest
from rich.console import Console
from rich.text import Text

from jaxresid.cli.main import run
from jaxresid.render.page.document import page_document
from jaxresid.render.report.estimates import interval_remarks
from jaxresid.render.report.policies import lines
from jaxresid.render.style.columns import Column, bytes_unit, flops_unit, headings
from jaxresid.render.svg.frontier import comparison_frontier
from jaxresid.render.tables.compare import (
    entries,
    gradients_text,
    remarks,
    render_comparison,
    takeaways,
)
from jaxresid.render.tables.frontier import HEIGHT, PlotPoint, plot, plotted
from jaxresid.render.tables.plan import (
    render_plan,
)
from jaxresid.results import (
    ComparisonRow,
    Compiled,
    IntervalBasis,
    PlaceInfo,
    Timing,
    with_answers,
)
from jaxresid.serialization.encoding import json_document
from tests.render.made_by_hand import (
    COMPARISON,
    CONFIRMED,
    GIB,
    MIB,
    PLACE,
    PLAN,
    RANGE,
    ROWS,
    compared,
    printed,
    row,
)
from tests.render.test_render import changed
from tests.schemas import schema, validate


def timing(ratio, error: float | None = 3e-7):
    return Timing(0.1 * ratio, ratio, ratio - 0.03, ratio + 0.04, 10, error, 1e-4)


def test_a_comparison():
    """The order, the folding, units, marks, the wrapped names, the drawing, the sentences."""
    text = printed(render_comparison(COMPARISON))
    assert text.startswith(
        """\
gpt.py:loss  on tpu:v5p  with its gradient
knee: E dots_with_no_batch_dims_saveable: peak 3.12 GiB instead of 14.12 GiB,
  for 4.8% more FLOPs
lowest peak: F nothing_saveable: peak 1.75 GiB instead of 14.12 GiB, for 33.3%
  more FLOPs
B as written: E dots_with_no_batch_dims_saveable has a lower peak (3.12 GiB
  instead of 7.90 GiB) and recomputes less (4.8% of the FLOPs instead of 17.0%)

policies at scan-bodies  gpt.py:49 (layer) ×12 trips

       peak   kept    recompute   time
        GiB    GiB  TFLOP     %   est.  policy
 A *  14.12  13.12      0        ×1.00  no checkpoint
                                        = everything_saveable
 B     7.90   6.12  1.500 17.0%  ×1.15  as written
 C *   6.25   5.12  0.400  4.6%  ×1.09  dots_saveable
 D     3.88   2.88  1.900 22.0%  ×1.21  save_only_these_names('qkv',
                                          'attention_output')
[E]*   3.12   2.00  0.420  4.8%  ×1.10  dots_with_no_batch_dims_saveable
 F *   1.75   0.62  2.875 33.3%  ×1.31  nothing_saveable
no checkpoint and as written first, then by peak, highest first
  * Pareto-optimal · [ ] knee: beyond it, saving more memory gets expensive

without figures
mine:bad: the policy bad returns None where True is needed

peak, GiB
14.12 ┤ A───────┐
      │         │
      │         │
      │         │
      │         │
      │         │
      │         │                    B
      │         C
      │         │
      │         │                             D
      │        [E]───────────────────────────────────────────────┐
 1.75 ┤                                                          F
      └────────────────────────────────────────────────────────────
        0.0%                                                 33.3%
recompute, % of the FLOPs without checkpoints

jax 0.12.0 · tpu:v5p: 95.00 GiB per device; as asked
differentiated: x, stacked (2 leaves)
Peak, FLOPs and time are estimates, the time from the chip's published figures.
The time was not checked for tpu:v5p.
No interval: too few programs were compiled to say how far off this estimate is."""
    )


def test_print_is_the_text(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    COMPARISON.print()
    encoding = Console().encoding
    written = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    assert written == printed(render_comparison(COMPARISON, encoding))
    PLAN.print()
    written = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    assert written == printed(render_plan(PLAN, encoding))


def test_a_width_is_kept():
    """At every width that holds the figures; below 40 columns a terminal has to wrap them."""
    offloading = row("save_and_offload_only_these_names(names=['x'])", 1, 0.5, 2, 0.2, 1.5, 2.5)
    measured = [dataclasses.replace(r, measured=timing(1.1)) for r in ROWS[:-1]]
    for rows, narrowest in ((ROWS, 40), ((*ROWS, offloading), 50), ((*measured, offloading), 64)):
        for width in (*range(narrowest, 130, 7), 200):
            text = printed(render_comparison(compared(*rows)), width)
            assert max(map(len, text.splitlines())) <= width


def test_names_stand_above_their_figures_where_there_is_no_room_beside():
    text = printed(render_comparison(COMPARISON), 50)
    assert (
        " D    save_only_these_names('qkv',\n"
        "        'attention_output')\n"
        "       3.88   2.88  1.900 22.0%  ×1.21\n"
    ) in text


def test_ascii():
    text = printed(render_comparison(COMPARISON, "ascii"))
    drawing = text[text.index("peak, GiB") : text.index("recompute, %")]
    assert drawing.isascii() and "| A-------+" in drawing and "x1.10" in text
    assert printed(render_plan(PLAN, "ascii")).count("x1.11") == 1


def test_host_bytes_have_a_column_where_there_are_any():
    offloading = row("offloading", 1, 0.5, 2, 0.2, 1.5, 2.5)
    assert "host" not in printed(render_comparison(COMPARISON))
    text = printed(render_comparison(compared(*ROWS, offloading)))
    assert re.search(r"peak +kept +host +recompute", text)
    assert re.search(r" G +1\.00 +0\.50 +2\.50 +2\.000 20\.0% +×2\.50 +offloading", text)
    assert "* Pareto-optimal without host memory" in text


def test_what_no_rule_covers_is_a_lower_bound():
    row = dataclasses.replace(ROWS[4], uncosted=("ffi_call",))
    text = printed(render_comparison(compared(ROWS[0], row)))
    assert ">= 400.00 4.6%" in text and "No FLOPs known for ffi_call" in text
    assert "No FLOPs" not in printed(render_comparison(COMPARISON))
    knee = dataclasses.replace(row, knee=True)
    assert "for about 4.6% more FLOPs" in takeaways(compared(ROWS[0], knee))[0]


def test_rows_with_the_same_figures_are_one():
    found = entries(COMPARISON)
    assert [(e.letter, e.row.policy, [r.policy for r in e.same]) for e in found[:3]] == [
        ("A", "none", ["everything_saveable"]),
        ("B", "as-written", []),
        ("C", "dots_saveable", []),
    ]
    for change in (
        {"peak_nbytes": 1},
        {"kept_nbytes": 1},
        {"host_nbytes": 1},
        {"recompute_flops": 1},
        {"time_fraction": 0.01},
        {"uncosted": ("ffi_call",)},
        {"measured": timing(1)},
        {"measure_error": "killed"},
    ):
        other = dataclasses.replace(ROWS[2], **change)
        assert len(entries(compared(ROWS[0], other))) == 2, change


def test_another_place_is_named():
    elsewhere = dataclasses.replace(ROWS[4], policy="offload_dots", at="model.py:7 (head)")
    text = printed(render_comparison(compared(*ROWS, elsewhere)))
    assert "dots_saveable\n" in text and "= offload_dots at model.py:7 (head)\n" in text


def test_a_mark_of_one_is_the_mark_of_all_that_are_the_same():
    plain = dataclasses.replace(ROWS[4], pareto=False)
    marked = dataclasses.replace(plain, policy="checkpoint_dots", pareto=True, knee=True)
    (entry,) = entries(compared(plain, marked))
    assert entry.row.policy == "dots_saveable" and entry.pareto and entry.knee


def test_measured_where_nothing_ran_without_checkpoints():
    alone = Timing(0.25, None, None, None, 10, None, 1e-4)
    rows = [dataclasses.replace(row, measured=alone) for row in ROWS[1:3]]
    text = printed(render_comparison(compared(*rows, measured_on="cpu (2 cores)")), 100)
    assert text.count("0.25 s") == 2


def test_measured():
    rows = [dataclasses.replace(r, measured=timing(1 + i / 10)) for i, r in enumerate(ROWS[:3])]
    rows.append(dataclasses.replace(ROWS[4], measure_error="killed\n(out of memory?)"))
    measured = compared(*rows, measured_on="cpu (2 cores)")
    text = printed(render_comparison(measured), 100)
    assert re.search(r"×1\.15 +×1\.10 \(1\.07-1\.14\)  as written\n", text)
    assert re.search(r"×1\.09 +dots_saveable\n +not measured: killed \(out of memory\?\)\n", text)
    assert "gradients agree in all 3 that ran: largest relative difference 3.0e-07" in text
    assert "Measured on cpu (2 cores), 10 rounds: median (lowest-highest)" in text
    # Rows that were timed apart stay apart.
    assert re.search(r"C \*.*everything_saveable", text)


def test_gradients_that_differ_are_told():
    wrong = dataclasses.replace(ROWS[1], measured=timing(1.1, 2e-2))
    right = dataclasses.replace(ROWS[0], measured=timing(1.0, 0.0))
    text = printed(render_comparison(compared(right, wrong)), 100)
    assert "gradients differ by 2.0e-02 (tolerance 1e-04)" in " ".join(text.split())
    assert "agree" not in text
    unknown = dataclasses.replace(ROWS[1], measured=timing(1.1, None))
    assert gradients_text(compared(unknown)) == ""
    told = "cannot tell whether the gradients agree in 1 of 2 that ran: they contain NaNs"
    assert gradients_text(compared(right, unknown)).startswith(told)
    assert gradients_text(compared(right, wrong, unknown)) == ""
    # Not a number is no agreement either.
    nan = dataclasses.replace(ROWS[1], measured=timing(1.1, float("nan")))
    assert gradients_text(compared(right, nan)) == ""


def test_errors_that_are_the_same_are_one_line():
    text = printed(
        render_comparison(
            compared(
                ComparisonRow("a", "whole", error="no\n way"),
                ComparisonRow("b", "whole", error="no way"),
            )
        )
    )
    assert "a, b: no way\n" in text and "no policy gave figures\n" in text
    assert "Peak" not in text and "estimates" not in text


def test_places_that_are_many():
    text = printed(render_comparison(compared(*ROWS, places=tuple(f"m.py:{i}" for i in range(9)))))
    assert "m.py:5\n  and 3 more\n" in text and "m.py:6" not in text


def test_brackets_are_no_markup():
    row = ComparisonRow("[bold]", "whole", 1, 0, 1, 0, 0.0, None)
    text = printed(render_comparison(compared(row, warnings=("[red]x",), places=("[b]",))))
    assert "[bold]" in text and "warning: [red]x" in text and "[b]" in text


# What to take from it.


def test_takeaways_where_nothing_helps():
    same = (ROWS[0], row("as-written", 14.125, 1, 1.5, 0.17, 0.15))
    assert takeaways(compared(*same)) == (
        "no policy lowers the peak of this function",
        "B as written: A no checkpoint recomputes less (0.0% of the FLOPs instead of 17.0%)",
    )
    assert takeaways(compared(ROWS[0])) == ()
    assert takeaways(compared()) == ()


def test_a_knee_that_is_as_written():
    written = dataclasses.replace(ROWS[5], policy="as-written")
    first, *others = takeaways(compared(ROWS[0], written, ROWS[5]))
    assert first.startswith("knee: B as written: peak 3.12 GiB instead of 14.12 GiB, for 4.8%")
    assert others == []


def test_no_checkpoint_written_is_not_compared_with_what_is_better():
    better = dataclasses.replace(ROWS[5], recompute_flops=0, recompute_fraction=0.0)
    written = dataclasses.replace(ROWS[0], policy="as-written")
    (only,) = takeaways(compared(ROWS[0], written, better))
    assert only.startswith("knee: B ") and only.endswith("with nothing recomputed")


def test_fewer_flops():
    less = dataclasses.replace(ROWS[5], recompute_flops=-5, recompute_fraction=-0.01)
    assert takeaways(compared(ROWS[0], less))[0].endswith("for 1.0% fewer FLOPs")


def test_the_lowest_peak_is_that_of_the_rows_without_host_memory():
    def said(host_peak):
        offloaded = row("offloaded", host_peak, 0.5, 0.4, 0.046, 0.1, host=3.0)
        return takeaways(compared(ROWS[0], ROWS[3], offloaded))[0]

    assert said(1.0).startswith("lowest peak without host memory: B nothing_saveable: ")
    assert said(2.0).startswith("lowest peak: C nothing_saveable: ")


def test_no_column_of_times_without_rates():
    rows = tuple(dataclasses.replace(row, time_fraction=None) for row in ROWS)
    without = dataclasses.replace(COMPARISON, rows=rows, chip=None)
    assert "est." in printed(render_comparison(COMPARISON))
    assert "est." not in printed(render_comparison(without))
    assert "so the time is not" in " ".join(remarks(without)[0].split())


def test_ranks_that_xla_changes():
    """The rows with figures, with XLA's peaks in GiB."""
    peaks = {"none": 14.0, "everything_saveable": 14.0, "as-written": 6.5, "dots_saveable": 7.0}
    rows = tuple(
        dataclasses.replace(
            row,
            compiled=(Compiled("tpu:v5e", peak_nbytes=int(peaks.get(row.policy, 3) * GIB)),),
            by="xla",
            rank_changed=row.policy in ("as-written", "dots_saveable"),
        )
        for row in ROWS
        if row.error is None
    )
    text = printed(render_comparison(dataclasses.replace(COMPARISON, rows=rows)))
    assert (
        """\
       peak   kept    recompute   time      tpu:v5e
        GiB    GiB  TFLOP     %   est.    GiB        policy
 A *  14.12  13.12      0        ×1.00  14.00        no checkpoint
                                                     = everything_saveable
 B     7.90   6.12  1.500 17.0%  ×1.15   6.50     ~  as written
 C *   6.25   5.12  0.400  4.6%  ×1.09   7.00     ~  dots_saveable
"""
        in text
    )
    assert "~ XLA's rank by peak is not the estimate's: 2 of " in " ".join(text.split())
    assert "XLA's peak, GiB" in text


def with_intervals(*compiled, memory=7 * GIB):
    """The rows from 10 % less to 20 % more, on a device of some memory."""
    rows = (
        dataclasses.replace(
            row,
            low_nbytes=row.peak_nbytes * 9 // 10,
            high_nbytes=row.peak_nbytes * 12 // 10,
            compiled=compiled,
        )
        for row in ROWS
        if row.error is None
    )
    basis = IntervalBasis(98, ("tpu:v5p",), {"jaxlib": ("0.11.2", "0.12.0.1")}, MIB, GIB)
    place = dataclasses.replace(PLACE, memory_nbytes=memory, intervals=basis)
    rows = with_answers(tuple(rows), memory)
    return dataclasses.replace(COMPARISON, rows=rows, place=place)


@pytest.mark.parametrize(
    ("memory", "policy", "sentence"),
    [
        (20, "none", "fits 20.00 GiB, with the least recompute: A no checkpoint: peak 14.12 GiB"),
        # 6.25 GiB would be cheaper, and may not fit.
        (7, "dots_with_no_batch_dims_saveable", "fits 7.00 GiB, with the least recompute: E dots"),
        (2.5, "nothing_saveable", "fits 2.50 GiB: F nothing_saveable: peak 1.75 GiB instead of"),
        (2, "nothing_saveable", "nothing is sure to fit 2.00 GiB; F nothing_saveable may: peak"),
        (1, "nothing_saveable", "nothing fits 1.00 GiB; the smallest is F nothing_saveable: peak"),
    ],
)
def test_what_fits_comes_first(memory, policy, sentence):
    comparison = with_intervals(memory=int(memory * GIB))
    first, *others = takeaways(comparison)
    assert first.startswith(sentence)
    assert comparison.suggestion.policy == policy
    assert any(each.startswith("knee: E") for each in others) == (memory != 7)
    is_over = any("4.8% more FLOPs, does not fit" in each for each in others)
    assert is_over == (memory <= 2.5)
    # The same in each rendering, with letters that its table explains.
    assert first in " ".join(printed(render_comparison(comparison)).split())
    assert first in comparison_frontier(comparison)
    assert first in html.unescape(comparison._repr_html_())
    rows = page_document(comparison)["rows"]
    letters = {row["letter"]: row["name"] for row in rows if row["name"] == policy}
    assert re.search(rf"\b{next(iter(letters))} ", first)
    assert [row["name"] for row in rows if row["chosen"]] == [policy]
    shown = [row for row in rowed(comparison) if row["suggested"]]
    assert [row["policy"] for row in shown] == [policy]


def test_host_memory_is_taken_only_where_nothing_else_fits():
    def suggested(memory):
        cheap = row("offload", 2, 1, 0.1, 0.01, 0.5, 8, low_nbytes=GIB, high_nbytes=2 * GIB)
        dear = row("dots_saveable", 3, 2, 9, 0.9, 0.5, low_nbytes=2 * GIB, high_nbytes=3 * GIB)
        return compared(*with_answers((cheap, dear), memory))

    both = suggested(4 * GIB)
    assert both.suggestion.policy == "dots_saveable"
    assert ", with the least recompute without host memory: " in takeaways(both)[0]
    assert suggested(2 * GIB).suggestion.policy == "offload"


def test_what_xla_says_is_what_fits():
    """Of rows that were not compiled an estimate says nothing beside it."""
    fits = Compiled("tpu:v5p", peak_nbytes=6 * GIB, capacity_nbytes=7 * GIB, fits=True)
    cheaper, asked = with_intervals(memory=20 * GIB).rows[:2]
    rows = with_answers((cheaper, dataclasses.replace(asked, compiled=(fits,))), 20 * GIB)
    assert [each.answer for each in rows] == [None, "fits"]
    assert takeaways(compared(*rows))[0].startswith("tpu:v5p: B as written fits: 6.00 GiB of 7.00")


def test_intervals_say_what_the_estimates_cannot():
    text = printed(render_comparison(with_intervals()))
    assert (
        """\
       peak   interval     kept    recompute   time
        GiB        GiB      GiB  TFLOP     %   est.  policy
 A *  14.12  12.7-16.9 x  13.12      0        ×1.00  no checkpoint
                                                     = everything_saveable
 B     7.90  7.11-9.48 x   6.12  1.500 17.0%  ×1.15  as written
 C *   6.25  5.62-7.50 ?   5.12  0.400  4.6%  ×1.09  dots_saveable
 D     3.88  3.49-4.65     2.88  1.900 22.0%  ×1.21  save_only_these_names(
"""
        in text
    )
    assert "x does not fit 7.00 GiB · ? too close to 7.00 GiB: --compile decides" in text
    assert f"{RANGE} 98 with jaxlib 0.11.2, 0.12.0.1." in " ".join(text.split())


def test_nothing_is_marked_where_all_fits_or_xla_was_asked():
    for comparison in (with_intervals(memory=20 * GIB), with_intervals(memory=None)):
        text = printed(render_comparison(comparison))
        assert " 5.62-7.50   5.12 " in text
        assert "too close" not in text
    asked = with_intervals(Compiled("tpu:v5p", peak_nbytes=6 * GIB, capacity_nbytes=7 * GIB))
    text = printed(render_comparison(asked))
    assert " 5.62-7.50   5.12 " in text
    assert "too close" not in text


def test_an_interval_per_compiler_is_said_once():
    places = [PLACE, dataclasses.replace(PLACE, name="tpu:v5p:2x2")]
    assert len(interval_remarks(places)) == 1
    assert interval_remarks([PlaceInfo("cpu", "cpu", "as asked", "cpu")]) == ()
    basis = IntervalBasis(98, ("gpu:a100", "gpu:h100"), {"jaxlib": ("0.12.0.1",)}, MIB, GIB)
    names = ("gpu:h100", "gpu:h100:8", "gpu:a100:2x8", "gpu:h1000", "gpu:b200", "gpu")
    said = [interval_remarks([PlaceInfo(n, "gpu", "", "gpu", None, basis)])[0] for n in names]
    assert said[0] == f"{RANGE} 98 with jaxlib 0.12.0.1."
    assert said[:3] == said[:1] * 3
    other = f"{RANGE} 98 for gpu:a100, gpu:h100, not for this chip."
    assert said[3:] == [other] * 3


# The plot.


def drawn(*points, width=80, encoding="utf-8"):
    found, hidden = plot(points, ("1", "9"), ("0%", "50%"), width, encoding)
    return [line.plain for line in found], hidden


def test_the_plot_has_its_corners():
    text, hidden = drawn(PlotPoint(0, 9, "A", True), PlotPoint(0.5, 1, "B", True))
    assert text[0] == "9 ┤ A" + "─" * 56 + "┐"
    assert text[HEIGHT - 1] == "1 ┤" + " " * 58 + "B"
    assert all(line == "  │" + " " * 58 + "│" for line in text[1 : HEIGHT - 1])
    assert (len(text), hidden) == (HEIGHT + 2, ())
    assert text[-1].split() == ["0%", "50%"] and len(text[-1]) == len(text[0])


def test_points_are_where_their_figures_are():
    points = [PlotPoint(i / 10, 10**9 * (10 - i) ** 2, chr(65 + i)) for i in range(11)]
    text, hidden = drawn(*points)
    at = {c: (x, y) for y, line in enumerate(text[:HEIGHT]) for x, c in enumerate(line) if c > "9"}
    places = [at[p.letter] for p in points if p.letter not in hidden]
    assert len(places) == 11
    assert places == sorted(places)  # to the right with recompute
    assert [y for _, y in places] == sorted(y for _, y in places)  # and down with the peak
    steps = {b - a for (a, _), (b, _) in pairwise(places)}
    assert max(steps) - min(steps) <= 1


def test_the_steps_go_along_the_pareto_points_alone():
    text, _ = drawn(
        PlotPoint(0, 9, "A", True),
        PlotPoint(0.2, 5, "x"),
        PlotPoint(0.25, 4, "B", True, True),
        PlotPoint(0.5, 1, "C"),
    )
    assert sum(line.count("┐") for line in text) == 1
    assert any("[B]" in line for line in text)
    assert "─" not in "".join(text[HEIGHT - 1 : HEIGHT])


def test_the_knee_and_the_frontier_come_first_where_points_coincide():
    points = (PlotPoint(0, 9, "A"), PlotPoint(0, 9, "B", True), PlotPoint(0.5, 1, "C", True, True))
    text, hidden = drawn(*points, PlotPoint(0.5, 1, "D", True), PlotPoint(0.49, 1, "E"))
    assert "B" in text[0] and "A" not in text[0] and text[HEIGHT - 1].endswith("[C]")
    assert hidden == ("A", "D", "E")


def test_a_narrow_plot():
    text, _ = drawn(
        PlotPoint(0, 9, "A", True), PlotPoint(0.5, 1, "B", True), width=5, encoding="ascii"
    )
    assert {len(line) for line in text[:1]} == {3 + 19}
    assert "".join(text).isascii()


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ((), False),
        ((PlotPoint(0, 1, "A"),), False),
        ((PlotPoint(0, 1, "A"), PlotPoint(0, 1, "B")), False),
        ((PlotPoint(0, 1, "A"), PlotPoint(1, 1, "B")), False),
        ((PlotPoint(0, 1, "A"), PlotPoint(0, 2, "B")), False),
        ((PlotPoint(0, 2, "A"), PlotPoint(1, 1, "B")), True),
    ],
)
def test_a_plot_needs_a_trade(points, expected):
    assert plotted(points) is expected


# Columns and names.


def test_a_cell_has_its_own_style_or_the_columns():
    styled = Column(("peak", "GiB"), ("1", "22"), "cyan")
    assert [(cell.plain, cell.style) for cell in map(styled.cell, range(2))] == [
        ("   1  ", "cyan"),
        ("  22  ", "cyan"),
    ]
    own = Column(("", ""), ("1", "2"), styles=("red", ""))
    assert [own.cell(i).style for i in range(2)] == ["red", ""]


def test_headings_end_with_their_last_word():
    columns = [Column(("a", ""), ("333",)), Column(("time", "est."), ("1",))]
    assert [line.plain for line in headings(columns, beside=True)] == [
        "  a  time",
        "     est.  policy",
    ]
    assert [line.plain for line in headings(columns, beside=False)] == ["  a  time", "     est."]


@pytest.mark.parametrize(
    ("values", "name", "texts"),
    [
        ((), "B", ()),
        ((0, 7, 1023), "B", ("0", "7", "1023")),
        ((1024, 1, 0), "KiB", ("1.000", "0.001", "0")),
        ((20 * 1024, 1, 0), "KiB", ("20.00", "<0.01", "0")),
        ((3 * GIB, 512 * MIB, 1), "GiB", ("3.000", "0.500", "<0.001")),
        ((1024**6 * 5000,), "EiB", ("5000.00",)),
    ],
)
def test_a_column_of_bytes_has_one_unit(values, name, texts):
    unit = bytes_unit(values)
    assert (unit.name, tuple(unit.text(v) for v in values)) == (name, texts)


@pytest.mark.parametrize(
    ("value", "biggest", "shown"),
    [
        (int(14.125 * GIB), 20 * GIB, "14.1"),
        (int(1.755 * GIB), 20 * GIB, "1.75"),
        (int(0.5 * GIB), 20 * GIB, "0.50"),
        (int(0.5 * GIB), 2 * GIB, "0.500"),
        (MIB, 2 * GIB, "0.001"),
        (1630 * GIB, GIB, "1630"),
        (7, 100, "7"),
        (0, 100, "0"),
    ],
)
def test_three_digits_are_enough_for_an_estimate(value, biggest, shown):
    assert bytes_unit([biggest]).short(value) == shown


def test_a_column_of_flops_has_one_unit():
    unit = flops_unit([2 * 10**12, 5, -5])
    assert unit.name == "TFLOP"
    assert [unit.text(v) for v in (2 * 10**12, 5, -5, -(10**11))] == [
        *("2.000", "<0.001", ">-0.001", "-0.100"),
    ]
    assert flops_unit([999]).name == "FLOP"


@pytest.mark.parametrize("width", range(3, 60))
def test_names_break_and_lose_nothing(width):
    text = Text(
        "save_and_offload_only_these_names(names=['a', 'bc'], x='pinned_host') mod.sub:policy"
    )
    broken = lines(text, width, 2)
    assert all(line.cell_len <= width for line in broken)
    assert "".join("".join(line.plain.split()) for line in broken) == text.plain.replace(" ", "")


def test_names_break_where_a_reader_would():
    def broken(text, width):
        return [line.plain for line in lines(Text(text), width, 2)]

    assert broken("dots_with_no_batch_dims_saveable", 21) == [
        "dots_with_no_batch_",
        "  dims_saveable",
    ]
    assert broken("save_only_these_names('qkv', 'x')", 30) == [
        "save_only_these_names('qkv',",
        "  'x')",
    ]
    assert broken("a b", 80) == ["a b"]
    assert broken("a_b cccccccccc", 8) == ["a_b", "  cccccc", "  cccc"]
    assert broken("abcdefgh", 4) == ["abcd", "  ef", "  gh"]


# As JSON.


def rowed(comparison):
    return json.loads(json_document(comparison))["rows"]


def test_json_of_a_comparison():
    measured = dataclasses.replace(ROWS[1], measured=timing(1.1), uncosted=("f",))
    comparison = compared(ROWS[5], measured, ROWS[-1], measured_on="cpu", warnings=("w",))
    value = json.loads(comparison.to_json())
    validate(value, "compare")
    knee, timed, failed = value.pop("rows")
    assert value == {
        "schema": 1,
        "kind": "compare",
        "jax": {"version": "0.12.0", "flags": {"jax_use_direct_linearize": True}, "compilers": {}},
        "target": {
            "name": "gpt.py:loss",
            "mode": "loss",
            "differentiated": ["x", "stacked['w']", "stacked['b']"],
            "gradients": [],
            "is_step": False,
            "other_mode": None,
        },
        "on": {
            "name": "tpu:v5p",
            "kind": "tpu",
            "origin": "as asked",
            "profile": "tpu",
            "memory_nbytes": 95 * GIB,
            "intervals": None,
        },
        "chip": "v5p",
        "time_basis": None,
        "times_checked_on": [],
        "lifetimes": [],
        "at": "scan-bodies",
        "places": ["gpt.py:49 (layer) ×12 trips"],
        "measured_on": "cpu",
        "warnings": ["w"],
        "mesh": None,
        "next_step": None,
    }
    assert knee == {
        "policy": "dots_with_no_batch_dims_saveable",
        "at": "scan-bodies",
        "kept_nbytes": 2 * GIB,
        "host_nbytes": 0,
        "peak_nbytes": int(3.125 * GIB),
        "low_nbytes": None,
        "high_nbytes": None,
        "recompute_flops": 420_000_000_000,
        "recompute_fraction": 0.048,
        "time_fraction": 0.1,
        "low_time_fraction": None,
        "high_time_fraction": None,
        "pareto": True,
        "knee": True,
        "answer": None,
        "suggested": False,
        "error": None,
        "uncosted": [],
        "measured": None,
        "measure_error": None,
        "offloading": None,
        "compiled": [],
        "by": "estimate",
        "rank_changed": False,
    }
    assert timed["measured"] == {
        "seconds": pytest.approx(0.11),
        "ratio": 1.1,
        "low": pytest.approx(1.07),
        "high": pytest.approx(1.14),
        "rounds": 10,
        "gradient_error": 3e-7,
        "tolerance": 1e-4,
        "agrees": True,
    }
    assert timed["uncosted"] == ["f"]
    assert {k for k, v in failed.items() if v is None} == {
        *("kept_nbytes", "host_nbytes", "peak_nbytes", "recompute_flops", "recompute_fraction"),
        *("time_fraction", "measured", "measure_error", "offloading", "answer"),
        *("low_nbytes", "high_nbytes", "low_time_fraction", "high_time_fraction"),
    }
    assert failed["error"].startswith("the policy bad")


def test_json_has_no_nan():
    """NaN is no JSON; a difference that is none does not agree."""
    nan = compared(dataclasses.replace(ROWS[1], measured=timing(1.1, float("nan"))))
    text = json_document(nan)
    assert "NaN" not in text
    (row,) = rowed(nan)
    assert (row["measured"]["gradient_error"], row["measured"]["agrees"]) == (None, False)


def test_json_of_a_plan():
    value = json.loads(PLAN.to_json())
    validate(value, "plan")
    sites = value.pop("sites")
    choices, floor = value.pop("choices"), value.pop("floor")
    assert choices[0] == {
        "place": "model.py:49 (layer)",
        "policies": ["no policy", "dots_saveable"],
        "selections": 30,
        "known_selections": 30,
        "segments": 0,
        "checkpoints": [],
    }
    assert (floor["nbytes"], floor["held_nbytes"]) == (13 * GIB // 8, 3 * GIB // 2)
    assert floor["parts"][2] == {
        "kind": "batch",
        "nbytes": GIB // 8,
        "arguments": [],
        "until_update": True,
    }
    assert floor["reliefs"][0] == dataclasses.asdict(PLAN.floor.reliefs[0])
    assert floor["without"] == ["the optimizer's state and its update"]
    for name in ("schema", "jax", "target", "on"):
        assert value.pop(name) == json.loads(json_document(COMPARISON))[name]
    assert value.pop("selection") == {
        "configuration": {"batch": None, "microbatches": 1, "mesh": None, "name": "batch"},
        **{"front": [], "beaten": [], "to_set": [], "largest": None},
        **{"searched": 1, "followed": 0, "skipped": 0},
    }
    assert value == {
        f.name: list(getattr(PLAN, f.name)) if f.name in _LISTS else getattr(PLAN, f.name)
        for f in dataclasses.fields(PLAN)
        if f.name not in ("target", "jax", "place", "sites", "choices", "floor", "selection")
    } | {"fits": True, "kind": "plan"}
    assert [(s["kind"], s["calls"], s["trips"], s["changed"]) for s in sites] == [
        ("scan", 1, 48, True),
        ("call", 24, 48, True),
        ("checkpoint", 1, 1, False),
    ]
    assert sites[0]["location"]["column"] == 5 and sites[1]["location"] is None
    assert [p["calls"] for p in sites[1]["parts"]] == [10, 1, 13]
    assert sites[1]["parts"][2] == {
        "calls": 13,
        "checkpointed": False,
        "policy": None,
        "values": [],
        "segments": [],
        "checkpoints": None,
    }
    qkv, _, ctx = sites[0]["parts"][0]["values"]
    assert qkv == {
        "name": "qkv",
        "action": "save",
        "nbytes": 3 * GIB,
        "expression": {
            "file": "m.py",
            "line": 42,
            "column": 11,  # 1-based outside
            "end_line": 42,
            "end_column": 19,
            "function": "layer",
            "code": "x @ w",
        },
    }
    assert (ctx["action"], ctx["expression"]) == ("offload", None)
    doubted = dataclasses.replace(PLAN, unwritten=("a", "b"), verified=False, doubt="a")
    value = json.loads(doubted.to_json())
    validate(value, "plan")
    assert [value[key] for key in ("unwritten", "verified", "doubt")] == [["a", "b"], False, "a"]
    without = dataclasses.replace(CONFIRMED, written_nbytes=None, estimate_nbytes=None)
    value = json.loads(without.to_json())
    validate(value, "plan")
    assert (value["answer"], value["confirmed"], value["compiles"]) == ("fits", True, 3)
    assert value["by_xla"] == ["peak_nbytes"]


_LISTS = (
    *("code", "unwritten", "uncosted", "warnings", "by_xla", "unconfirmed"),
    "times_checked_on",
    "lifetimes",
)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "path", "new"),
    [
        ("compare", ("extra",), 1),
        ("compare", ("schema",), 2),
        ("compare", ("on", "profile"), "accelerator"),
        ("compare", ("rows", 0, "extra"), 1),
        ("compare", ("rows", 0, "kept_nbytes"), -1),
        ("compare", ("rows", 0, "pareto"), None),
        ("compare", ("rows", 0, "measured"), {}),
        ("compare", ("rows", 1, "measured", "extra"), 1),
        ("compare", ("rows", 1, "measured", "rounds"), 0),
        ("plan", ("extra",), 1),
        ("plan", ("budget_nbytes",), 0),
        ("plan", ("fits",), None),
        ("plan", ("sites", 0, "kind"), "loop"),
        ("plan", ("sites", 0, "parts", 0, "calls"), 0),
        ("plan", ("sites", 0, "parts", 0, "values", 0, "action"), "recompute"),
        ("plan", ("sites", 0, "parts", 0, "values", 0, "expression", "column"), 0),
    ],
    ids=lambda v: ".".join(map(str, v)) if isinstance(v, tuple) else "",
)
def test_the_schemas_refuse_what_they_do_not_know(name, path, new):
    measured = dataclasses.replace(ROWS[1], measured=timing(1.1))
    values = {"compare": compared(ROWS[0], measured), "plan": PLAN}
    value = json.loads(values[name].to_json())
    validate(value, name)
    with pytest.raises(jsonschema.ValidationError):
        validate(changed(value, path, new), name)


@pytest.mark.parametrize("name", ["compare", "plan"])
def test_the_schemas_require_every_key(name):
    measured = dataclasses.replace(ROWS[1], measured=timing(1.1))
    value = json.loads({"compare": compared(ROWS[0], measured), "plan": PLAN}[name].to_json())

    def paths(inner, path=()):
        if isinstance(inner, dict):
            for key, item in inner.items():
                yield (*path, key)
                yield from paths(item, (*path, key))
        elif isinstance(inner, list):
            for i, item in enumerate(inner):
                yield from paths(item, (*path, i))

    validator = jsonschema.Draft202012Validator(schema(name))
    validator.validate(value)
    for *outer, key in paths(value):
        if outer[:2] in (["jax", "flags"], ["jax", "compilers"]):
            continue
        copy = json.loads(json.dumps(value))
        inner = copy
        for step in outer:
            inner = inner[step]
        del inner[key]
        assert not validator.is_valid(copy), (*outer, key)


# The command lines, as far as nothing is traced.


PRINTING = """
import ctypes, os, sys
from jaxresid.cli.main import showing_progress
print("before")
with showing_progress("nothing") as say:
    say("something")
    print("from Python")
    ctypes.CDLL(None).puts(b"from C")
    os.write(1, b"past both\\n")
print("after")
"""


def test_what_others_print_while_we_work_is_not_our_output():
    """C keeps what goes to a pipe until it is flushed, which must not be after we are done."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", PRINTING],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout == "before\nafter\n"
    assert sorted(done.stderr.split("\n")) == [
        "",
        "from C",
        "from Python",
        "jaxresid: nothing",
        "past both",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "m:f", "--on", "cpu"], "how much memory cpu has is not known here"),
        (["plan", "m:f", "--on", "tpu:v5e", "--compile-time", "90"], "needs --compile"),
        (["plan", "m:f", "--budget", "12foo"], "e.g. 1MiB, 1.5GiB"),
        (["plan", "m:f", "--budget", "0"], "write a size such as 12GiB"),
        (["plan", "m:f", "--budget", "0.0GiB"], "write a size such as 12GiB"),
        (["plan", "m:f", "--budget", "-1GiB"], "is not a size"),
        (["plan", "m:f", "--budget", "1GiB", "--diff", "--write"], "choose one"),
        (["plan", "m:f", "--budget", "1GiB", "--diff", "-f", "json"], "prints a diff, not json"),
        (["plan", "m:f", "--budget", "1GiB", "--on", "tpu:abacus"], "v5e"),
        (["compare", "m:f", "--on", "tpu:abacus"], "v5e"),
        (["compare", "m:f", "--on", "cpu", "--on", "tpu:v5e"], "more than once"),
        (["compare", "m:f", "--rounds", "3"], "--rounds needs --measure"),
        (["compare", "m:f", "--measure", "--rounds", "0"], "x>=1"),
        (["compare", "m:f", "-f", "yaml"], "text"),
        (["compare"], "TARGET"),
    ],
)
def test_bad_options_are_told_before_anything_is_traced(arguments, message, capsys):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


def test_the_default_place_is_the_documented_one(capsys):
    from jaxresid.xla.chosen import DEFAULT

    for command in ("report", "check", "compare", "plan", "compile", "sweep"):
        assert run([command, "--help"]) == 0
        assert f"sees here, else {DEFAULT}]" in " ".join(capsys.readouterr().out.split())


def test_the_commands_are_listed(capsys):
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^  compare  ", listed, re.M) and re.search(r"^  plan  ", listed, re.M)


def test_what_was_not_compiled_is_not_said_not_to_fit():
    too_big = Compiled("tpu:v5p", peak_nbytes=9 * GIB, capacity_nbytes=8 * GIB, fits=False)
    first, *others = (row for row in ROWS if row.error is None)
    rows = (dataclasses.replace(first, compiled=(too_big,)), *others)
    text = " ".join(printed(render_comparison(dataclasses.replace(COMPARISON, rows=rows))).split())
    assert "tpu:v5p: none of the one that was compiled fits; the smallest is" in text
    fits = dataclasses.replace(too_big, peak_nbytes=7 * GIB, fits=True)
    rows = (rows[0], dataclasses.replace(others[0], compiled=(fits,)), *others[1:])
    text = " ".join(printed(render_comparison(dataclasses.replace(COMPARISON, rows=rows))).split())
    assert "tpu:v5p: 1 of the 2 that were compiled fits: " in text
    assert "surely" not in text


def test_what_may_not_fit_is_neither_said_to_fit_nor_not_to():
    may = Compiled(
        "gpu:h100",
        peak_nbytes=7 * GIB,
        cublas_peak_nbytes=9 * GIB,
        capacity_nbytes=8 * GIB,
        fits=False,
    )
    first, *others = (row for row in ROWS if row.error is None)
    rows = (dataclasses.replace(first, compiled=(may,)), *others)
    text = printed(render_comparison(dataclasses.replace(COMPARISON, rows=rows)))
    assert re.search(r"\b7\.0+ may\b", text)
    words = " ".join(text.split())
    assert "may: fits if the GPU takes Triton's matmuls, but not surely with cuBLAS's" in words
    assert "may not fit: 7.00 GiB of 8.00 GiB, but 1.00 GiB too much" in words
