"""Renderers, on reports made by hand: whole outputs, no jax."""

import dataclasses
import html
import json
import re

import jsonschema
import pytest
from rich.console import Console

from jaxresid.render.notebook.report import report_html
from jaxresid.render.report.checkpoints import figure_parts, site_parts
from jaxresid.render.report.peak import curve_lines
from jaxresid.render.report.rows import GROUPS, View, rows
from jaxresid.render.report.sparkline import column, sparkline
from jaxresid.render.report.split import render_split
from jaxresid.render.report.text import render_report
from jaxresid.render.report.totals import totals_lines
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import (
    Argument,
    Aval,
    Checkpoint,
    Compiled,
    Computed,
    Constant,
    Consumer,
    Cost,
    Derivative,
    Equation,
    EstimatedVerdict,
    Finding,
    IntervalBasis,
    JaxInfo,
    Listing,
    Literal,
    LiveValue,
    Location,
    Mark,
    Mesh,
    Peak,
    Phases,
    PlaceInfo,
    Report,
    Residual,
    Source,
    Split,
    Target,
    Totals,
    Variable,
    Verdict,
)
from jaxresid.serialization.encoding import json_document
from tests.schemas import schema, validate

RANGE = "Range of nine in ten programs, by"
MIB = 1024**2


def at(line, function, code, file="model.py"):
    return Location(file, line, 4, function, code)


SOFTMAX = at(31, "attention", "p = jax.nn.softmax(scores, axis=-1)")
OUT = at(32, "attention", "return p @ v")
LIBRARY = at(641, "softmax", "e = exp(x)", "/env/site-packages/jax/_src/nn/functions.py")
AT_OUT = Source(OUT)
IN_SOFTMAX = Source(SOFTMAX, LIBRARY, scope="layers_*/attn")
DENSE = at(271, "Dense.__call__", "y = dot(x)", "/env/site-packages/flax/linen/linear.py")


def layer(i):
    return Residual(
        Aval("bfloat16", (2, 4, 1024, 1024), 2),
        Computed(
            "exp",
            Source(SOFTMAX, LIBRARY, scope=f"layers_{i}/attn"),
            stack=(at(9, "loss", "x = layer(x)"), SOFTMAX),
            within=("jit layer",),
        ),
        consumers=(Consumer("mul", SOFTMAX), Consumer("dot_general", OUT)),
    )


COST = Phases(
    forward=Cost(59_650_000_000, 0, 480_000_000, 402_650_000, 7_000_000_000),
    backward=Cost(119_300_000_000, 0, 960_000_000, 0, 14_000_000_000),
    recompute=Cost(),
)
PEAK = Peak(
    nbytes=100 * MIB,
    profile="tpu",
    source=Source(OUT),
    primitive="dot_general",
    phase="backward",
    arguments_nbytes=10 * MIB,
    outputs_nbytes=10 * MIB,
    temporaries_nbytes=80 * MIB,
    aliased_nbytes=0,
    host_nbytes=0,
    live=(
        LiveValue(
            "residual",
            32 * MIB,
            layer(0).aval,
            2,
            "exp",
            None,
            IN_SOFTMAX,
            "forward",
        ),
        LiveValue("temporary", 28 * MIB, None, 1, "conv", None, AT_OUT, "backward"),
        LiveValue("temporary", 20 * MIB, Aval("float32", (5, MIB), 4), 1, "dot_general"),
        LiveValue(
            "gradient",
            8 * MIB,
            Aval("float32", (2, MIB), 4),
            1,
            "transpose",
            None,
            Source(OUT),
            "backward",
        ),
        LiveValue("argument", 4 * MIB, Aval("float32", (MIB,), 4), path="params['w'][0]"),
        LiveValue("argument", 4 * MIB, Aval("float32", (MIB,), 4), path="params['w'][1]"),
        LiveValue("argument", 2 * MIB, Aval("bfloat16", (MIB,), 2), path="x"),
        LiveValue(
            "output", 2 * MIB, Aval("bfloat16", (MIB,), 2), 1, "add", None, AT_OUT, "backward"
        ),
    ),
    breakdown=(
        *(("temporary", 48 * MIB), ("residual", 32 * MIB)),
        *(("argument", 10 * MIB), ("gradient", 8 * MIB), ("output", 2 * MIB)),
    ),
    curve=tuple(MIB * n for n in (20, 30, 50, 60, 80, 90, 100, 70, 40, 20)),
    curve_at=6,
)
BASIS = IntervalBasis(
    98,
    ("tpu:v5e", "tpu:v5p"),
    {"jaxlib": ("0.12.0.1",), "libtpu": ("0.0.52",)},
    MIB,
    1024 * MIB,
)
REPORT = Report(
    target=Target("model:loss", ("params['w'][0]", "params['w'][1]", "x")),
    jax=JaxInfo("0.10.2", {"jax_remat3": True, "jax_use_direct_linearize": True}),
    place=PlaceInfo("tpu:v5p", "tpu", "as asked", "tpu", 95 * 1024 * MIB),
    residuals=(
        Residual(Aval("float32", (512, 512), 4), Argument("params['w'][0]")),
        Residual(Aval("float32", (512, 512), 4), Argument("params['w'][1]")),
        layer(0),
        layer(1),
        Residual(
            Aval("float32", (12, 256, 256), 4),
            Computed(
                "dot_general",
                Source(at(40, "mlp", "h = x @ w[0]"), DENSE),
                name="qkv[0]",
                named_at=at(41, "mlp", 'h = checkpoint_name(h, "qkv[0]")'),
                within=("scan ×12", "remat"),
                through=("reduce_precision", "transpose", "reshape"),
            ),
            trips=12,
            marks=(Mark.PRIMAL_OUTPUT,),
        ),
        Residual(
            Aval("float32", (256, 256), 4, "host"),
            Computed("add", path="x", through=("device_put",)),
            marks=(Mark.OFFLOADED,),
        ),
        Residual(Aval("int32", (3,), 4), Constant()),
        Residual(Aval("float32", (), 4), Literal("0.5")),
    ),
    cost=COST,
    peak=PEAK,
    warnings=("held static: rate [0.5]",),
)

USELESS = Checkpoint(
    function="loss",
    source=Source(at(60, "step", "grads = jax.grad(jax.checkpoint(loss))(params)")),
    policy=None,
    prevent_cse=True,
    calls=1,
    trips=1,
    kept_nbytes=0,
    kept_without_nbytes=35 * MIB,
    recompute_flops=60_130_000_000,
    recompute_fraction=1 / 3,
    peak_nbytes=100 * MIB,
    peak_without_nbytes=100 * MIB,
    ratio=0.0,
    verdict=Verdict.SAVES_NOTHING,
    reason="it is all of the loss: everything is recomputed at once, right where it is needed",
    shape="whole",
)
EARNING = dataclasses.replace(
    USELESS,
    function="layer",
    source=Source(at(49, "loss", "x, _ = jax.lax.scan(jax.checkpoint(layer), x, params)")),
    policy="dots_saveable",
    prevent_cse=False,
    trips=48,
    kept_nbytes=18 * MIB,
    kept_without_nbytes=768 * MIB,
    recompute_flops=8_590_000_000,
    recompute_fraction=0.0476,
    peak_without_nbytes=850 * MIB,
    ratio=1.0,
    verdict=Verdict.EARNS,
    reason="the peak falls by 750.00 MiB",
    shape=None,
    findings=(
        Finding(
            "saved-but-recomputed",
            "'h[0]' is saved, and the dot_general before it runs again",
            Source(at(41, "mlp", "h = gelu(x @ w)")),
            "name the product instead",
            {"name": "h[0]", "recompute_flops": 17, "kept_nbytes": 3 * MIB},
        ),
    ),
)
ESTIMATED = EstimatedVerdict(Verdict.SAVES_NOTHING, "it is small", 90 * MIB, 91 * MIB, 0.1)
CHECKPOINTED = dataclasses.replace(
    REPORT,
    checkpoints=(EARNING, USELESS),
    cost=dataclasses.replace(COST, recompute=Cost(8_590_000_000)),
)


def text(renderable, width=80):
    console = Console(width=width, file=None, record=True, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def report_text(width=80, report=REPORT, *, encoding="utf-8", **view):
    """The text with everything, or with what `view` shows."""
    chosen = View(**({"verbose": True} | view if "show" not in view else view))
    return text(render_report(report, chosen, encoding), width)


def block(report, start, width=80):
    """The lines of a block of the report, by how its first begins."""
    blocks = report_text(width, report).split("\n\n")
    found = [b for b in blocks if b.strip().startswith(start)]
    assert len(found) == 1, blocks
    return found[0]


def test_totals():
    assert REPORT.totals == Totals(
        arguments_nbytes=2 * MIB,
        computed_nbytes=(16 + 16 + 3) * MIB,
        host_nbytes=MIB // 4,
        constants_nbytes=12,
    )
    assert totals_lines(REPORT)[0] == "# computed 35.00 MiB (36700160 B)"


def test_everything_at_80_columns():
    assert (
        report_text()
        == """\
model:loss  on tpu:v5p  with its gradient
peak about 100 MiB

jax 0.10.2 jax_remat3 · tpu:v5p: 95.00 GiB per device; as asked
differentiated: params (2 leaves), x

 35.00 MiB  kept for the backward pass  3 residuals
  2.00 MiB  arguments the backward pass reads (already in memory)  2 residuals
256.00 KiB  kept in host memory  1 residual
      12 B  constants  1 residual

 60.13 GFLOP  forward  matmul 99.2%, elementwise 0.8%
120.26 GFLOP  backward  matmul 99.2%, elementwise 0.8%

▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚▚██████████████████████████▞▞▞▞▞▞▞▞░░░░░░▤▤
▚ temporaries 48.00 MiB (48.0%)  █ residuals 32.00 MiB (32.0%)
▞ arguments 10.00 MiB (10.0%)  ░ gradients 8.00 MiB (8.0%)
▤ outputs 2.00 MiB (2.0%)
100.00 MiB ┤                                         ███████
           │                                  ██████████████
           │                            ████████████████████
           │                            ███████████████████████████
           │                     ██████████████████████████████████
           │              █████████████████████████████████████████
           │              ████████████████████████████████████████████████
 20.00 MiB ┤▁▁▁▁▁▁▁███████████████████████████████████████████████████████▁▁▁▁▁▁
                          peak at model.py:32 attention ▲

live at the peak, at dot_general in the backward pass
model.py:32 attention  return p @ v
32.00 MiB  32.0%  ×2 bf16[2,4,1024,1024]  residual, exp, forward
                  model.py:31 attention  p = jax.nn.softmax(scores, axis=-1)
                  in jax.nn.softmax · scope layers_*/attn
28.00 MiB  28.0%  scratch memory of conv
                  model.py:32 attention  return p @ v
20.00 MiB  20.0%  f32[5,1048576]  temporary, dot_general
 8.00 MiB   8.0%  f32[2,1048576]  gradient, transpose, backward
                  model.py:32 attention  return p @ v
 8.00 MiB   8.0%  ×2 f32[1048576]  argument params['w'][0..1]
2 smaller values, 4.00 MiB

residuals
 32.00 MiB  90.8%  ×2 bf16[2,4,1024,1024]  exp  in jit layer
                   model.py:31 attention  p = jax.nn.softmax(scores, axis=-1)
                   in jax.nn.softmax · scope layers_*/attn · needed by
                   model.py:31 (mul), model.py:32 (dot_general)
  3.00 MiB   8.5%  f32[12,256,256]  named 'qkv[0]': dot_general → reshape →
                   transpose  in scan ×12 › remat
                   model.py:40 mlp  h = x @ w[0]
                   also an output · in flax/linen/linear.py:271 Dense · named at
                   model.py:41
256.00 KiB   0.7%  f32<host>[256,256]  add of x → device_put
                   offloaded
      12 B         i32[3]  constant that the function closes over

warning: held static: rate [0.5]
No interval: too few programs were compiled to say how far off this estimate is.
Residual bytes are what autodiff keeps; the program's peak memory is above."""
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("group_by", [None, *GROUPS])
def test_no_number_is_cut(width, group_by):
    shown = report_text(width, CHECKPOINTED, group_by=group_by, all=True)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    found = rows(REPORT, View(group_by=group_by, all=True)).shown
    from jaxresid.base.text.units import format_bytes, format_flops

    for row in found:
        assert format_bytes(row.nbytes) in shown
    for live in PEAK.live[:4]:
        assert format_bytes(live.nbytes) in shown
    for c in CHECKPOINTED.checkpoints:
        for with_it, without in (
            (c.peak_nbytes, c.peak_without_nbytes),
            (c.kept_nbytes, c.kept_without_nbytes),
        ):
            assert format_bytes(with_it) in shown
            assert format_bytes(without) in shown
        assert format_flops(c.recompute_flops) in shown


class TestCost:
    def test_recompute_with_checkpoints_only(self):
        assert (
            block(CHECKPOINTED, "60.13")
            == """\
 60.13 GFLOP  forward  matmul 99.2%, elementwise 0.8%
120.26 GFLOP  backward  matmul 99.2%, elementwise 0.8%
  8.59 GFLOP  recompute  4.8% of forward + backward"""
        )
        assert "recompute" not in block(REPORT, "60.13")

    def test_checkpoints_that_recompute_nothing(self):
        free = dataclasses.replace(REPORT, checkpoints=(USELESS,))
        assert block(free, "60.13").splitlines()[2].strip() == "0 FLOP  recompute"

    def test_a_step_can_recompute_without_known_checkpoints(self):
        step = dataclasses.replace(CHECKPOINTED, checkpoints=())
        assert "8.59 GFLOP  recompute" in block(step, "60.13")

    def test_what_has_no_rule_makes_every_figure_a_lower_bound(self):
        cost = Phases(
            dataclasses.replace(COST.forward, uncosted=("pallas_call",), notes=("one [trip]",)),
            dataclasses.replace(COST.backward, uncosted=("ffi_call",)),
            Cost(8_590_000_000),
        )
        assert (
            block(dataclasses.replace(CHECKPOINTED, cost=cost), ">=")
            == """\
 >= 60.13 GFLOP  forward  matmul 99.2%, elementwise 0.8%
>= 120.26 GFLOP  backward  matmul 99.2%, elementwise 0.8%
  >= 8.59 GFLOP  recompute  about 4.8% of forward + backward
no FLOPs known for: ffi_call, pallas_call
note: one [trip]"""
        )

    def test_notes_alone_leave_the_figures_as_they_are(self):
        cost = dataclasses.replace(COST, recompute=Cost(notes=("the more expensive branch",)))
        shown = report_text(report=dataclasses.replace(REPORT, cost=cost))
        assert "note: the more expensive branch" in shown
        assert ">=" not in shown

    def test_convolutions(self):
        cost = Phases(Cost(conv_flops=3, elementwise_flops=1), Cost(), Cost())
        lines = block(dataclasses.replace(REPORT, cost=cost), "4 FLOP").splitlines()
        assert lines == [
            "4 FLOP  forward  convolution 75.0%, elementwise 25.0%",
            "0 FLOP  backward",
        ]


class TestPeak:
    def of(self, width=80, **changes):
        peak = dataclasses.replace(PEAK, **changes)
        return report_text(width, dataclasses.replace(REPORT, peak=peak), show="peak")

    def test_a_lower_bound(self):
        shown = self.of(uncounted=("pallas_call", "ffi_call"))
        assert "\npeak >= 100.00 MiB (estimate)\n" in shown
        assert "not counted: scratch memory of pallas_call, ffi_call" in shown
        assert "not counted" not in self.of()

    def test_host_and_donated(self):
        host, donated = self.of(host_nbytes=3 * MIB), self.of(aliased_nbytes=5 * MIB)
        assert "3.00 MiB of host memory in addition." in host
        assert "5.00 MiB of outputs reuse donated arguments and are counted once." in donated
        assert "host memory" not in donated
        assert "donated" not in host

    def test_brackets_are_no_markup(self):
        shown = self.of(primitive="[bold]", source=Source(at(1, "f[red]", "x[red] + y[0]")))
        assert "at [bold] in" in shown
        assert "model.py:1 f[red]  x[red] + y[0]" in shown

    @pytest.mark.parametrize(
        ("memory", "said", "others"),
        [
            (110 * MIB, "fits 110.00 MiB", {}),
            (109 * MIB, "too close to 109.00 MiB: --compile decides", {}),
            (80 * MIB, "too close to 80.00 MiB: --compile decides", {}),
            (79 * MIB, "does not fit 79.00 MiB", {}),
            (110 * MIB, "fits 110.00 MiB", {"libtpu": "0.0.40"}),
        ],
    )
    def test_the_interval_answers_and_says_what_it_is_measured_with(self, memory, said, others):
        basis = dataclasses.replace(BASIS, others=others, widened=1.26 if others else 1.0)
        place = dataclasses.replace(REPORT.place, memory_nbytes=memory, intervals=basis)
        peak = dataclasses.replace(PEAK, low_nbytes=80 * MIB, high_nbytes=110 * MIB)
        report = dataclasses.replace(REPORT, place=place, peak=peak)
        shown = report_text(report=report, show="peak")
        assert shown.splitlines()[1] == f"peak about 100 MiB (80.0 to 110) · {said}"
        remark = (
            "Range 26 % wider for libtpu 0.0.40 (measured: 0.0.52)."
            if others
            else f"{RANGE} 98 with libtpu 0.0.52."
        )
        assert remark in shown
        plain = html.unescape(report_html(report))
        assert f"<br>peak about 100 MiB (80.0 to 110) · {said}<" in plain
        assert f"<p>{remark}</p>" in plain
        # XLA's answer is the better one.
        asked = dataclasses.replace(report, compiled=(Compiled("tpu:v5p"),))
        line = report_text(report=asked, show="peak").splitlines()[1]
        assert line == "XLA reports no peak · estimate about 100 MiB (80.0 to 110)"
        lower_bound = dataclasses.replace(peak, uncounted=("pallas_call",), low_nbytes=None)
        report = dataclasses.replace(report, peak=lower_bound)
        assert remark not in report_text(report=report, show="peak")

    def test_without_an_interval_nothing_is_said_to_fit(self):
        shown = self.of()
        assert shown.splitlines()[1] == "peak about 100 MiB"
        assert "fit" not in shown
        assert "No interval: too few programs" in shown

    def test_no_estimate(self):
        report = dataclasses.replace(REPORT, peak=None)
        assert "peak about" not in report_text(report=report)
        assert "peak about" not in report_html(report)

    def test_no_place_no_op_nothing_live(self):
        shown = self.of(source=Source(), primitive=None, phase="forward", live=(), curve=())
        assert "live at the peak, in the forward pass\n\n" in shown
        assert "▁" not in shown

    @pytest.mark.parametrize("phase", ["forward", "backward", "recompute", "update"])
    def test_every_phase_has_words(self, phase):
        assert "live at the peak, at dot_general in the " in self.of(phase=phase)

    def test_kinds_of_a_step(self):
        kinds = ("parameters", "optimizer-state", "batch", "constant")
        shown = self.of(
            breakdown=tuple((kind, 25 * MIB) for kind in kinds),
            live=tuple(LiveValue(kind, 25 * MIB, None, path=kind[0]) for kind in kinds),
        )
        assert "▓ parameters 25.00 MiB (25.0%)  ▒ optimizer state 25.00 MiB (25.0%)" in shown
        assert "25.00 MiB  25.0%  optimizer state o" in shown
        assert "smaller" not in shown

    def test_repeated_arguments_are_one_row_and_can_be_the_biggest(self):
        many = tuple(
            LiveValue("argument", 4 * MIB, Aval("float32", (MIB,), 4), path=f"layers[{i}]['w']")
            for i in range(12)
        )
        shown = self.of(live=PEAK.live + many)
        line = shown[shown.index("live at the peak") :].splitlines()[2]
        assert line == "48.00 MiB  48.0%  ×12 f32[1048576]  argument layers[0..11]['w']"

    def test_the_lowest_stands_opposite_the_peak(self):
        early = dataclasses.replace(PEAK, curve_at=0)
        assert curve_lines(early, 80)[1] == "   ^ peak" + " " * 55 + "lowest 20.00 MiB"

    def test_no_room_for_the_lowest(self):
        peak = dataclasses.replace(PEAK, curve=(2**30, 2**31, 2**30), curve_at=1)
        assert curve_lines(peak, 20)[1] == " " * 10 + "^ peak"
        assert curve_lines(peak, 40)[1] == "lowest 1.00 GiB" + " " * 5 + "^ peak"


class TestSparkline:
    def test_levels(self):
        assert sparkline((0, 1, 2, 3, 4, 5, 6, 7, 8), 9) == "▁▂▃▄▅▆▇██"
        assert sparkline((0, 1, 2, 3, 4, 5, 6, 7, 8), 9, "latin-1") == ".:-=+*#@@"
        assert sparkline((1, 8), 2, "no-such-encoding") == ".@"

    def test_between_the_lowest_and_the_highest(self):
        assert sparkline((1000, 1007, 1004), 3) == "▁█▅"

    def test_a_flat_one(self):
        assert sparkline((5, 5), 3) == sparkline((0,), 3) == "███"

    @pytest.mark.parametrize("count", [1, 2, 7, 60, 199, 200])
    @pytest.mark.parametrize("width", [1, 40, 60, 80, 120, 250])
    def test_no_peak_is_lost(self, count, width):
        for at in range(count):
            values = [10] * count
            values[at] = 100
            shown = sparkline(values, width)
            assert len(shown) == width
            assert shown[column(at, count, width)] == "█"


class TestFlow:
    def test_breaks_between_parts(self):
        assert text(FlowingParts(("aa bb", "cc", "dd"), indent=2), 10) == "aa bb · cc\n  dd"
        assert text(FlowingParts(("aa bb", "cc", "dd"), indent=2), 9) == "aa bb\n  cc · dd"

    def test_a_part_that_is_too_long_breaks_at_its_spaces(self):
        assert text(FlowingParts(("a", "bb cc dd ee ff", "g"), indent=2), 8) == (
            "a\n  bb cc\n  dd ee\n  ff\n  g"
        )

    def test_brackets_are_no_markup(self):
        assert text(FlowingParts(("a[red]", "b[0]"))) == "a[red] · b[0]"


class TestCheckpoints:
    def test_block(self):
        assert (
            block(CHECKPOINTED, "2 checkpoints")
            == """\
2 checkpoints  with → without each
earns its keep  layer  model.py:49  policy dots_saveable  prevent_cse=False
  ×48 trips
  kept 18.00 MiB → 768.00 MiB · peak 100.00 MiB → 850.00 MiB
  recompute 8.59 GFLOP (4.8%) · 87.31 MiB saved per GFLOP · r 1.00
  the peak falls by 750.00 MiB
  saved-but-recomputed, model.py:41: 'h[0]' is saved, and the dot_general before
  it runs again; name the product instead
saves nothing  loss  model.py:60  no policy
  kept 0 B → 35.00 MiB · peak 100.00 MiB either way
  recompute 60.13 GFLOP (33.3%) · r 0.00
  it is all of the loss: everything is recomputed at once, right where it is
  needed"""
        )

    def test_by_xla(self):
        c = dataclasses.replace(EARNING, by="xla", findings=(), estimated=ESTIMATED)
        shown = block(dataclasses.replace(REPORT, checkpoints=(c,)), "1 checkpoint")
        assert shown.splitlines()[-4:] == [
            "  kept 18.00 MiB → 768.00 MiB · XLA's peak 100.00 MiB → 850.00 MiB",
            "  recompute 8.59 GFLOP (4.8%) · 87.31 MiB saved per GFLOP · r 1.00",
            "  the peak falls by 750.00 MiB",
            "  the estimate differs: saves nothing, peak 90.00 MiB → 91.00 MiB",
        ]
        agrees = dataclasses.replace(c, verdict=ESTIMATED.verdict)
        assert "estimate" not in block(
            dataclasses.replace(REPORT, checkpoints=(agrees,)), "1 checkpoint"
        )
        assert "the estimate differs: saves nothing" in report_html(
            dataclasses.replace(REPORT, checkpoints=(c,))
        )

    def test_unconfirmed(self):
        c = dataclasses.replace(USELESS, unconfirmed="it took longer than 9 s")
        report = dataclasses.replace(REPORT, checkpoints=(c,))
        last = block(report, "1 checkpoint").splitlines()[-1]
        assert last == "  unconfirmed by XLA: it took longer than 9 s"
        assert "; unconfirmed by XLA: it took" in report_html(report)

    def test_none(self):
        assert "1 checkpoint" not in report_text()
        assert "earns" not in report_text()

    def test_one(self):
        one = dataclasses.replace(REPORT, checkpoints=(USELESS,))
        assert block(one, "1 checkpoint  with")

    @pytest.mark.parametrize(
        ("calls", "trips", "shown"),
        [
            (1, 1, ()),
            (1, 48, ("×48 trips",)),
            (8, 8, ("×8 calls",)),
            (8, 96, ("×8 calls, 96 trips",)),
        ],
    )
    def test_times(self, calls, trips, shown):
        c = dataclasses.replace(USELESS, calls=calls, trips=trips)
        assert site_parts(c) == ("loss", "model.py:60", "no policy", *shown)

    def test_brackets_are_no_markup(self):
        c = dataclasses.replace(
            EARNING,
            function="layers[0]",
            policy="save_only_these_names('h[bold]')",
            reason="It keeps [red]h[/red].",
            shape=None,
        )
        shown = block(dataclasses.replace(REPORT, checkpoints=(c,)), "1 checkpoint", 120)
        for piece in (c.function, c.policy, c.reason, "'h[0]' is saved"):
            assert piece in shown

    def test_no_place(self):
        assert site_parts(dataclasses.replace(USELESS, source=Source())) == ("loss", "no policy")

    def test_figures_that_there_are_not(self):
        c = dataclasses.replace(USELESS, recompute_flops=0, recompute_fraction=0.0, ratio=None)
        assert figure_parts(c)[2:] == ("recompute 0 FLOP",)

    def test_what_stays_is_said_once(self):
        c = dataclasses.replace(USELESS, kept_nbytes=MIB, kept_without_nbytes=MIB)
        c = dataclasses.replace(c, peak_nbytes=2 * MIB, peak_without_nbytes=2 * MIB + 1)
        assert figure_parts(c)[:2] == ("kept 1.00 MiB either way", "peak 2.00 MiB either way")
        nothing = dataclasses.replace(c, kept_nbytes=0, kept_without_nbytes=0)
        assert figure_parts(nothing)[0] == "peak 2.00 MiB either way"
        more = dataclasses.replace(c, kept_nbytes=0)
        assert figure_parts(more)[0] == "kept 0 B → 1.00 MiB"

    def test_no_price_for_what_is_not_saved(self):
        worse = dataclasses.replace(USELESS, peak_nbytes=200 * MIB, ratio=-2.857)
        assert figure_parts(worse)[2:] == ("recompute 60.13 GFLOP (33.3%)", "r -2.86")

    def test_a_lower_bound(self):
        assert figure_parts(dataclasses.replace(EARNING, uncosted=("ffi_call",)))[2:] == (
            "recompute >= 8.59 GFLOP (about 4.8%)",
            "<= 87.31 MiB saved per GFLOP",
            "r 1.00",
        )

    def test_a_finding_at_the_checkpoints_own_line(self):
        finding = Finding("value-saved-twice", "h[0] is kept twice.", EARNING.source)
        c = dataclasses.replace(EARNING, findings=(finding,))
        shown = block(dataclasses.replace(REPORT, checkpoints=(c,)), "1 checkpoint")
        assert shown.splitlines()[-1] == "  value-saved-twice: h[0] is kept twice"

    @pytest.mark.parametrize(
        ("verdict", "shown", "color"),
        [
            (Verdict.EARNS, "earns its keep", "32"),
            (Verdict.SAVES_NOTHING, "saves nothing", "33"),
            (Verdict.COSTS_MEMORY, "costs memory", "31"),
            (Verdict.UNDONE, "undone by XLA", "33"),
            (Verdict.OVERRIDDEN, "overridden", "33"),
            (Verdict.MATCHED_NOTHING, "policy matched nothing", "33"),
        ],
    )
    def test_verdicts(self, verdict, shown, color):
        c = dataclasses.replace(USELESS, verdict=verdict)
        report = dataclasses.replace(REPORT, checkpoints=(c,))
        console = Console(
            width=80, force_terminal=True, color_system="standard", highlight=False, no_color=False
        )
        with console.capture() as captured:
            console.print(render_report(report, View()))
        assert f"\x1b[1;{color}m{shown}\x1b[0m" in captured.get()


GRAD = Derivative("grad", Location("model.py", 7, None, "step", "jax.grad(loss)"))


@pytest.mark.parametrize(
    ("options", "question"),
    [
        ({}, "with its gradient"),
        ({"gradients": (GRAD,)}, "with its gradient"),
        ({"other_mode": "program"}, "with its gradient (mode program: without)"),
        ({"mode": "program", "gradients": (GRAD,), "is_step": True}, "training step"),
        ({"mode": "program", "gradients": (GRAD,)}, "as it is, with the gradient it takes"),
        ({"mode": "program", "gradients": (GRAD,) * 3}, "as it is, with the 3 gradients it takes"),
        ({"mode": "program"}, "as it is, no gradient"),
        (
            {"mode": "program", "other_mode": "loss"},
            "as it is, no gradient (mode loss: with it)",
        ),
    ],
)
def test_the_first_line_says_which_question_is_answered(options, question):
    report = dataclasses.replace(REPORT, target=Target("model:f", (), **options))
    assert report_text(report=report).splitlines()[0] == f"model:f  on tpu:v5p  {question}"
    assert f"<b>model:f  on tpu:v5p  {question}</b>" in report_html(report)


@pytest.mark.parametrize(
    ("axes", "shown"),
    [
        ((("data", 1), ("fsdp", 8), ("tensor", 1)), "mesh fsdp=8  bytes of one of 8 devices"),
        ((("data", 2), ("model", 4)), "mesh data=2,model=4  bytes of one of 8 devices"),
        ((("data", 1),), "mesh data=1\n"),
    ],
)
def test_a_mesh_is_shown_by_the_axes_that_split_something(axes, shown):
    report = dataclasses.replace(REPORT, mesh=Mesh(axes))
    assert shown in report_text(report=report, width=200)


def test_report_prints_itself(capsys):
    CHECKPOINTED.print()
    short = capsys.readouterr().out
    assert "2 checkpoints" in short
    assert "bf16[2,4,1024,1024]" not in short
    CHECKPOINTED.print(verbose=True)
    assert "bf16[2,4,1024,1024]" in capsys.readouterr().out


def test_all_shows_arguments_and_literals():
    shown = report_text(all=True)
    assert "2.00 MiB         ×2 f32[512,512]  argument params['w'][0..1]" in shown
    assert "literal 0.5" in shown
    assert "argument" not in block(REPORT, "residuals")


def test_top_and_min_bytes_say_what_they_hide():
    assert "3 smaller rows, 3.25 MiB; --all shows them." in report_text(top=1)
    assert "2 smaller rows, 256.01 KiB; --all shows them." in report_text(min_bytes=MIB)
    assert "smaller row" not in report_text()
    assert "--min-bytes hides them" in report_text(min_bytes=MIB, all=True, top=None)


@pytest.mark.parametrize(
    ("group_by", "first", "count"),
    [
        ("line", "model.py:31 attention", 4),
        ("function", "model.py attention", 4),
        ("name", "(unnamed)", 2),
        ("primitive", "exp", 4),
        ("scope", "layers_0/attn", 4),
        ("none", None, 5),
    ],
)
def test_groups(group_by, first, count):
    found = rows(REPORT, View(group_by=group_by)).shown
    assert found[0].title == first
    assert len(found) == count
    assert sum(row.nbytes for row in found) == sum(
        r.nbytes for r in REPORT.residuals if r.origin.kind in ("computed", "constant")
    )


@pytest.mark.parametrize("group_by", [None, *GROUPS])
def test_biggest_first(group_by):
    backwards = dataclasses.replace(REPORT, residuals=REPORT.residuals[::-1])
    sizes = [row.nbytes for row in rows(backwards, View(group_by=group_by, all=True)).shown]
    assert sizes == sorted(sizes, reverse=True)


def test_group_by_argument_shows_arguments():
    titles = {row.title: row.nbytes for row in rows(REPORT, View(group_by="argument")).shown}
    assert titles["params['w'][*]"] == 2 * MIB
    assert titles["x"] == MIB // 4


def test_rows_differ_where_the_reader_could_tell():
    def count(*, source=None, **changes):
        origin = layer(1).origin
        changed = dataclasses.replace(origin.source, **(source or {}))
        origin = dataclasses.replace(origin, source=changed, **changes)
        both = (layer(0), dataclasses.replace(layer(1), origin=origin))
        return len(rows(dataclasses.replace(REPORT, residuals=both), View()).shown)

    assert count() == 1
    assert count(source={"scope": "layers_7/attn"}) == 1
    assert count(source={"scope": "layers_0/mlp"}) == 2
    assert count(source={"location": OUT}) == 2
    assert count(source={"caller": OUT}) == 2
    assert count(within=("remat",)) == 2
    assert count(name="p") == 2


def test_json_keeps_the_schema():
    value = json.loads(json_document(CHECKPOINTED))
    validate(value, "report")
    assert [r["origin"]["kind"] for r in value["residuals"]] == (
        ["argument"] * 2 + ["computed"] * 4 + ["constant", "literal"]
    )
    named = value["residuals"][4]
    assert named["origin"]["name"] == "qkv[0]"
    assert named["origin"]["location"] == {
        "file": "model.py",
        "line": 40,
        "column": 5,  # 1-based outside
        "function": "mlp",
        "code": "h = x @ w[0]",
    }
    assert value["residuals"][2]["consumers"][1]["location"]["line"] == 32
    assert value["totals"]["host_nbytes"] == MIB // 4


REST = ("recompute", "update", "program")


def test_json_of_the_cost():
    cost = Phases(
        Cost(1, 2, 3, 4, 5, ("ffi_call",), collectives=(("psum", 6),)),
        Cost(10, 20, 30, 40, 50, collectives=(("psum", 60),)),
        Cost(notes=("one trip",)),
    )
    assert json.loads(json_document(dataclasses.replace(REPORT, cost=cost)))["cost"] == {
        "forward_flops": 6,
        "backward_flops": 60,
        "recompute_flops": 0,
        "program_flops": 0,
        "matmul_flops": 11,
        "conv_flops": 22,
        "elementwise_flops": 33,
        "transcendentals": 44,
        "nbytes": 55,
        "collectives": {"psum": 66},
        "uncosted": ["ffi_call"],
        "notes": ["one trip"],
        "phases": {
            name: {
                "flops": 6 * n,
                "matmul_flops": n,
                "conv_flops": 2 * n,
                "elementwise_flops": 3 * n,
                "transcendentals": 4 * n,
                "nbytes": 5 * n,
                "uncosted": ["ffi_call"] * (name == "forward"),
                "notes": ["one trip"] * (name == "recompute"),
                "collectives": {"psum": 6 * n} if n else {},
            }
            for name, n in (("forward", 1), ("backward", 10), *((name, 0) for name in REST))
        },
    }


def test_json_of_the_peak():
    peak = json.loads(json_document(REPORT))["peak"]
    assert peak["location"]["line"] == 32
    assert sum(peak["breakdown"].values()) == peak["nbytes"] == 100 * MIB
    assert peak["curve"][peak["curve_at"]] == peak["nbytes"]
    assert [(v["shape"], v["dtype"], v["path"]) for v in peak["live"][1:6:3]] == [
        (None, None, None),
        ([MIB], "float32", "params['w'][0]"),
    ]
    assert (peak["phase"], peak["primitive"], peak["profile"]) == (
        *("backward", "dot_general"),
        "tpu",
    )


def test_json_of_the_checkpoints():
    earning, useless = json.loads(json_document(CHECKPOINTED))["checkpoints"]
    location, finding = earning.pop("location"), earning["findings"].pop()
    assert location["line"] == 49
    assert earning == {
        "library": None,
        "caller": None,
        "scope": "",
        "defined": None,
        "function": "layer",
        "policy": "dots_saveable",
        "prevent_cse": False,
        "calls": 1,
        "trips": 48,
        "kept_nbytes": 18 * MIB,
        "kept_without_nbytes": 768 * MIB,
        "peak_nbytes": 100 * MIB,
        "peak_without_nbytes": 850 * MIB,
        "recompute_flops": 8_590_000_000,
        "recompute_fraction": 0.0476,
        "uncosted": [],
        "ratio": 1.0,
        "saved_per_gflop": 750 * MIB / 8.59,
        "verdict": "earns-its-keep",
        "reason": "the peak falls by 750.00 MiB",
        "shape": None,
        "findings": [],
        "by": "estimate",
        "estimated": None,
        "unconfirmed": None,
    }
    assert finding["location"]["line"] == 41
    assert finding["measured"] == {"name": "h[0]", "recompute_flops": 17, "kept_nbytes": 3 * MIB}
    assert (useless["verdict"], useless["shape"]) == ("saves-nothing", "whole")


def changed(value, path, new):
    """A copy with one key of one of its objects set, to what the schema must refuse."""
    copy = json.loads(json.dumps(value))
    *outer, last = path
    inner = copy
    for key in outer:
        inner = inner[key]
    inner[last] = new
    return copy


@pytest.mark.integration
@pytest.mark.parametrize(
    ("path", "new"),
    [
        (("extra",), 1),
        (("schema",), 2),
        (("totals",), {}),
        (("target", "mode"), "auto"),
        (("cost", "extra"), 1),
        (("cost", "forward_flops"), -1),
        (("cost", "phases", "forward", "flops"), 0.5),
        (("cost", "phases", "update"), {}),
        (("peak", "profile"), "accelerator"),
        (("peak", "phase"), "linearize"),
        (("peak", "breakdown", "activations"), 1),
        (("peak", "live", 0, "kind"), "activation"),
        (("peak", "live", 0, "count"), 0),
        (("peak", "live", 0, "extra"), 0),
        (("checkpoints", 0, "verdict"), "useless"),
        (("checkpoints", 0, "shape"), "inner"),
        (("checkpoints", 0, "extra"), 1),
        (("checkpoints", 0, "findings", 0, "extra"), 1),
    ],
    ids=lambda v: ".".join(map(str, v)) if isinstance(v, tuple) else "",
)
def test_the_schema_refuses_what_it_does_not_know(path, new):
    value = json.loads(json_document(CHECKPOINTED))
    validate(value, "report")
    with pytest.raises(jsonschema.ValidationError):
        validate(changed(value, path, new), "report")


def test_json_of_a_compiled_verdict():
    c = dataclasses.replace(EARNING, by="xla", estimated=ESTIMATED)
    late = dataclasses.replace(USELESS, unconfirmed="late")
    value = json.loads(json_document(dataclasses.replace(REPORT, checkpoints=(c, late))))
    validate(value, "report")
    first, second = value["checkpoints"]
    assert (first["by"], first["unconfirmed"]) == ("xla", None)
    assert first["estimated"] == {
        "verdict": "saves-nothing",
        "reason": "it is small",
        "peak_nbytes": 90 * MIB,
        "peak_without_nbytes": 91 * MIB,
        "ratio": 0.1,
    }
    assert (second["by"], second["estimated"], second["unconfirmed"]) == ("estimate", None, "late")
    for key in first["estimated"]:
        del (copy := json.loads(json.dumps(value)))["checkpoints"][0]["estimated"][key]
        with pytest.raises(jsonschema.ValidationError):
            validate(copy, "report")


@pytest.mark.integration
@pytest.mark.parametrize("verdict", Verdict)
def test_the_schema_knows_every_verdict(verdict):
    c = dataclasses.replace(USELESS, verdict=verdict, shape=None, ratio=None, recompute_flops=0)
    value = json.loads(json_document(dataclasses.replace(REPORT, checkpoints=(c,))))
    validate(value, "report")
    assert value["checkpoints"][0]["verdict"] == verdict.value
    listed = schema("report")["$defs"]["checkpoint"]["properties"]["verdict"]["enum"]
    assert len(listed) == len(Verdict)


@pytest.mark.integration
def test_the_schema_requires_every_key():
    """What the schema promises is always there: no key of an object can be left out."""
    value = json.loads(json_document(CHECKPOINTED))
    for name in ("cost", "peak"):
        for key in value[name]:
            less = {**value, name: {k: v for k, v in value[name].items() if k != key}}
            with pytest.raises(jsonschema.ValidationError):
                validate(less, "report")
    for key in value["checkpoints"][0]:
        less = {k: v for k, v in value["checkpoints"][0].items() if k != key}
        with pytest.raises(jsonschema.ValidationError):
            validate({**value, "checkpoints": [less]}, "report")


def test_json_of_a_step():
    target = Target("model:step", ("params['w']",), "program", (GRAD,), is_step=True)
    step = dataclasses.replace(REPORT, target=target)
    value = json.loads(json_document(step))
    validate(value, "report")
    assert value["target"] == {
        "name": "model:step",
        "mode": "program",
        "differentiated": ["params['w']"],
        "gradients": [{"kind": "grad", "location": value["target"]["gradients"][0]["location"]}],
        "is_step": True,
        "other_mode": None,
    }


def test_the_schema_lists_every_mark():
    listed = schema("report")["$defs"]["residual"]["properties"]["marks"]["items"]["enum"]
    assert set(listed) == {mark.value for mark in Mark}


def test_html_is_escaped():
    bad = dataclasses.replace(
        REPORT,
        target=Target("<script>", ()),
        residuals=(
            Residual(
                Aval("float32", (2,), 4),
                Computed("mul", Source(at(1, "<lambda>", "x < y & z > 1")), name="<b>"),
            ),
        ),
    )
    html = report_html(bad)
    for raw in ("<script>", "<lambda>", "x < y", "<b>named", "'<b>'"):
        assert raw not in html
    assert "x &lt; y &amp; z &gt; 1" in html
    hostile = dataclasses.replace(
        CHECKPOINTED,
        checkpoints=(dataclasses.replace(EARNING, function="<lambda>", reason="a < b"),),
        peak=dataclasses.replace(PEAK, source=Source(at(2, "<lambda>", "y < z"))),
    )
    html = report_html(hostile)
    for raw in ("<lambda>", "a < b", "y < z"):
        assert raw not in html
    assert "a &lt; b" in html
    assert "y &lt; z" in html


def test_html_has_what_the_text_has():
    html = report_html(CHECKPOINTED)
    plain = re.sub(r' style="[^"]*"', "", html).replace("&#x27;", "'")
    for piece in (
        "<td>8.59 GFLOP</td><td>recompute</td><td>4.8% of forward + backward</td>",
        "<br>peak about 100 MiB</p>",
        "<p>the peak is at dot_general in the backward pass model.py:32 attention return p @ v</p>",
        "live at the peak: temporaries 48.00 MiB (48.0%), residuals 32.00 MiB (32.0%)",
        "<td>×2 f32[1048576]  argument params['w'][0..1]</td>",
        "<p>2 smaller values, 4.00 MiB</p>",
        "<td>layer · model.py:49 · policy dots_saveable · prevent_cse=False · ×48 trips</td>",
        "<td>earns its keep: the peak falls by 750.00 MiB</td>",
        "kept 18.00 MiB → 768.00 MiB · peak 100.00 MiB → 850.00 MiB",
        "saved-but-recomputed, model.py:41: 'h[0]' is saved",
        "<p>warning: held static: rate [0.5]</p>",
    ):
        assert piece in plain
    # headings of four tables; three phases, five live values, two checkpoints, four residuals
    assert html.count("<tr>") == 4 + 3 + 5 + 2 + 4
    assert ">checkpoint</th>" not in report_html(REPORT)


A = Variable("a", Aval("float32", (2,), 4), 0)
B = Variable("b", Aval("float32", (2,), 4))
SINE = Equation("sin", (), (A,), (B,), at(3, "f", "y = jnp.sin(x)"))
SPLIT = Split(
    target=Target("m:f", ("x",)),
    jax=JaxInfo("0.10.2", {}),
    forward=Listing((A,), (SINE,), (B, A)),
    backward=Listing(
        (A,),
        (
            Equation(
                "scan",
                (("length", "3"),),
                (A,),
                (B,),
                at(4, "f", "scan(g)"),
                (Listing((A,), (SINE,), (B,)),),
            ),
            Equation("jit", (("name", "g"),), (A,), (B,), at(4, "f", "scan(g)"), folded=7),
        ),
        (B,),
        hidden=5,
    ),
    residuals=REPORT.residuals[:1],
)


def test_split_stacked():
    shown = text(render_split(SPLIT, source=False))
    body = shown.partition("\n\n")[2]
    assert (
        body
        == """\
forward pass: 1 eqns
in  a:f32[2]#0
b:f32[2] = sin a#0
out b a#0

backward pass: 7 eqns
in  a:f32[2]#0
b:f32[2] = scan[length=3] a#0
  in  a:f32[2]#0
  b:f32[2] = sin a#0
  out b
b:f32[2] = jit[name=g] a#0 {… 7 eqns}
… 5 more eqns (--max-eqns shows them)
out b"""
    )


def test_split_with_source():
    shown = text(render_split(SPLIT, source=True))
    assert "model.py:3 f  y = jnp.sin(x)\n  b:f32[2] = sin a#0" in shown
    assert "model.py:4 f  scan(g)\n  b:f32[2] = scan[length=3] a#0" in shown


def test_split_side_by_side():
    shown = text(render_split(SPLIT, source=False), 140)
    line = next(line for line in shown.splitlines() if "forward pass" in line)
    assert "backward pass" in line


def test_split_json_keeps_the_schema():
    value = json.loads(json_document(SPLIT))
    validate(value, "split")
    assert value["backward"]["equations"][0]["inner"][0]["equations"][0]["primitive"] == "sin"
    assert value["forward"]["inputs"][0]["residual"] == 0
