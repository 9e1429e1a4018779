"""`jaxresid.diff`: what moved or was renamed is followed, and what is new is found at its line."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.advice.diff.line_text import RENAMED, RESHAPED, SAME, likeness
from jaxresid.advice.diff.lines import Line, Role
from jaxresid.advice.diff.pairing import paired
from tests import edited_files
from tests.edited_files import line_of, planted, report_of
from tests.small import f32

FIXTURES = Path("fixtures/inspect")
# File, target, and where a residual is planted.
MODELS = {
    "gpt": ("gpt.py", "loss_scan", "mlp", "x"),
    "stack8": ("stack8.py", "scan_none", "norm", "x"),
    "block": ("block.py", "plain", "block", "x"),
    "step": ("train_step.py", "train_step", "norm", "x"),
    "linen": ("linen_model.py", "loss", "Mlp.__call__", "x"),
    "equinox": ("equinox_model.py", "loss_scan", "Attention.__call__", "x"),
    "nnx": ("nnx_model.py", "loss", "Attention.__call__", "x"),
}
PAIRS = [
    (model, edit)
    for model in MODELS
    for edit in edited_files.EDITS
    # The step's functions are arguments of others, by name, when the file is read.
    if model != "step" or edit in ("moved", "renamed", "reformatted")
]

PROGRAM = """
import jax
import jax.numpy as jnp

def norm(x, gain):
    v = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(v + 1e-5) * gain

def mlp(x, w1, w2):
    hidden = jnp.tanh(x @ w1)
    return hidden @ w2

def gate(x, w1, w2):
    opened = jnp.tanh(x @ w1)
    return jnp.exp(opened) @ w2

def loss(p, x):
    x = x + mlp(norm(x, p["g"]), p["w1"], p["w2"])
    x = x + gate(norm(x, p["g"]), p["w1"], p["w2"])
    return jnp.sum(x ** 2)

def loss_inputs():
    def f32(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)
    return {"g": f32(64), "w1": f32(64, 128), "w2": f32(128, 64)}, f32(8, 64)
"""

# What was written by hand: the part that is replaced -> what replaces it.
EDITED_BY_HAND = {
    "a helper for two copies": [
        ("def norm(", "def activated(y, w):\n    return jnp.tanh(y @ w)\n\ndef norm("),
        ("hidden = jnp.tanh(x @ w1)", "hidden = activated(x, w1)"),
        ("opened = jnp.tanh(x @ w1)", "opened = activated(x, w1)"),
    ],
    "a statement in two": [
        (
            "return x * jax.lax.rsqrt(v + 1e-5) * gain",
            "scale = jax.lax.rsqrt(v + 1e-5)\n    return x * scale * gain",
        )
    ],
    "two statements in one": [
        ("hidden = jnp.tanh(x @ w1)\n    return hidden @ w2", "return jnp.tanh(x @ w1) @ w2")
    ],
    "parameters and functions renamed": [
        ("def mlp(x, w1, w2)", "def feed_forward(inputs, up, down)"),
        ("hidden = jnp.tanh(x @ w1)", "h = jnp.tanh(inputs @ up)"),
        ("return hidden @ w2", "return h @ down"),
        ("x + mlp(", "x + feed_forward("),
    ],
    "functions in a class": [
        ("def mlp(x, w1, w2):", "class Layer:\n  @staticmethod\n  def mlp(x, w1, w2):"),
        ("x + mlp(", "x + Layer.mlp("),
    ],
    "in several lines": [
        (
            "return x * jax.lax.rsqrt(v + 1e-5) * gain",
            "return (\n        x\n        * jax.lax.rsqrt(\n            v + 1e-5\n        )\n"
            "        * gain  # by weight\n    )",
        ),
        ("hidden = jnp.tanh(x @ w1)", "hidden = jnp.tanh(\n        x\n        @ w1,\n    )"),
    ],
    "inlined": [
        (
            'x = x + mlp(norm(x, p["g"]), p["w1"], p["w2"])',
            'y = norm(x, p["g"])\n    h = jnp.tanh(y @ p["w1"])\n    x = x + h @ p["w2"]',
        )
    ],
}


def edited(text, replacements):
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


def grown(difference):
    return [line.location.line for line in difference.lines if line.growth_nbytes > 0]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return report_of(PROGRAM, tmp_path_factory.mktemp("program"))


@pytest.mark.parametrize("edit", EDITED_BY_HAND)
def test_what_is_edited_by_hand_is_no_difference(edit, program, tmp_path):
    after = report_of(edited(PROGRAM, EDITED_BY_HAND[edit]), tmp_path)
    found = jaxresid.diff(program, after)
    assert found.is_same, found.lines
    assert found.lines == ()
    assert found.kept_growth_nbytes == 0


@pytest.mark.parametrize("edit", EDITED_BY_HAND)
def test_a_residual_among_edits_by_hand_is_found_at_its_line(edit, program, tmp_path):
    text = edited(PROGRAM, EDITED_BY_HAND[edit])
    line = "    x = x + jnp.sin(x)  # planted\n    return jnp.sum(x ** 2)"
    text = text.replace("    return jnp.sum(x ** 2)", line)
    found = jaxresid.diff(program, report_of(text, tmp_path))
    assert not found.is_same
    assert grown(found) == [line_of(text)]
    assert sum(row.growth_nbytes for row in found.lines) == found.kept_growth_nbytes


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    made = {}

    def original(model):
        if model not in made:
            file, target, *_ = MODELS[model]
            text = (FIXTURES / file).read_text()
            made[model] = text, report_of(text, tmp_path_factory.mktemp(model), target)
        return made[model]

    return original


@pytest.mark.integration
@pytest.mark.parametrize(("model", "edit"), PAIRS)
def test_versions_of_a_file(model, edit, originals, tmp_path):
    for package in ("flax", "equinox"):
        if model in ("linen", "nnx", "equinox"):
            pytest.importorskip(package)
    text, before = originals(model)
    _, target, function, variable = MODELS[model]
    new = edited_files.EDITS[edit](text)
    same = jaxresid.diff(before, report_of(new, tmp_path / "same", target))
    assert same.is_same, same.lines
    more = planted(new, function, variable)
    found = jaxresid.diff(before, report_of(more, tmp_path / "more", target))
    assert grown(found) == [line_of(more)]


def sine(x):
    return jnp.sum(jnp.sin(x) ** 2)


def test_a_report_is_the_same_as_itself():
    report = jaxresid.inspect(sine)(f32(8, 8))
    found = jaxresid.diff(report, report)
    assert found.is_same
    assert found.same_lines == 1
    assert found.notes == ()


def test_other_shapes_are_changes_of_values_not_others():
    found = jaxresid.diff(jaxresid.inspect(sine)(f32(8, 8)), jaxresid.inspect(sine)(f32(16, 8)))
    (line,) = found.lines
    assert {value.change for value in line.values} == {"changed"}
    assert {(v.before.shape, v.after.shape) for v in line.values} == {((8, 8), (16, 8))}
    assert (line.kept_before_nbytes * 2, line.growth_nbytes) == (
        line.kept_after_nbytes,
        line.kept_before_nbytes,
    )


def test_sides_have_labels_and_figures(program):
    found = jaxresid.diff(program, program, labels=("main", "here"))
    assert (found.before.label, found.after.label) == ("main", "here")
    assert found.after.totals == program.totals
    assert found.after.peak_nbytes == program.peak.nbytes


def test_checkpoints_are_matched(tmp_path):
    with_one = edited(PROGRAM, [("x + mlp(", "x + jax.checkpoint(mlp)(")])
    with_dots = edited(
        PROGRAM,
        [("x + mlp(", "x + jax.checkpoint(mlp, policy=jax.checkpoint_policies.dots_saveable)(")],
    )
    plain, one, dots = (
        report_of(text, tmp_path / str(i)) for i, text in enumerate((PROGRAM, with_one, with_dots))
    )
    (added,) = jaxresid.diff(plain, one).checkpoints
    assert (added.before, added.changes) == (None, ("added",))
    (gone,) = jaxresid.diff(one, plain).checkpoints
    assert (gone.after, gone.changes) == (None, ("removed",))
    (other,) = jaxresid.diff(one, dots).checkpoints
    assert "policy" in other.changes
    assert (other.before.policy, other.after.policy) == (None, "dots_saveable")


def finding(code, function, name="transposed-host-scan"):
    location = jaxresid.Location("model.py", 3, 0, function, code)
    return jaxresid.Finding(name, "It is so.", jaxresid.Source(location))


@pytest.mark.parametrize(
    ("before", "after", "new", "gone"),
    [
        (finding("y = f(x)", "a"), finding("z = f(w)", "b"), 0, 0),
        (finding("y = f(x)", "a"), finding("return 1", "a"), 0, 0),
        (finding("y = f(x)", "a"), finding("return 1", "b"), 1, 1),
        (finding("y = f(x)", "a"), finding("y = f(x)", "a", "free-residual"), 1, 1),
    ],
)
def test_findings_are_followed(before, after, new, gone, program):
    found = jaxresid.diff(replace(program, findings=(before,)), replace(program, findings=(after,)))
    assert (len(found.found), len(found.gone)) == (new, gone)
    assert found.is_same == (new == 0)


def test_warnings_and_flags_of_one_side_are_notes(program):
    flags = {**program.jax.flags, "jax_scan3": True}
    other = replace(
        program,
        warnings=(*program.warnings, "early"),
        jax=replace(program.jax, flags=flags),
    )
    found = jaxresid.diff(program, other, labels=("main", "here"))
    assert found.notes == ("jax_scan3: off → on", "here: early")
    assert found.is_same


def test_peaks_by_other_means_are_not_compared(program):
    found = jaxresid.diff(program, replace(program, peak=None))
    assert found.peak_growth_nbytes is None
    assert not found.differs_in_peak
    assert any("peaks are not compared" in note for note in found.notes)


def test_modules_of_repeated_layers_are_one(tmp_path):
    text = """
import jax
import jax.numpy as jnp

def loss(x):
    for i in range(3):
        with jax.named_scope(f"layer_{i}"):
            x = jnp.sin(x)
    return jnp.sum(x ** 2)

def loss_inputs():
    return (jax.ShapeDtypeStruct((4, 4), jnp.float32),)
"""
    before = report_of(text, tmp_path / "a")
    after = report_of(text.replace("jnp.sin(x)", "jnp.sin(jnp.cos(x))"), tmp_path / "b")
    (line,) = (row for row in jaxresid.diff(before, after).lines if row.growth_nbytes > 0)
    assert line.scope == "layer_*"
    (value,) = (each for each in line.values if each.change == "added")
    assert value.count == 3


def test_peaks_have_a_tolerance(program):
    def peak(nbytes):
        return replace(program, peak=replace(program.peak, nbytes=nbytes))

    assert jaxresid.diff(peak(10_000), peak(10_090)).is_same
    assert not jaxresid.diff(peak(10_000), peak(10_200)).is_same
    assert not jaxresid.diff(peak(10_000), peak(10_090), tolerance=0.001).is_same
    with pytest.raises(jaxresid.InputsError, match="not a share"):
        jaxresid.diff(program, program, tolerance=2)


def test_arguments_that_are_renamed_are_the_same():
    def before(p):
        return jnp.sum(p["w"] @ p["x"])

    def after(p):
        return jnp.sum(p["weights"] @ p["x"])

    was = jaxresid.inspect(before)({"w": f32(4, 8), "x": f32(8, 2)})
    now = jaxresid.inspect(after)({"weights": f32(4, 8), "x": f32(8, 2)})
    found = jaxresid.diff(was, now)
    assert found.inputs == ()
    wider = jaxresid.inspect(after)({"weights": f32(16, 8), "x": f32(8, 2)})
    (value,) = jaxresid.diff(now, wider).inputs
    assert (value.change, value.path, value.growth_nbytes) == (
        "changed",
        "p['weights']",
        12 * 8 * 4,
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("h = jnp.sin(x)", "return jnp.sin( x )  # why", SAME),
        ("h = jnp.sin(x)", "y = jnp.sin(z)", RENAMED),
        ("h = mlp(x, w)", "h = feed_forward(x, w)", RESHAPED),
        ("x += f(y)", "x = x + f(y)", SAME),
        ("h = nn.Dense(", "hidden = nn.Dense()", SAME),
        ("for p in layers:", "for p in (layers):", SAME),
    ],
)
def test_likeness_of_lines(one, other, expected):
    assert likeness(one, other) == likeness(other, one) == expected


def test_other_lines_are_less_alike():
    assert likeness("h = jnp.sin(x)", "h = jnp.sin(jnp.cos(x))") < RESHAPED
    assert likeness("a = b + c", "raise ValueError('no')") < 0.5
    assert likeness("", "x") == 0


@pytest.mark.parametrize("text", ["(" * 200, "1" + "+1" * 5000, "'", "\x00", "x = (\\", "é" * 999])
def test_no_line_is_too_odd(text):
    assert 0 <= likeness(text, "x = f(y)") <= 1
    assert likeness(text, text) == SAME


def test_a_part_of_a_statement_is_like_the_whole():
    whole = "qkv = jnp.dot(x, wqkv).reshape(batch, sequence, 3, HEADS, width // HEADS)"
    assert likeness("jnp.dot(x, wqkv)", whole) > 0.6


def test_lines_with_nothing_in_common_are_no_pair():
    def line(code, function):
        where = jaxresid.Location("model.py", 1, 0, function, code)
        return Line(jaxresid.Source(where), "", "", Counter({role: 1}), (), frozenset({function}))

    role = Role("sin", None, jaxresid.Aval("float32", (4,), 4))
    assert paired([line("raise ValueError('no')", "f")], [line("x = y @ z", "g")]) == ()
