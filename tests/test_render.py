"""Renderers, on reports made by hand: whole outputs, no jax."""

import dataclasses
import json
from importlib import resources

import jsonschema
import pytest
from rich.console import Console

from jaxresid.model import (
    Argument,
    Aval,
    Computed,
    Constant,
    Consumer,
    Equation,
    JaxInfo,
    Listing,
    Literal,
    Location,
    Mark,
    Report,
    Residual,
    Split,
    Target,
    Totals,
    Value,
)
from jaxresid.render.html import report_html
from jaxresid.render.json import report_json, split_json
from jaxresid.render.rows import GROUPS, View, rows
from jaxresid.render.split import render_split
from jaxresid.render.text import render_report
from jaxresid.render.totals import totals_lines

MIB = 1024**2


def at(line, function, code, file="model.py"):
    return Location(file, line, 4, function, code)


SOFTMAX = at(31, "attention", "p = jax.nn.softmax(scores, axis=-1)")
OUT = at(32, "attention", "return p @ v")
LIBRARY = at(641, "softmax", "e = exp(x)", "/env/site-packages/jax/_src/nn/functions.py")
DENSE = at(271, "Dense.__call__", "y = dot(x)", "/env/site-packages/flax/linen/linear.py")


def layer(i):
    return Residual(
        Aval("bfloat16", (2, 4, 1024, 1024), 2),
        Computed(
            "exp",
            SOFTMAX,
            library=LIBRARY,
            stack=(at(9, "loss", "x = layer(x)"), SOFTMAX),
            scope=f"layers_{i}/attn",
            within=("jit layer",),
        ),
        consumers=(Consumer("mul", SOFTMAX), Consumer("dot_general", OUT)),
    )


REPORT = Report(
    target=Target("model:loss", ("params['w'][0]", "params['w'][1]", "x")),
    jax=JaxInfo("0.10.2", {"jax_remat3": True, "jax_use_direct_linearize": True}),
    residuals=(
        Residual(Aval("float32", (512, 512), 4), Argument("params['w'][0]")),
        Residual(Aval("float32", (512, 512), 4), Argument("params['w'][1]")),
        layer(0),
        layer(1),
        Residual(
            Aval("float32", (12, 256, 256), 4),
            Computed(
                "dot_general",
                at(40, "mlp", "h = x @ w[0]"),
                library=DENSE,
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
            Computed("add", None, path="x", through=("device_put",)),
            marks=(Mark.OFFLOADED,),
        ),
        Residual(Aval("int32", (3,), 4), Constant()),
        Residual(Aval("float32", (), 4), Literal("0.5")),
    ),
    warnings=("held static: rate [0.5]",),
)


def text(renderable, width=80):
    console = Console(width=width, file=None, record=True, force_terminal=False, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def report_text(width=80, **view):
    return text(render_report(REPORT, View(**view)), width)


def test_totals():
    assert REPORT.totals == Totals(
        arguments_nbytes=2 * MIB,
        computed_nbytes=(16 + 16 + 3) * MIB,
        host_nbytes=MIB // 4,
        constants_nbytes=12,
    )
    assert totals_lines(REPORT)[0] == "# computed 35.00 MiB (36700160 B)"


def test_text_at_80_columns():
    assert (
        report_text()
        == """\
model:loss  jax 0.10.2 jax_remat3
differentiated: params (2 leaves), x

 35.00 MiB  kept for the backward pass  3 residuals
  2.00 MiB  arguments that it needs, alive anyway  2 residuals
256.00 KiB  kept in host memory  1 residual
      12 B  constants  1 residual

 32.00 MiB  90.8%  ×2 bf16[2,4,1024,1024]  exp  in jit layer
                   model.py:31 attention  p = jax.nn.softmax(scores, axis=-1)
                   in jax.nn.softmax · scope layers_*/attn · needed by
                   model.py:31 (mul), model.py:32 (dot_general)
  3.00 MiB   8.5%  f32[12,256,256]  named 'qkv[0]': dot_general → reshape →
                   transpose  in scan ×12 › remat
                   model.py:40 mlp  h = x @ w[0]
                   also an output · in flax/linen/linear.py:271 Dense.__call__ ·
                   named at model.py:41
256.00 KiB   0.7%  f32<host>[256,256]  add of x → device_put
                   offloaded
      12 B         i32[3]  constant that the function closes over

warning: held static: rate [0.5]
Residual bytes are what autodiff keeps; they are not the program's peak memory."""
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("group_by", [None, *GROUPS])
def test_no_number_is_cut(width, group_by):
    shown = report_text(width, group_by=group_by, all=True)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    found = rows(REPORT, View(group_by=group_by, all=True)).shown
    from jaxresid.units import format_bytes

    for row in found:
        assert format_bytes(row.nbytes) in shown


def test_all_shows_arguments_and_literals():
    shown = report_text(all=True)
    assert "2.00 MiB         ×2 f32[512,512]  argument params['w'][*]" in shown
    assert "literal 0.5" in shown
    assert "argument" not in report_text().partition("\n\n")[2].partition("\n\n")[2]


def test_top_and_min_bytes_say_what_they_hide():
    assert "3 smaller rows, 3.25 MiB; --all shows them." in report_text(top=1)
    assert "2 smaller rows, 256.01 KiB; --all shows them." in report_text(min_bytes=MIB)
    assert "smaller" not in report_text()
    assert "--min-bytes hides them" in report_text(min_bytes=MIB, all=True, top=None)


@pytest.mark.parametrize(
    ("group_by", "first", "count"),
    [
        ("line", "model.py:31 attention", 4),
        ("function", "model.py attention", 4),
        ("name", "(without a name)", 2),
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
    def count(**changes):
        origin = dataclasses.replace(layer(1).origin, **changes)
        both = (layer(0), dataclasses.replace(layer(1), origin=origin))
        return len(rows(dataclasses.replace(REPORT, residuals=both), View()).shown)

    assert count() == 1
    assert count(scope="layers_7/attn") == 1
    assert count(scope="layers_0/mlp") == 2
    assert count(location=OUT) == 2
    assert count(within=("remat",)) == 2
    assert count(name="p") == 2


def schema(name):
    file = resources.files("jaxresid") / "schema" / f"{name}.schema.json"
    loaded = json.loads(file.read_text())
    jsonschema.Draft202012Validator.check_schema(loaded)
    return loaded


def test_json_keeps_the_schema():
    value = json.loads(report_json(REPORT))
    jsonschema.validate(value, schema("report"))
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


def test_the_schema_refuses_what_it_does_not_know():
    value = json.loads(report_json(REPORT))
    for change in ({"extra": 1}, {"schema": 2}, {"totals": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value | change, schema("report"))


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
                Computed("mul", at(1, "<lambda>", "x < y & z > 1"), name="<b>"),
            ),
        ),
    )
    html = report_html(bad)
    for raw in ("<script>", "<lambda>", "x < y", "<b>named", "'<b>'"):
        assert raw not in html
    assert "x &lt; y &amp; z &gt; 1" in html
    assert report_html(REPORT).count("<tr>") == 5  # the heading and four rows


A = Value("a", Aval("float32", (2,), 4), 0)
B = Value("b", Aval("float32", (2,), 4))
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
    value = json.loads(split_json(SPLIT))
    jsonschema.validate(value, schema("split"))
    assert value["backward"]["equations"][0]["inner"][0]["equations"][0]["primitive"] == "sin"
    assert value["forward"]["inputs"][0]["residual"] == 0
