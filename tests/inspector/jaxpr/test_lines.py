"""Lines in code that the user does not own: the user's line, the library's and the module, in the
same words in every row; checkpoints stand at what they are of."""

import functools
import importlib
import inspect
import json
import os
import sys

import jax
import jax.numpy as jnp
import pytest
from small import f32

import jaxresid
from jaxresid.base.text.layer_paths import folded, folded_scopes
from jaxresid.inspector.call import calling
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints.sites import body
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.report import inspection
from jaxresid.render.report.residuals import row_text
from jaxresid.render.report.rows import View, rows
from jaxresid.render.report.text import render_report
from jaxresid.results import Computed, Verdict

CORE = """
import functools
import jax

class Layer:
    def __init__(self, name):
        self.name = name

    def __call__(self, *args, **kwargs):
        with jax.named_scope(self.name):
            return self.call(*args, **kwargs)

def remat(layer):
    @functools.wraps(layer.call)  # which JAX then says it traced
    def core_fn(w, x):
        return layer(w, x)

    def inner(*args):
        return jax.checkpoint(core_fn)(*args)

    return inner
"""
LAYERS = """
import functools
import jax
import jax.numpy as jnp
from lines_nn.core import Layer

class Dense(Layer):
    def call(self, w, x):
        return jnp.tanh(jnp.sin(x @ w))

def decorated(fun):
    return fun

class Norm(Layer):
    @decorated
    def call(self, w, x):
        shifted = x - x.mean()
        return jnp.exp(shifted) * w.sum()
"""
MODELS = """
import jax
from lines_nn.core import remat
from lines_nn.layers import Dense, Norm

class Encoder:
    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __call__(self, params, x):
        with jax.named_scope("encoder"):
            for i, w in enumerate(params):
                for made in (Norm, Dense):
                    layer = made(f"{made.__name__.lower()}_{i}")
                    x = (remat(layer) if made.__name__ in self.wrapped else layer)(w, x)
        return x
"""
USER = """
import jax
import lines_models

def loss_of(wrapped):
    model = lines_models.Encoder(wrapped)

    def loss(params, x):
        hidden = model(params, x)
        return (hidden ** 2).sum()

    return loss

loss = loss_of(("Norm", "Dense"))

def step(params, x):
    grads = jax.grad(loss)(params, x)
    return [p - 0.1 * g for p, g in zip(params, grads)]

def loss_inputs():
    import jax.numpy as jnp
    w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return [w] * 3, jax.ShapeDtypeStruct((256, 64), jnp.float32)

step_inputs = loss_inputs
"""
ARGS = ([f32(64, 64)] * 3, f32(256, 64))


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A module of the user's around a model of one library made of layers of another."""
    site = tmp_path / "site-packages"
    (site / "lines_nn").mkdir(parents=True)
    (site / "lines_models").mkdir()
    (site / "lines_nn" / "__init__.py").write_text("")
    (site / "lines_nn" / "core.py").write_text(CORE)
    (site / "lines_nn" / "layers.py").write_text(LAYERS)
    (site / "lines_models" / "__init__.py").write_text(MODELS)
    (tmp_path / "lines_user.py").write_text(USER)
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = ("lines_user", "lines_models", "lines_nn", "lines_nn.core", "lines_nn.layers")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("lines_user")
    for name in names:
        sys.modules.pop(name, None)


def line(text, source=USER):
    return next(i for i, row in enumerate(source.splitlines(), 1) if text in row)


def both(user):
    yield jaxresid.inspect(user.loss)(*ARGS)
    yield jaxresid.inspect(user.step)(*ARGS)


class TestCheckpoints:
    @pytest.mark.integration
    def test_are_of_the_modules_that_a_library_wrapped_at_one_line(self, user):
        for report in both(user):
            dense, norm = sorted(report.checkpoints, key=lambda c: c.function)
            assert (norm.function, dense.function) == ("Norm", "Dense")
            assert (norm.calls, dense.calls) == (3, 3)
            assert dense.defined.file.endswith("lines_nn/layers.py")
            assert dense.defined.line == line("def call(self, w, x):", LAYERS)
            assert dense.defined.function == "Dense.call"
            # Below its decorator.
            assert norm.defined.line == line("@decorated", LAYERS) + 1
            for found in (norm, dense):
                assert found.location.file == "lines_user.py"
                assert found.location.line == line("model(params, x)")
                assert found.source.library.function == "Encoder.__call__"
            assert dense.source.scope.endswith("encoder/dense_*")
            assert norm.source.scope.endswith("encoder/norm_*")

    @pytest.mark.parametrize("gone", ["Norm", "Dense"])
    def test_each_has_its_own_counterfactual(self, user, gone):
        (left,) = {"Norm", "Dense"} - {gone}
        plain = jaxresid.inspect(user.loss_of((left,)))(*ARGS)
        report = jaxresid.inspect(user.loss)(*ARGS)
        (found,) = [c for c in report.checkpoints if c.function == gone]
        assert found.kept_without_nbytes == plain.totals.computed_nbytes
        assert found.peak_without_nbytes == pytest.approx(plain.peak.nbytes, rel=1e-3)
        assert found.verdict is not Verdict.NOT_JUDGED

    @pytest.mark.integration
    def test_text_has_where_it_is_defined_and_called(self, user):
        for report in both(user):
            text = printed(report)
            where = f"lines_nn/layers.py:{line('def call(self, w, x):', LAYERS)}"
            assert "Dense  " in text
            assert f"{where}" in text
            assert f"called at lines_user.py:{line('model(params, x)')}" in text
            assert max(map(len, text.splitlines())) <= 80
            assert "core_fn" not in text

    @pytest.mark.integration
    def test_places_have_the_same_names(self, user):
        for fun in (user.loss, user.step):
            at = f"lines_user.py:{line('model(params, x)')} (Dense)"
            made = jaxresid.compare(fun, policies=["none"], at=at)(*ARGS)
            assert [place.partition(" ×")[0] for place in made.places] == [at]
            assert made.places[0].endswith("×3 calls")


class TestRows:
    @pytest.mark.integration
    def test_what_is_live_at_the_peak_is_named_as_residuals_are(self, user):
        for report in both(user):
            named = [live for live in report.peak.live if live.source.scope and live.primitive]
            assert named
            for live in named:
                assert live.location.file == "lines_user.py"
                assert live.location.line == line("model(params, x)")
                called = [live.source.caller, live.source.library]
                assert any("lines_models" in c.file for c in called if c)
            assert any(live.source.library.file.endswith("layers.py") for live in named)
            sources = {r.origin.source for r in report.residuals if isinstance(r.origin, Computed)}
            assert {s.location.line for s in sources} >= {line("model(params, x)")}
            assert not any(s.location.file.endswith("layers.py") for s in sources)

    def test_a_row_names_both_libraries_and_the_module(self, user):
        report = jaxresid.inspect(user.loss_of(()))(*ARGS)
        text = " ".join(printed(report).split())
        at = line("x = (remat(layer)", MODELS)
        sine = line("jnp.tanh(jnp.sin", LAYERS)
        assert f"in lines_models/__init__.py:{at} Encoder › lines_nn/layers.py:{sine}" in text
        assert "scope encoder/dense_*" in text

    def test_json_has_the_same_keys_everywhere(self, user):
        report = json.loads(jaxresid.inspect(user.loss)(*ARGS).to_json())
        keys = {"location", "library", "caller", "scope"}
        rows_ = [report["peak"], *report["peak"]["live"], *report["checkpoints"]]
        rows_ += [r["origin"] for r in report["residuals"]]
        assert all(keys <= set(row) for row in rows_)

    @pytest.mark.integration
    def test_compile_has_the_same_words_for_the_same_arrays(self, user):
        loss = user.loss_of(())
        report = jaxresid.inspect(loss)(*ARGS)
        (cpu,) = jaxresid.compile(loss, on="cpu", cache=False)(*ARGS).compiled
        said = {(row.source, row_text(row).rpartition("  ")[2]) for row in shown(report)}
        matched = [b for b in cpu.buffers if b.origin is not None]
        assert matched
        for buffer in matched:
            assert buffer.source.location.line == line("model(params, x)")
            assert any(buffer.residual in words and buffer.source.library == source.library
                       for source, words in said)  # fmt: skip


def shown(report):
    return rows(report, View(top=None)).shown


def printed(report):
    from rich.console import Console

    console = Console(width=80, color_system=None, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(render_report(report, View(verbose=True)))
    return capture.get()


# -- what a checkpoint is of -----------------------------------------------------------------------


def layer(w, x):
    return jnp.sin(x @ w) @ w


def layer_of_nothing(x):
    return x


class Module:
    def __call__(self, w, x):
        return jnp.sin(x @ w) @ w

    def attend(self, w, x):
        return jnp.sin(x @ w) @ w

    @jax.checkpoint
    def checkpointed(self, w, x):
        return jnp.sin(x @ w) @ w


def wrapped(fun):
    def call(*args):
        return fun(*args)

    return call


def names(fun):
    report = jaxresid.inspect(lambda w, x: fun(w, x).sum())(f32(8, 8), f32(4, 8))
    return [c.function for c in report.checkpoints]


@pytest.mark.parametrize(
    ("fun", "name"),
    [
        (layer, "layer"),
        (lambda w, x: layer(w, x), "layer"),  # noqa: PLW0108
        (lambda w, x: jnp.sin(x @ w) @ w, "<lambda>"),
        (functools.partial(layer), "layer"),
        (wrapped(layer), "layer"),
        (jax.jit(layer), "layer"),
        (Module(), "Module"),
        (Module().attend, "Module.attend"),
        (wrapped(Module()), "Module"),
        (jax.nn.gelu, "gelu"),
    ],
)
def test_the_function_that_a_checkpoint_is_of(fun, name):
    if fun is jax.nn.gelu:
        assert names(lambda w, x: jax.checkpoint(fun)(x @ w)) == [name]
    else:
        assert names(jax.checkpoint(fun)) == [name]


def test_functions_at_one_line_are_checkpoints_of_their_own():
    def other(w, x):
        return jnp.cos(x @ w) @ w

    def fun(w, x):
        for made in (layer, other, layer):
            x = jax.checkpoint(made)(w, x)
        return x

    assert names(fun) == ["layer", "other"]


def test_one_function_at_two_lines_is_two_checkpoints():
    def fun(w, x):
        x = jax.checkpoint(layer)(w, x)
        return jax.checkpoint(layer)(w, x)

    assert names(fun) == ["layer", "layer"]


def test_a_body_without_eqns_is_what_jax_says():
    closed = jax.make_jaxpr(layer_of_nothing)(1.0)
    assert body(getattr(closed, "jaxpr", closed), Frames()).name == "layer_of_nothing"


LINEN = """
import flax.linen as nn
import jax

class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(16)(nn.gelu(nn.Dense(32, name="up")(x)))

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        made = nn.remat(Block)
        for i in range(3):
            x = made(name=f"block_{i}")(x)
        return nn.remat(nn.Dense)(16, name="head")(x)
"""


@pytest.mark.integration
def test_linen(tmp_path, monkeypatch):
    linen = pytest.importorskip("flax.linen")
    assert linen
    (tmp_path / "lines_linen.py").write_text(LINEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    net = importlib.import_module("lines_linen").Net()
    x = jnp.zeros((4, 16))
    params = net.init(jax.random.key(0), x)
    block, head = jaxresid.inspect(lambda p, x: (net.apply(p, x) ** 2).sum())(params, x).checkpoints
    assert (block.function, block.calls, block.source.scope) == ("Block", 3, "Net/block_*")
    assert (block.defined.file, block.defined.line) == ("lines_linen.py", 7)
    assert block.location.line == 15
    assert (head.function, head.source.scope) == ("Dense", "Net/head")
    assert head.defined.file.endswith(os.path.join("flax", "linen", "linear.py"))


SCANNED = """
import flax.linen as nn
import jax.numpy as jnp

class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        h = nn.Dense(256)(nn.LayerNorm()(x))
        return x + nn.Dense(64)(nn.gelu(h)), None

class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        blocks = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=8)
        x, _ = blocks(name="blocks")(x, None)
        return nn.remat(nn.Dense)(64, name="head")(x)
"""


@pytest.mark.integration
def test_findings_name_the_library_and_the_module(tmp_path, monkeypatch):
    pytest.importorskip("flax.linen")
    (tmp_path / "lines_scanned.py").write_text(SCANNED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    net = importlib.import_module("lines_scanned").Net()
    x = jnp.zeros((32, 64))
    args = net.init(jax.random.key(0), x), x

    def loss(params, x):
        return net.apply(params, x).sum()

    found = inspection(Question(loss, args))
    (loop,) = found.report.findings
    assert (loop.name, loop.location.line) == ("unwrapped-loop-body", line("x, _ =", SCANNED))
    assert os.path.join("flax", "core") in loop.source.library.file
    assert loop.source.scope == "Net"
    said = {v.name: v.message for v in jaxresid.check(loss)(*args)}
    assert os.path.join("flax", "core") in said["unwrapped-loop-body"]
    assert said["unwrapped-loop-body"].endswith("; module Net)")
    assert said["checkpointed-last-stage"].endswith(" (module Net/head)")


@pytest.mark.integration
def test_nnx_and_equinox():
    nnx = pytest.importorskip("flax.nnx")
    eqx = pytest.importorskip("equinox")

    class Mlp(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(16, 16, rngs=rngs)

        @nnx.remat
        def __call__(self, x):
            return jnp.sin(self.up(x)) * 2

    class Block(eqx.Module):
        up: eqx.nn.Linear

        def __call__(self, x):
            return jnp.sin(self.up(x)) * 2

    def loss(model, block, x):
        x = eqx.filter_checkpoint(block)(model(x)[0])
        return eqx.filter_checkpoint(block.up)(x).sum()

    block = Block(eqx.nn.Linear(16, 16, key=jax.random.key(0)))
    report = jaxresid.inspect(loss)(Mlp(nnx.Rngs(0)), block, jnp.zeros((4, 16)))
    assert [c.function for c in report.checkpoints] == ["Mlp", "Block", "Linear"]


# -- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        ([], ""),
        (["blocks[3].mlp"], "blocks[3].mlp"),
        ([f"blocks[{i}].mlp" for i in range(12)], "blocks[0..11].mlp"),
        (["blocks[0].w", "blocks[2].w"], "blocks[*].w"),
        (["layers/0/mlp", "layers/1/mlp"], "layers/*/mlp"),
        (["a_1/b_2", "a_1/b_3"], "a_1/b_*"),
        (["p['w'][0]", "p['w'][1]"], "p['w'][0..1]"),
    ],
)
def test_folded(paths, text):
    assert folded(paths) == text


@pytest.mark.parametrize(
    ("scopes", "text"),
    [
        (["", ""], ""),
        (["dense", "dense_1", "dense_2"], "dense_*"),
        (["dense", "dense"], "dense"),
        (["net/attn/query", "net/attn_1/query", "net/attn/key"], "net/attn_*/query, net/attn/key"),
        (["layer/0", "layer/1"], "layer/*"),
    ],
)
def test_folded_scopes(scopes, text):
    assert folded_scopes(scopes) == text


def test_a_first_layer_without_a_number_is_one_of_its_layers():
    def loss(ws, x):
        for name, w in zip(("dense", "dense_1", "dense_2"), ws, strict=True):
            with jax.named_scope(name):
                x = jnp.sin(x @ w)
        return x.sum()

    report = jaxresid.inspect(loss, on="gpu:h100")([f32(4, 4)] * 3, f32(64, 4))
    assert [(row.count, row.source.scope) for row in rows(report, View()).shown] == [
        (3, "dense_*"),  # the cosines
        (2, "dense_*"),  # the inputs of the second and the third
    ]
    kept = [live for live in report.peak.live if live.kind == "residual"]
    assert [(live.count, live.source.scope) for live in kept] == [
        (2, "dense_*"),  # these inputs
        (1, "dense_1"),  # a product, of which the backward pass makes the cosine again
    ]


def test_equal_stacks_share_their_frames():
    class Traceback:
        def __init__(self, *codes):
            self.codes = codes

        def raw_frames(self):
            return self.codes, (0,) * len(self.codes)

    own, jaxs = Traceback.raw_frames.__code__, inspect.unwrap(jax.make_jaxpr).__code__
    found = Frames()
    one, other = found.stack(Traceback(own)), found.stack(Traceback(own, jaxs))
    assert [frame.code for frame in one.frames] == [own]
    assert one.frames is other.frames


def test_what_calls_the_target_ends_the_stack_of_a_line():
    assert Frames().kind(calling.__file__, "called_with_changes") == "root"
