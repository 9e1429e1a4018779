"""JXR504 on flags that a checkpoint traces, with JAX as the judge: it speaks where `run` raises."""

import textwrap

import numpy as np
import pytest

from jaxresid.linter import lint_source
from jaxresid.linter.run.files import LintRun
from jaxresid.settings.config import Config, Options, Selection, load

HEAD = """
from functools import partial

import jax
import jax.numpy as jnp


def double(x, train):
    return x * 2 if train else x


def relu_or_not(x, mode="relu"):
    return jax.nn.relu(x) if mode == "relu" else x
"""
PLAIN = {
    "a flag by position": "def run(x): return jax.checkpoint(double)(x, True)",
    "a flag by keyword": "def run(x): return jax.remat(double)(x, train=False)",
    "a static flag": "def run(x): return jax.checkpoint(double, static_argnums=(1,))(x, True)",
    "the last is static": "def run(x): return jax.checkpoint(double, static_argnums=-1)(x, True)",
    "bound before": "def run(x): return jax.checkpoint(partial(double, train=True))(x)",
    "closed over": "def run(x, train=True): return jax.checkpoint(lambda x: double(x, train))(x)",
    "a flag of the caller": """
        def inner(x, train: bool):
            return jax.checkpoint(double)(x, train)

        def run(x): return inner(x, True)
        """,
    "None is no array": """
        def masked(x, mask): return x if mask is None else x * mask
        def run(x): return jax.checkpoint(masked)(x, None)
        """,
    "an array": """
        def masked(x, mask): return x if mask is None else x * mask
        def run(x): return jax.checkpoint(masked)(x, x > 0)
        """,
    "left to its default": "def run(x): return jax.checkpoint(relu_or_not)(x)",
    "a string": "def run(x): return jax.checkpoint(relu_or_not)(x, 'relu')",
    "a static string": """
        def run(x): return jax.checkpoint(relu_or_not, static_argnums=(1,))(x, "relu")
        """,
    "a string that nothing reads": """
        def named(x, name): return x
        def run(x): return jax.checkpoint(named)(x, name="layer")
        """,
    "a string of the caller": """
        def run(x, mode="relu"): return jax.checkpoint(relu_or_not)(x, mode)
        """,
    "a flag under where": """
        def chosen(x, train): return jnp.where(train, x, 2 * x)
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "is True": """
        def chosen(x, train): return 2 * x if train is True else x
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "not of a flag": """
        def chosen(x, train): return x * (not train)
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "the last operand": """
        def chosen(x, train): return x * (x.ndim > 1 and train)
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "the last operand of a test": """
        def chosen(x, train): return x * 2 if x.ndim > 1 and train else x
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "the first operand": """
        def chosen(x, train): return x * (train and 2.0)
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "a number compared": """
        def chosen(x, depth):
            if depth > 1:
                return jnp.sin(x)
            return x
        def run(x): return jax.checkpoint(chosen)(x, 3)
        """,
    "a number multiplied": """
        def scaled(x, by): return x * by
        def run(x): return jax.checkpoint(scaled)(x, 3)
        """,
    "a number of steps": """
        def steps(x, n):
            for _ in range(n):
                x = jnp.sin(x)
            return x
        def run(x): return jax.checkpoint(steps)(x, 3)
        """,
    "one of several": """
        def chosen(x, depth): return x * 2 if depth in (1, 2) else x
        def run(x): return jax.checkpoint(chosen)(x, 1)
        """,
    "while": """
        def chosen(x, train):
            while train:
                return x
            return 2 * x
        def run(x): return jax.checkpoint(chosen)(x, False)
        """,
    "assert": """
        def chosen(x, train):
            assert train
            return x
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "a filter": """
        def chosen(x, train): return sum([x for _ in range(3) if train], x)
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "bool()": """
        def chosen(x, train): return x * bool(train)
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "asks for the type": """
        def chosen(x, train):
            if isinstance(train, bool) and train:
                return 2 * x
            return x
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "rebound": """
        def chosen(x, train):
            train = x.ndim > 1
            return 2 * x if train else x
        def run(x): return jax.checkpoint(chosen)(x, True)
        """,
    "handed on": """
        def outer(x, train): return double(jnp.sin(x), train)
        def run(x): return jax.checkpoint(outer)(x, True)
        """,
    "handed on by keyword": """
        def outer(x, training): return double(jnp.sin(x), train=training)
        def run(x): return jax.checkpoint(outer)(x, True)
        """,
    "handed on to what does not ask": """
        def scaled(x, by): return x * by
        def outer(x, train): return scaled(x, train)
        def run(x): return jax.checkpoint(outer)(x, True)
        """,
    "a decorator": """
        @jax.checkpoint
        def layer(x, train): return x * 2 if train else x
        def run(x): return layer(layer(x, True), False)
        """,
    "a decorator that marks": """
        @partial(jax.checkpoint, static_argnums=(1,))
        def layer(x, train): return x * 2 if train else x
        def run(x): return layer(layer(x, True), False)
        """,
    "keyword alone": """
        def layer(x, *, train=True): return x * 2 if train else x
        def run(x): return jax.checkpoint(layer)(x, train=False)
        """,
    "keyword alone, left out": """
        def layer(x, *, train=True): return x * 2 if train else x
        def run(x): return jax.checkpoint(layer)(x)
        """,
    "the gradient's call": """
        def loss(x, train): return (x * 2 if train else x).sum()
        def run(x): return jax.grad(jax.checkpoint(loss))(x, True)
        """,
    "the gradient's call, static": """
        def loss(x, train): return (x * 2 if train else x).sum()
        def run(x): return jax.grad(jax.checkpoint(loss, static_argnums=(1,)))(x, True)
        """,
    "jit around it": """
        layer = jax.jit(jax.checkpoint(double), static_argnums=(1,))
        def run(x): return layer(x, True)
        """,
    "a method": """
        class Model:
            def layer(self, x, train): return x * 2 if train else x
            def __call__(self, x, train): return jax.checkpoint(self.layer)(x, train)
        def run(x): return Model()(x, True)
        """,
    "a method, static": """
        class Model:
            def layer(self, x, train): return x * 2 if train else x
            def __call__(self, x, train):
                return jax.checkpoint(self.layer, static_argnums=(1,))(x, train)
        def run(x): return Model()(x, True)
        """,
    "the neighbour is static": """
        def layer(x, mode, train): return x * 2 if train else x
        def run(x): return jax.checkpoint(layer, static_argnums=(1,))(x, "a", True)
        """,
    "in one branch": """
        def run(x, remat=True):
            layer = jax.checkpoint(double, static_argnums=(1,)) if remat else double
            return layer(x, True)
        """,
    "expected": """
        def run(x):
            try:
                return jax.checkpoint(double)(x, True)
            except jax.errors.TracerBoolConversionError:
                return x
        """,
}


def found(source, tmp_path):
    config = load(tmp_path, Options(select=("JXR504",)), isolated=True)
    return lint_source(source, "model.py", config=config)


def raises(source):
    """Whether running the example raises, with the error."""
    namespace = {"__name__": "example"}
    exec(compile(source, "<example>", "exec"), namespace)
    x = np.linspace(0.1, 1.0, 6, dtype=np.float32).reshape(2, 3)
    try:
        namespace["run"](x)
    except Exception as error:
        return type(error).__name__
    return ""


def judged(source, tmp_path):
    error = raises(source)
    violations = found(source, tmp_path)
    assert bool(violations) == bool(error), (error, violations)
    assert error in {"", "TypeError"} or error.startswith("Tracer"), error
    for violation in violations:
        assert ("string" in violation.message) == (error == "TypeError")


@pytest.mark.parametrize("case", PLAIN)
def test_plain_functions(case, tmp_path):
    judged(HEAD + "\n\n" + textwrap.dedent(PLAIN[case]), tmp_path)


FLAX = """
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen import partitioning as nn_partitioning


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        y = nn.Dense(3)(x)
        return y * 2 if train else y


class Step(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        y = nn.Dense(3)(x)
        return (y * 2 if train else y), None


class Dropped(nn.Module):
    rate: float = 0.1

    @nn.compact
    def __call__(self, x, deterministic: bool = True):
        return nn.Dropout(self.rate)(nn.Dense(3)(x), deterministic=deterministic)


SCAN = dict(
    variable_axes={"params": 0}, split_rngs={"params": True}, length=2, in_axes=nn.broadcast
)


def apply(model, *args):
    key = jax.random.key(0)
    return model.init_with_output({"params": key, "dropout": key}, *args)[0]
"""
MODEL = """
class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return {}
def run(x): return apply(Model(), x)
"""
LINEN = {
    "a class": MODEL.format("nn.remat(Block)()(x, True)"),
    "a class, by keyword": MODEL.format("nn.remat(Block)()(x, train=True)"),
    "counted with self": MODEL.format("nn.remat(Block, static_argnums=(2,))()(x, True)"),
    "counted without": MODEL.format("nn.remat(Block, static_argnums=(1,))()(x, True)"),
    "partitioning": MODEL.format("nn_partitioning.remat(Block)()(x, True)"),
    "partitioning, static": MODEL.format(
        "nn_partitioning.remat(Block, static_argnums=(1,))()(x, True)"
    ),
    "partitioning drops keywords": MODEL.format(
        "nn_partitioning.remat(Dropped)()(x, deterministic=False)"
    ),
    "dropout": MODEL.format("nn.remat(Dropped)()(x, False)"),
    "dropout, left to its default": MODEL.format("nn.remat(Dropped)()(x)"),
    "dropout, static": MODEL.format("nn.remat(Dropped, static_argnums=(2,))()(x, False)"),
    "a function of the module": MODEL.format(
        "nn.remat(lambda mdl, x, train: mdl(x) * 2 if train else mdl(x))(nn.Dense(3), x, True)"
    ),
    "a function of the module, static": MODEL.format(
        "nn.remat(lambda mdl, x, train: mdl(x) * 2 if train else mdl(x), static_argnums=(2,))"
        "(nn.Dense(3), x, True)"
    ),
    "a method": """
        class Model(nn.Module):
            @nn.remat
            @nn.compact
            def __call__(self, x, train: bool):
                return nn.Dense(3)(x) * 2 if train else x

        def run(x): return apply(Model(), x, True)
        """,
    "a method with a default": """
        class Model(nn.Module):
            @nn.remat
            @nn.compact
            def __call__(self, x, train: bool = True):
                return nn.Dense(3)(x) * 2 if train else x

        def run(x): return apply(Model(), x)
        """,
    "layers in setup": """
        class Model(nn.Module):
            def setup(self):
                block = nn.remat(Block)
                self.layers = [block() for _ in range(2)]

            def __call__(self, x, train: bool = True):
                for layer in self.layers:
                    x = layer(x, train)
                return x

        def run(x): return apply(Model(), x)
        """,
    "a scan in setup": """
        class Model(nn.Module):
            def setup(self):
                block = nn.remat(Step, prevent_cse=False)
                self.layers = nn.scan(block, **SCAN)()

            def __call__(self, x, train):
                return self.layers(x, train)[0]

        def run(x): return apply(Model(), x, True)
        """,
    "a scan in setup, static": """
        class Model(nn.Module):
            def setup(self):
                block = nn.remat(Step, prevent_cse=False, static_argnums=(2,))
                self.layers = nn.scan(block, **SCAN)()

            def __call__(self, x, train):
                return self.layers(x, train)[0]

        def run(x): return apply(Model(), x, True)
        """,
    "around a scan": """
        class Model(nn.Module):
            def setup(self):
                self.layers = nn.remat(nn.scan(Step, **SCAN))()

            def __call__(self, x, train):
                return self.layers(x, train)[0]

        def run(x): return apply(Model(), x, True)
        """,
    "around a scan, static": """
        class Model(nn.Module):
            @nn.compact
            def __call__(self, x, train):
                return nn.remat(nn.scan(Step, **SCAN), static_argnums=(2,))()(x, train)[0]

        def run(x): return apply(Model(), x, True)
        """,
    "no dropout as it stands": """
        class Mixed(nn.Module):
            rate: float = 0.0

            @nn.compact
            def __call__(self, x, deterministic):
                return nn.Dropout(self.rate)(x, deterministic=deterministic)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "dropout's constructor": """
        class Mixed(nn.Module):
            @nn.compact
            def __call__(self, x, deterministic):
                return nn.Dropout(0.5, deterministic=deterministic)(x)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "statistics": """
        class Mixed(nn.Module):
            @nn.compact
            def __call__(self, x, train):
                return nn.BatchNorm(use_running_average=not train)(x)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "statistics, by keyword": """
        class Mixed(nn.Module):
            @nn.compact
            def __call__(self, x, is_eval):
                return nn.BatchNorm()(x, use_running_average=is_eval)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "attention": """
        class Mixed(nn.Module):
            @nn.compact
            def __call__(self, x, deterministic):
                layer = nn.MultiHeadDotProductAttention(1, dropout_rate=0.1)
                return layer(x, deterministic=deterministic)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "attention without dropout": """
        class Mixed(nn.Module):
            @nn.compact
            def __call__(self, x, deterministic):
                return nn.MultiHeadDotProductAttention(1)(x, deterministic=deterministic)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "a submodule": """
        class Mixed(nn.Module):
            def setup(self):
                self.block = Block()

            def __call__(self, x, train):
                return self.block(x, train)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "a submodule at once": """
        class Mixed(nn.Module):
            @nn.compact
            def __call__(self, x, train):
                return Block()(x, train=train)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "dropout in setup, by position": """
        class Mixed(nn.Module):
            def setup(self):
                self.dropout = nn.Dropout(0.5)

            def __call__(self, x, deterministic):
                return self.dropout(x, deterministic)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, False)"), " " * 8),
    "dropout in setup, static": """
        class Mixed(nn.Module):
            def setup(self):
                self.dropout = nn.Dropout(0.5)

            def __call__(self, x, deterministic):
                return self.dropout(x, deterministic)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed, static_argnums=(2,))()(x, False)"), " " * 8),
    "counted without, dropout by position": """
        class Mixed(nn.Module):
            @nn.compact
            def __call__(self, x, deterministic=True):
                return nn.Dropout(0.1)(nn.Dense(3)(x), deterministic)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed, static_argnums=(1,))()(x, False)"), " " * 8),
    "submodules by index": """
        class Mixed(nn.Module):
            def setup(self):
                self.blocks = [Block() for _ in range(2)]

            def __call__(self, x, train):
                for i in range(2):
                    x = self.blocks[i](x, train)
                return x
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "submodules of zip and enumerate": """
        class Mixed(nn.Module):
            def setup(self):
                self.blocks = [Block(), Block()]
                self.norms = [nn.LayerNorm() for _ in range(2)]

            def __call__(self, x, train):
                for i, (norm, block) in enumerate(zip(self.norms, self.blocks)):
                    x = i * block(norm(x), train)
                return x
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "submodules of another list of zip": """
        class Mixed(nn.Module):
            def setup(self):
                self.blocks = [Block(), Block()]
                self.dense = [nn.Dense(3) for _ in range(2)]

            def __call__(self, x, scale):
                for block, dense in zip(self.blocks, self.dense):
                    x = dense(x) * scale
                return x
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "appended in setup": """
        class Model(nn.Module):
            def setup(self):
                blocks = []
                for i in range(2):
                    blocks.append(nn.remat(Block)(name=f"block_{i}"))
                self.blocks = blocks

            def __call__(self, x, train):
                for block in self.blocks:
                    x = block(x, train)
                return x

        def run(x): return apply(Model(), x, True)
        """,
    "reversed in the call": """
        class Model(nn.Module):
            def setup(self):
                block = nn.remat(Block)
                self.blocks = [block() for _ in range(2)]

            def __call__(self, x, train):
                for i, block in enumerate(reversed(self.blocks)):
                    x = i * block(x, train)
                return x

        def run(x): return apply(Model(), x, True)
        """,
    "reversed in the call, static": """
        class Model(nn.Module):
            def setup(self):
                block = nn.remat(Block, static_argnums=(2,))
                self.blocks = [block() for _ in range(2)]

            def __call__(self, x, train):
                for i, block in enumerate(reversed(self.blocks)):
                    x = i * block(x, train)
                return x

        def run(x): return apply(Model(), x, True)
        """,
    "a checkpoint in a submodule": """
        class Mixed(nn.Module):
            def setup(self):
                self.block = nn.remat(Block, static_argnums=(2,))()

            def __call__(self, x, train):
                return self.block(x, train)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "either of two submodules": """
        class Mixed(nn.Module):
            wide: bool = False

            def setup(self):
                self.block = partial(Dropped, rate=0.5)() if self.wide else Dropped()

            def __call__(self, x, train):
                return self.block(x, train)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "merged with a field": """
        class Mixed(nn.Module):
            deterministic: bool | None = None

            @nn.compact
            def __call__(self, x, deterministic=None):
                det = nn.merge_param("deterministic", self.deterministic, deterministic)
                return x if det else nn.Dense(3)(x)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "merged and not asked": """
        class Mixed(nn.Module):
            scale: float | None = None

            @nn.compact
            def __call__(self, x, scale=None):
                return x * nn.merge_param("scale", self.scale, scale)
        """
    + textwrap.indent(MODEL.format("nn.remat(Mixed)()(x, True)"), " " * 8),
    "nnx": """
        def block(m, x, train): return m(x) * 2 if train else m(x)
        def run(x):
            return nnx.remat(block)(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), x, True)
        """,
    "nnx, by keyword": """
        def block(m, x, train): return m(x) * 2 if train else m(x)
        def run(x):
            return nnx.remat(block)(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), x, train=True)
        """,
    "nnx, static": """
        def block(m, x, train): return m(x) * 2 if train else m(x)
        def run(x):
            layer = nnx.remat(block, static_argnums=(2,))
            return layer(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), x, True)
        """,
    "nnx, dropout": """
        def block(m, x, train):
            return nnx.Dropout(0.5, deterministic=train, rngs=nnx.Rngs(0))(m(x))
        def run(x):
            return nnx.remat(block)(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), x, True)
        """,
    "nnx, dropout by the call": """
        def block(m, x, train):
            drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
            return drop(m(x), deterministic=train)
        def run(x):
            return nnx.remat(block)(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), x, True)
        """,
    "nnx, statistics": """
        def block(m, x, train):
            norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
            return norm(m(x), use_running_average=train)
        def run(x):
            return nnx.remat(block)(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), x, True)
        """,
    "nnx, a method": """
        class Layer(nnx.Module):
            def __init__(self, rngs):
                self.linear = nnx.Linear(3, 3, rngs=rngs)

            @nnx.remat
            def __call__(self, x, train: bool):
                return self.linear(x) * 2 if train else x

        def run(x): return Layer(nnx.Rngs(0))(x, True)
        """,
}

HAIKU = """
import haiku as hk
import jax
import jax.numpy as jnp


def layer(x, train):
    return hk.Linear(3)(x) * 2 if train else x


class Layer(hk.Module):
    def __call__(self, x, train):
        return hk.Linear(3)(x) * 2 if train else x


class Traced(hk.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
        self.layer = hk.remat(self.layer)

    def __call__(self, x, train):
        return self.layer(x, train)


class Static(hk.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()
        self.layer = hk.remat(self.layer, static_argnums=(1,))

    def __call__(self, x, train):
        return self.layer(x, train)


def run(x):
    model = hk.transform(lambda x: {})
    return model.init(jax.random.key(0), x)
"""
HAIKU_CALLS = {
    "by position": "hk.remat(layer)(x, True)",
    "by keyword": "hk.remat(layer)(x, train=True)",
    "static": "hk.remat(layer, static_argnums=(1,))(x, True)",
    "an instance": "hk.remat(Layer())(x, True)",
    "an instance, static": "hk.remat(Layer(), static_argnums=(1,))(x, True)",
    "a closure": "hk.remat(lambda x: layer(x, True))(x)",
    "an attribute": "Traced()(x, True)",
    "an attribute, static": "Static()(x, True)",
}


@pytest.mark.parametrize("case", HAIKU_CALLS)
def test_haiku(case, tmp_path):
    pytest.importorskip("haiku")
    source = HAIKU.format(HAIKU_CALLS[case])
    if "Traced" not in HAIKU_CALLS[case]:
        source = source.replace("self.layer = hk.remat(self.layer)\n", "pass\n")
    judged(source, tmp_path)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:kwargs are not supported in remat")
@pytest.mark.parametrize("case", LINEN)
def test_flax(case, tmp_path):
    pytest.importorskip("flax")
    judged(FLAX + "\n\n" + textwrap.dedent(LINEN[case]), tmp_path)


LAYERS = """
def double(x, train):
    if train:
        return x * 2
    return x
"""
USER = """
import jax
from layers import double


def run(x):
    return jax.checkpoint(double)(x, True)
"""


def test_a_function_of_another_file(tmp_path):
    """What is said names the place in that file, and follows what is changed there."""
    paths = {"layers.py": LAYERS, "model.py": USER}
    for name, text in paths.items():
        (tmp_path / name).write_text(text)
    lint = LintRun(Config(tmp_path, selections=(Selection(select=("JXR504",)),)))
    (found,) = (v for f in lint.run([str(tmp_path)], jobs=1) for v in f.violations)
    given, asked = found.related
    assert (given.path.endswith("model.py"), asked.path.endswith("layers.py")) == (True, True)
    assert (asked.span.row, asked.span.column) == (3, 7)
    (tmp_path / "layers.py").write_text(LAYERS.replace("if train:", "if x is train:"))
    lint = LintRun(Config(tmp_path, selections=(Selection(select=("JXR504",)),)))
    assert not [v for f in lint.run([str(tmp_path)], jobs=1) for v in f.violations]
