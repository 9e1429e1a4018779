"""What findings say to write, in the framework that the code is written in."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.inspector.findings.frameworks import framework_of
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.results import Location, Source
from tests.small import f32

WS, X = f32(24, 64, 64), f32(512, 64)


def deep(x):
    return jnp.sin(jnp.cos(jnp.sin(jnp.cos(x))))


def scanned(ws, x):
    return jax.lax.scan(lambda x, w: (deep(x @ w), None), x, ws)[0].sum()


def mapped(w, xs):
    return jax.lax.map(lambda x: deep(x @ w), xs).sum()


def counted(w, x):
    return jax.lax.fori_loop(0, 24, lambda i, x: deep(x @ w), x).sum()


def linen():
    nn = pytest.importorskip("flax.linen")

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return deep(nn.Dense(64)(x)), None

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
            return nn.scan(Layer, length=24, **axes)()(x, None)[0]

    net = Net()
    params = jax.eval_shape(lambda x: net.init(jax.random.key(0), x), X)
    return lambda params, x: net.apply(params, x).sum(), (params, X)


def nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(64, 64, rngs=rngs)

        def __call__(self, x):
            return deep(self.linear(x))

    @nnx.split_rngs(splits=24)
    @nnx.vmap
    def made(rngs):
        return Layer(rngs)

    graph, state = nnx.split(made(nnx.Rngs(0)))

    def loss(state, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x, layer):
            return layer(x)

        return forward(x, nnx.merge(graph, state)).sum()

    return loss, (jax.eval_shape(lambda s: s, state), X)


def haiku():
    hk = pytest.importorskip("haiku")
    stack = hk.experimental.layer_stack if not hasattr(hk, "layer_stack") else hk.layer_stack
    net = hk.without_apply_rng(
        hk.transform(lambda x: stack(24)(lambda x: deep(hk.Linear(64)(x)))(x).sum())
    )
    params = jax.eval_shape(lambda x: net.init(jax.random.key(0), x), X)

    def loss(params, x):
        return net.apply(params, x)

    return loss, (params, X)


LOOPS = {
    "jax.lax.scan(jax.checkpoint(body, prevent_cse=False), ...)": lambda: (scanned, (WS, X)),
    "jax.lax.map(jax.checkpoint(body, prevent_cse=False), ...)": lambda: (
        mapped,
        (f32(64, 64), f32(24, 512, 64)),
    ),
    "jax.lax.fori_loop(lower, upper, jax.checkpoint(body, prevent_cse=False), ...)": lambda: (
        counted,
        (f32(64, 64), X),
    ),
    "nn.scan(nn.remat(Layer, prevent_cse=False), ...)": linen,
    "nnx.scan(nnx.remat(body, prevent_cse=False), ...)": nnx,
    "hk.layer_stack(n)(hk.remat(layer, prevent_cse=False))": haiku,
}


@pytest.mark.parametrize(
    "text",
    [pytest.param(t, marks=pytest.mark.integration if "nnx" in t else ()) for t in LOOPS],
)
def test_a_loop_is_checkpointed_as_it_was_written(text):
    fun, args = LOOPS[text]()
    helps = [f.help for f in jaxresid.inspect(fun, on="gpu:h100")(*args).findings]
    assert f"checkpoint the body: {text}" in helps


FILES = {
    "import flax.linen as nn\n": "linen",
    "from flax import linen as nn, struct\n": "linen",
    "from flax import nnx\n": "nnx",
    "import haiku as hk\n": "haiku",
    "if True:\n    import equinox as eqx\n": "equinox",
    "from flax import linen, nnx\n": "jax",
    "import jax\n# from flax import nnx\n": "jax",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_tells_by_what_it_imports(text, tmp_path):
    (tmp_path / "model.py").write_text(text)
    frames = Frames(cwd=str(tmp_path))
    source = Source(Location("model.py", 1, None, "f"))
    assert framework_of(source, frames) == FILES[text]
    layer = Location("/env/site-packages/flax/nnx/nn/linear.py", 1, None, "Linear.__call__")
    assert framework_of(Source(source.location, library=layer), frames) == "nnx"
