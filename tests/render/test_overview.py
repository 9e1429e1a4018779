"""The report on one screen, on reports made by hand: its lines, widths, signs and sums."""

import dataclasses
import json
import shlex

import pytest
from rich.text import Text

from jaxresid.render.report.overview.chart import bottom_of, chart_lines, phases_line
from jaxresid.render.report.overview.checkpoints import grouped, places_text, saved_text
from jaxresid.render.report.overview.code_lines import keeping_lines
from jaxresid.render.report.overview.parts import columns_of, parts_of
from jaxresid.render.report.rows import VIEWS
from jaxresid.render.style.shell import ShellCommand
from jaxresid.results import (
    Compiled,
    Computed,
    Finding,
    KeptBeyondPeak,
    Location,
    ModuleMemory,
    NextStep,
    PhaseSpan,
    Source,
    Verdict,
)
from jaxresid.serialization.encoding import json_document
from tests.render.test_render import (
    CHECKPOINTED,
    EARNING,
    MIB,
    PEAK,
    REPORT,
    USELESS,
    at,
    layer,
    report_text,
    text,
)

NEXT = NextStep("check", "the checkpoint of loss saves nothing", 0, ("model:loss", "--on", "tpu"))
FOUND = Finding(
    "logits-at-peak",
    "3.00 MiB are kept as float32",
    Source(at(40, "mlp", "h = x @ w[0]")),
    "compute it in bfloat16",
)
SHORT = dataclasses.replace(
    CHECKPOINTED,
    next_step=NEXT,
    peak=dataclasses.replace(
        PEAK,
        phases=(PhaseSpan("forward", 0, 5, 80 * MIB), PhaseSpan("backward", 5, 10, 100 * MIB)),
    ),
    findings=(FOUND,),
)


def short(report=SHORT, width=80, encoding="utf-8"):
    return report_text(width, report, encoding=encoding, verbose=False)


def many_lines(count, nbytes=MIB):
    """A residual of each of so many lines."""
    return tuple(
        dataclasses.replace(
            layer(0),
            aval=dataclasses.replace(layer(0).aval, shape=(nbytes // 2 - i,)),
            origin=Computed("exp", Source(at(100 + i, "f", f"x{i} = jnp.exp(y{i})"))),
        )
        for i in range(count)
    )


def test_one_screen():
    assert (
        short()
        == """\
model:loss  on tpu:v5p  with its gradient
peak about 100 MiB
next: the checkpoint of loss saves nothing: jaxresid check model:loss --on tpu

▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚██████████████████████████▞▞▞▞▞▞▞▞░░░░░░▤▤
▚ temporaries 48.00 MiB (48.0%)  █ residuals 32.00 MiB (32.0%)
▞ arguments 10.00 MiB (10.0%)  ░ gradients 8.00 MiB (8.0%)
▤ outputs 2.00 MiB (2.0%)
100.00 MiB ┤                                  ▂▂▂▂▂▂▂███████
           │                            ▄▄▄▄▄▄██████████████
           │                            ████████████████████▆▆▆▆▆▆▆
           │              ▂▂▂▂▂▂▂██████████████████████████████████
           │              █████████████████████████████████████████▄▄▄▄▄▄▄
 20.00 MiB ┤▁▁▁▁▁▁▁▆▆▆▆▆▆▆████████████████████████████████████████████████▁▁▁▁▁▁
            forward                           │ backward
                          peak at model.py:32 attention ▲

kept for the backward pass: 35.00 MiB, and 256.00 KiB in host memory, 2.00 MiB
of arguments, 12 B of constants
 32.00 MiB  90.8%  model.py:31 attention  p = jax.nn.softmax(scores, axis=-1)
  3.00 MiB   8.5%  model.py:40 mlp  h = x @ w[0]
256.00 KiB   0.7%  1 more line: --view residuals

2 checkpoints
saves nothing  loss  model.py:60  the peak stays for 33.3% more FLOPs
earns its keep  layer ×48  model.py:49  dots_saveable
  saves 750.00 MiB for 4.8% more FLOPs

3 findings
saves nothing  checkpoint of loss  model.py:60
  it is all of the loss: everything is recomputed at once, right where it is
  needed
saved-but-recomputed  model.py:41
  'h[0]' is saved, and the dot_general before it runs again
  help: name the product instead
logits-at-peak  model.py:40
  3.00 MiB are kept as float32
  help: compute it in bfloat16

warning: held static: rate [0.5]
jax 0.10.2 jax_remat3 · tpu:v5p: as asked
No interval: too few programs were compiled to say how far off this estimate is.
-v shows all; --view peak, residuals, checkpoints, modules or timeline"""
    )


def test_it_is_short_and_narrow_whatever_there_is_to_say():
    checkpoints = [
        dataclasses.replace(c, function=f"{c.function}_{i}")
        for c in (EARNING, USELESS) * 4
        for i in range(5)
    ]
    far = "a/rather/long/path/to/the/model/of/somebody.py"
    residuals = [
        dataclasses.replace(r, origin=dataclasses.replace(r.origin, source=Source(Location(
            far, i, 0, "TransformerBlock.__call__", "x = x + self.attention(self.norm(x))" * 3
        ))))
        for i, r in enumerate(many_lines(12))
    ]  # fmt: skip
    report = dataclasses.replace(SHORT, residuals=tuple(residuals), checkpoints=tuple(checkpoints))
    for width in (60, 80, 120, 200):
        lines = short(report, width).splitlines()
        assert max(map(len, lines)) <= width
        if width >= 80:
            assert next(i for i, line in enumerate(lines) if "findings" in line) <= 36
    shown = short(report)
    assert shown.count("saves nothing  checkpoint of loss") == 5
    assert shown.count("somebody.py") == 5


def test_code_stands_beside_its_place_where_there_is_room():
    rows = [line for line in short(width=120).splitlines() if "model.py:31" in line]
    assert rows[0].endswith("attention  p = jax.nn.softmax(scores, axis=-1)  layers_*/attn")
    assert "x = x + 1" not in short(width=60)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_no_wider_than_the_terminal(width, view):
    modules = (
        ModuleMemory(("blocks[*]",), 7 * MIB, 7 * MIB, 14 * MIB, 3 * MIB, 40 * MIB),
        ModuleMemory(("blocks[*]", "mlp"), 5 * MIB, 5 * MIB, 10 * MIB, 0, 30 * MIB),
        ModuleMemory((), 0, 0, 0, 0, 60 * MIB),
    )
    report = dataclasses.replace(SHORT, modules=modules)
    shown = report_text(width, report, show=view)
    assert max(map(len, shown.splitlines())) <= width
    assert shown.startswith("model:loss  on tpu:v5p  with its gradient\npeak about 100 MiB")
    if view == "modules":
        rows = shown[shown.index("by module, in MiB") :].splitlines()
        assert rows[1].split() == [*"arguments gradients optimizer residuals peak module".split()]
        assert rows[2].split() == "7.00 7.00 14.00 3.00 40.0% blocks[*]".split()
        assert rows[3].endswith("30.0%   mlp")
        assert rows[4].split() == ["-", "-", "-", "-", "60.0%", "(in", "no", "module)"]


def test_ascii_has_ascii_alone_for_the_bar_and_the_chart():
    shown = short(encoding="ascii")
    chart = shown[shown.index("\n\n") : shown.index("kept for")]
    assert chart.isascii()
    assert "# residuals 32.00 MiB (32.0%)" in chart
    assert "^ peak" in chart or "peak at model.py:32 attention ^" in chart


def test_a_pipe_gets_no_escapes():
    assert "\x1b" not in short()


def test_the_parts_add_up_to_the_peak():
    value = json.loads(json_document(SHORT))["peak"]
    parts = parts_of(SHORT)
    assert sum(part.nbytes for part in parts) == value["nbytes"] == sum(value["breakdown"].values())
    assert [(p.kind, p.nbytes) for p in parts] == list(value["breakdown"].items())
    sizes = {"residual": 195, "output": 3, "batch": 1, "constant": 1}
    small = dataclasses.replace(
        PEAK, breakdown=tuple((kind, n * MIB // 2) for kind, n in sizes.items())
    )
    folded = parts_of(dataclasses.replace(SHORT, peak=small))
    shown = [("residual", 195 * MIB // 2), ("output", 3 * MIB // 2), ("other", MIB)]
    assert [(p.kind, p.nbytes) for p in folded] == shown


def test_the_parts_of_a_compiled_program_add_up_to_its_peak():
    compiled = Compiled(
        "cpu",
        temp_nbytes=70 * MIB,
        argument_nbytes=30 * MIB,
        output_nbytes=20 * MIB,
        alias_nbytes=5 * MIB,
        peak_nbytes=115 * MIB,
        capacity_nbytes=200 * MIB,
        fits=True,
    )
    report = dataclasses.replace(REPORT, peak=None, compiled=(compiled,))
    parts = {part.kind: part.nbytes // MIB for part in parts_of(report)}
    assert parts == {"temporary": 70, "argument": 30, "output": 15}
    line = "fits: 115.00 MiB of 200.00 MiB, 85.00 MiB to spare · by XLA"
    assert report_text(report=report, verbose=False).splitlines()[1] == line


@pytest.mark.parametrize("width", [1, 7, 60, 80, 121])
def test_a_bar_is_full(width):
    for values in ([1], [3, 1, 1], [5, 0, 2**40], [1] * 9):
        assert sum(columns_of(values, width)) == width


def test_the_lines_add_up_to_what_is_kept():
    for residuals in (REPORT.residuals, many_lines(3), many_lines(30), many_lines(300)):
        report = dataclasses.replace(REPORT, residuals=residuals)
        totals = json.loads(json_document(report))["totals"]
        found = keeping_lines(report)
        shown = sum(row.nbytes for row in found.shown)
        assert shown + found.hidden_nbytes == totals["computed_nbytes"] + totals["host_nbytes"]
        assert len(found.shown) <= 5
    assert found.shown == ()  # all below 1 %
    assert "300 more lines: --view residuals" in short(report)


def test_what_is_kept_beyond_the_peak_is_explained():
    why = KeptBeyondPeak(200 * MIB, 40 * MIB, 28, 30 * MIB, 10 * MIB, 120 * MIB)  # 28 B say nothing
    shown = " ".join(short(dataclasses.replace(SHORT, beyond_peak=why)).split())
    assert (
        "more than the peak: 30.00 MiB are made anew from constants, 10.00 MiB are never read,"
        " 120.00 MiB are computed where they are read, or freed before the peak" in shown
    )
    assert "more than the peak" not in short()


def test_a_chart_shows_what_is_within_a_scan():
    flat = (1, *[1000 + i // 10 for i in range(100)], 1)
    assert bottom_of(flat) == 1000
    lines = chart_lines(flat, bottom_of(flat), 102, 4, "12345678")
    assert [line[0] for line in lines] == [" "] * 4
    heights = ["".join(line[i] for line in lines).strip() for i in range(1, 101)]
    assert len(set(heights)) >= 9
    assert bottom_of((20, 30, 50, 100)) == 20


@pytest.mark.parametrize("rows", [1, 4, 16])
@pytest.mark.parametrize("width", [5, 60, 133])
def test_the_peak_is_at_the_top_of_a_chart(rows, width):
    for high in range(0, 200, 13):
        values = [10] * 200
        values[high] = 50
        lines = chart_lines(values, 10, width, rows, ".:#")
        assert len(lines) == rows
        assert "#" in lines[0]
        assert all(len(line) == width for line in lines)
    assert chart_lines([7, 7], 7, 3, 2, ".#") == ["###", "###"]


def test_a_curve_without_a_shape_is_one_line():
    flat = dataclasses.replace(SHORT.peak, curve=(5 * MIB,) * 10)
    shown = short(dataclasses.replace(SHORT, peak=flat)).splitlines()
    assert [line[:12] for line in shown if "┤" in line or "│██" in line] == ["5.00 MiB ┤██"]


def test_passes_stand_under_their_columns():
    spans = (
        PhaseSpan("forward", 0, 50, 1),
        PhaseSpan("backward", 50, 150, 1),
        PhaseSpan("update", 150, 200, 1),
    )
    assert phases_line(spans, 200, 40, "|") == "forward   | backward          | update"
    assert phases_line(spans, 200, 16, "|") == "fwd | bwd   |"
    assert phases_line((), 200, 40, "|") == ""


def test_equal_checkpoints_are_one():
    others = [
        dataclasses.replace(
            EARNING,
            source=Source(at(line, "loss", "")),
            peak_without_nbytes=EARNING.peak_without_nbytes - line * MIB,
        )
        for line in (50, 51, 52, 53)
    ]
    first, second = grouped((EARNING, *others, USELESS))
    assert first == (USELESS,)  # what is to be changed comes first
    assert len(second) == 5
    assert places_text(second) == "model.py:49, 50, 51, 52 and 1 more"
    assert saved_text(second) == "each saves 697.00 MiB to 750.00 MiB for 4.8% more FLOPs"
    assert saved_text(first) == "the peak stays for 33.3% more FLOPs"
    (cheap,) = grouped((dataclasses.replace(EARNING, recompute_fraction=1e-5),))
    assert saved_text(cheap) == "saves 750.00 MiB for <0.1% more FLOPs"
    policy = dataclasses.replace(EARNING, policy="nothing_saveable")
    assert len(grouped((EARNING, policy))) == 2


def test_no_finding_is_dropped():
    useless = [
        dataclasses.replace(USELESS, function=f"f{i}", verdict=verdict, reason=f"reason {i}")
        for i, verdict in enumerate(set(Verdict) - {Verdict.EARNS, Verdict.NOT_JUDGED})
    ]
    report = dataclasses.replace(SHORT, checkpoints=(EARNING, *useless), findings=(FOUND,) * 2)
    for shown in (short(report), report_text(report=report)):
        for i in range(len(useless)):
            assert f"checkpoint of f{i}" in shown
            assert f"reason {i}" in shown
        assert "saved-but-recomputed" in shown
        assert shown.count("logits-at-peak  model.py:40\n") == 2
        assert "help: compute it in bfloat16" in shown
        assert f"{len(useless) + 3} findings" in shown


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (NEXT, "next: the checkpoint of loss saves nothing: jaxresid check model:loss --on tpu"),
        (dataclasses.replace(NEXT, words=()), "next: the checkpoint of loss saves nothing: jaxresid"
         ".check"),
        (NextStep("none", "nothing: no residual is kept"), "next: nothing: no residual is kept"),
        (NextStep("return", "return it", words=("a:b",)), "next: return it"),
    ],
)  # fmt: skip
def test_the_third_line_is_what_to_do(step, shown):
    assert short(dataclasses.replace(SHORT, next_step=step)).splitlines()[2] == shown


def test_a_command_can_be_copied():
    words = ["jaxresid", "plan", "fixtures/model.py:loss", "--arg", "f32[8, 4]", "--build", "--on",
             "gpu:h100", "--mesh", "data=4"]  # fmt: skip
    for width in (30, 40, 60, 100, 200):
        shown = text(ShellCommand(words, Text("next:")), width)
        _, _, command = shown.partition("next:")
        assert shlex.split(command.replace("\\\n", "")) == words
        for line in command.splitlines()[:-1]:
            assert not line or line.endswith(" \\")
            assert not line.rstrip(" \\").endswith(("--arg", "--on", "--mesh"))
