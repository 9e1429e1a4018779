"""What a fix makes of a program, traced by JAX before and after: no more is kept, no more is live.

Each program defines `example()`: a function of its arguments, with them; or `run(ws, x)`. What the
linter leaves alone for the sake of memory is changed by hand, as the fix would, to see that more is
kept then.
"""

import jax
import jax.numpy as jnp
import pytest
from claims import saved, temp_nbytes

from jaxresid.linter import fix_source, lint_source
from jaxresid.settings.config import Options, load

LINEN = """
import flax.linen as nn
import jax
import jax.numpy as jnp


def example():
    net, x = Net(), jnp.ones((64, 16))
    weights = net.init(jax.random.key(0), x)
    return (lambda w, x: jnp.sum(net.apply(w, x) ** 2)), weights, x


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        return x + nn.Dense(16)(nn.gelu(nn.Dense(64)(x))), None

"""
HAIKU = """
import haiku as hk
import jax
import jax.numpy as jnp


def example():
    net, x = hk.without_apply_rng(hk.transform(lambda x: forward(x))), jnp.ones((64, 16))
    weights = net.init(jax.random.key(0), x)
    return (lambda w, x: jnp.sum(net.apply(w, x) ** 2)), weights, x


def layer(x):
    return x + hk.Linear(16)(jax.nn.gelu(hk.Linear(64)(x)))

"""
NNX = """
import jax
import jax.numpy as jnp
from flax import nnx


def example():
    graph, weights, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)

    def loss(weights, x):
        return jnp.sum(nnx.merge(graph, weights, rest)(x) ** 2)

    return loss, weights, jnp.ones((64, 16))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(16, 64, rngs=rngs)
        self.down = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.gelu(self.up(x)))

"""
EQUINOX = """
import equinox as eqx
import jax
import jax.numpy as jnp


def example():
    keys = jax.random.split(jax.random.key(0), 3)
    weights, static = eqx.partition(Net(eqx.filter_vmap(Block)(keys)), eqx.is_array)
    return (lambda w, x: jnp.sum(eqx.combine(w, static)(x) ** 2)), weights, jnp.ones((64, 16))


class Block(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.up = eqx.nn.Linear(16, 64, key=one)
        self.down = eqx.nn.Linear(64, 16, key=two)

    def __call__(self, x):
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(x)))


class Net(eqx.Module):
    blocks: Block

"""
PLAIN = """
import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Output:
    logits: jax.Array
    hidden: jax.Array


def head(w, h):
    return jax.nn.softmax(jnp.sin(h @ w))


def loss(w, x):
    return jnp.mean((forward(w, x){part} - 1) ** 2)


def example():
    jax.grad(loss)
    return loss, jnp.full((16, 16), 0.1), jnp.ones((64, 16))


def forward(w, x):
    h = jnp.tanh(x @ w)
    {end}
"""
SCAN = """
import jax
import jax.numpy as jnp


def step(x, w):
    return jnp.sin(jnp.tanh(x @ w) @ w), None

"""
# Code, program; with a `|` before the version of JAX from which XLA:CPU keeps barriers.
FIXED = {
    "an attribute of haiku": (
        "JXR107",
        HAIKU
        + """
class Net(hk.Module):
    def __init__(self, remat=True):
        super().__init__()
        self._linear = hk.Linear(16)
        if remat:
            self._linear = hk.remat(self._linear)

    def __call__(self, x):
        return self._linear(x)


def forward(x):
    return Net()(x)
""",
    ),
    "an attribute of nnx": (
        "JXR107",
        NNX
        + """
class Net(nnx.Module):
    def __init__(self, rngs):
        self.mix = nnx.Linear(16, 16, rngs=rngs)

    def __call__(self, x):
        return nnx.remat(self.mix)(x)
""",
    ),
    "layers in setup": (
        "JXR107",
        LINEN
        + """
class Net(nn.Module):
    def setup(self):
        dense = nn.remat(nn.Dense)
        self.layers = [dense(16, name="a"), dense(16, use_bias=False)]

    def __call__(self, x):
        for i, layer in enumerate(self.layers):
            x = nn.gelu(layer(x))
        return x
""",
    ),
    "an embedding in another type": (
        "JXR107",
        LINEN
        + """
class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        table = nn.remat(nn.Embed)(8, 16, dtype=jnp.bfloat16, name="table")
        return table(x.astype(int)).astype(x.dtype)
""",
    ),
    "a dictionary": (
        "JXR102",
        PLAIN.format(
            part='["logits"]', end='return {"hidden": h, "logits": jax.checkpoint(head)(w, h)}'
        ),
    ),
    "a data class": (
        "JXR102",
        PLAIN.format(part=".logits", end="return Output(jax.checkpoint(head)(w, h), hidden=h)"),
    ),
    "a tuple": (
        "JXR102",
        PLAIN.format(part="[1]", end="return h, jax.checkpoint(head)(w, h)"),
    ),
    "a step of equinox": (
        "JXR404",
        EQUINOX
        + """
    def __call__(self, x):
        weights, static = eqx.partition(self.blocks, eqx.is_array)

        def step(x, weights):
            return eqx.filter_checkpoint(eqx.combine(weights, static))(x), None

        return jax.lax.scan(step, x, weights)[0]
""",
    ),
    "a decorated step of equinox": (
        "JXR404",
        EQUINOX
        + """
    def __call__(self, x):
        weights, static = eqx.partition(self.blocks, eqx.is_array)

        @eqx.filter_checkpoint
        def step(x, weights):
            return eqx.combine(weights, static)(x), None

        return jax.lax.scan(step, x, weights)[0]
""",
    ),
    "nnx.scan": (
        "JXR404",
        NNX
        + """
class Net(nnx.Module):
    def __init__(self, rngs):
        make = nnx.vmap(lambda rngs: Block(rngs), in_axes=0)
        self.blocks = make(rngs.fork(split=3))

    def __call__(self, x):
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        @nnx.remat
        def forward(block, x):
            return block(x)

        return forward(self.blocks, x)
""",
    ),
    "a stack of layers": (
        "JXR404",
        HAIKU
        + """
def forward(x):
    return hk.experimental.layer_stack(3)(hk.remat(layer))(x)
""",
    ),
    "a stack that decorates": (
        "JXR404",
        HAIKU
        + """
def forward(x):
    @hk.layer_stack(3)
    def stacked(x):
        return hk.remat(layer)(x)

    return stacked(x)
""",
    ),
    "a switch in setup": (
        "JXR401|",
        LINEN
        + """
class Net(nn.Module):
    scan: bool = False

    def setup(self):
        block = nn.remat(Block, prevent_cse=False)
        if self.scan:
            self.stack = nn.scan(
                block, variable_axes={"params": 0}, split_rngs={"params": True}, length=4
            )()
        else:
            self.blocks = [block() for _ in range(4)]

    def __call__(self, x):
        if self.scan:
            return self.stack(x, None)[0]
        for block in self.blocks:
            x, _ = block(x)
        return x
""",
    ),
    "a word": (
        "JXR401|",
        SCAN
        + """
def run(ws, x, mode="loop"):
    body = jax.checkpoint(step, prevent_cse=False)
    if mode == "scan":
        return jax.lax.scan(body, x, ws)[0]
    for w in ws:
        x, _ = body(x, w)
    return x
""",
    ),
    "the wrong way round": (
        "JXR401|",
        SCAN
        + """
def run(ws, x, scan_layers=False):
    body = jax.checkpoint(step, prevent_cse=scan_layers)
    if scan_layers:
        x, _ = jax.lax.scan(body, x, ws)
    else:
        for w in ws:
            x, _ = body(x, w)
    return x
""",
    ),
    "unrolled by a switch": (
        "JXR401|",
        SCAN
        + """
def run(ws, x, unrolled=True):
    n = len(ws)
    body = jax.checkpoint(step, prevent_cse=False)
    return jax.lax.scan(body, x, ws, length=n, unroll=n if unrolled else 1)[0]
""",
    ),
}


def _config(code, tmp_path):
    return load(tmp_path, Options(select=(code,), unsafe_fixes=True), isolated=True)


def _example(source):
    namespace = {"__name__": "example"}
    exec(compile(source, "<example>", "exec"), namespace)
    if "example" in namespace:
        return namespace["example"]()
    run = namespace["run"]
    return (lambda ws, x: jnp.sum(run(ws, x))), jnp.full((4, 16, 16), 0.1), jnp.ones((64, 16))


def _kept_nbytes(source):
    loss, *args = _example(source)
    residuals = saved(jax.jit(loss), *args)
    return sum(jnp.dtype(dtype).itemsize * jnp.zeros(shape).size for dtype, shape in residuals)


@pytest.mark.integration
@pytest.mark.parametrize("case", FIXED)
def test_no_fix_raises_memory(case, tmp_path, jax_version):
    code, source = FIXED[case]
    for library in ("flax", "haiku", "equinox"):
        if library in source:
            pytest.importorskip(library)
    if code.endswith("|") and jax_version < (0, 12):
        pytest.skip("XLA:CPU drops the barriers of straight-line code")
    config = _config(code.rstrip("|"), tmp_path)
    fixed = fix_source(source, "model.py", unsafe=True, config=config)
    assert fixed != source
    assert lint_source(fixed, "model.py", config=config) == ()
    (loss, *args), (fixed_loss, *fixed_args) = _example(source), _example(fixed)
    values, fixed_values = (
        jax.value_and_grad(f)(*a) for f, a in ((loss, args), (fixed_loss, fixed_args))
    )
    for one, other in zip(*map(jax.tree.leaves, (values, fixed_values)), strict=True):
        assert jnp.allclose(one, other, rtol=1e-4)
    live = [
        temp_nbytes(jax.value_and_grad(f), *a) for f, a in ((loss, args), (fixed_loss, fixed_args))
    ]
    assert live[1] <= live[0]
    if code in {"JXR107", "JXR404"}:  # the last stage is kept, and live, in any case
        assert _kept_nbytes(fixed) <= _kept_nbytes(source)


DTYPES = {
    "given by the caller of the class": """
    def setup(self):
        dense = nn.Dense
        if self.remat:
            dense = nn.remat(nn.Dense)
        self.layer = dense(64, dtype=jnp.bfloat16, param_dtype=jnp.float32)

    def __call__(self, x):
        return self.layer(x)
""",
    "given by a partial": """
    @nn.compact
    def __call__(self, x):
        dense = partial(nn.remat(nn.Dense) if self.remat else nn.Dense, dtype=jnp.bfloat16)
        return dense(64)(x)
""",
    "given by keywords of a field": """
    options: dict = dataclasses.field(default_factory=lambda: {"dtype": jnp.bfloat16})

    @nn.compact
    def __call__(self, x):
        dense = nn.remat(nn.Dense) if self.remat else nn.Dense
        return dense(64, **self.options)(x)
""",
    "given by position": """
    dtype: jnp.dtype = jnp.bfloat16

    @nn.compact
    def __call__(self, x):
        dense = nn.remat(nn.Dense) if self.remat else nn.Dense
        return dense(64, False, self.dtype)(x)
""",
    "given by a function": """
    @nn.compact
    def __call__(self, x):
        def make(dense):
            return dense(64, dtype=jnp.bfloat16)

        return make(nn.remat(nn.Dense) if self.remat else nn.Dense)(x)
""",
    "of a list": """
    def setup(self):
        dense = nn.remat(nn.Dense) if self.remat else nn.Dense
        self.layers = [dense(64, dtype=jnp.bfloat16) for _ in range(2)]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
    "of a convolution": """
    @nn.compact
    def __call__(self, x):
        conv = nn.remat(nn.Conv) if self.remat else nn.Conv
        return conv(64, (3,), dtype=jnp.bfloat16)(x)
""",
    "of the weights": """
    @nn.compact
    def __call__(self, x):
        dense = nn.remat(nn.Dense) if self.remat else nn.Dense
        return dense(64, param_dtype=jnp.bfloat16)(x)
""",
}


@pytest.mark.integration
@pytest.mark.parametrize("case", DTYPES)
def test_a_layer_in_another_type_keeps_copies_without_its_checkpoint(case, tmp_path):
    """JXR107 is silent: removing the checkpoint would raise memory."""
    pytest.importorskip("flax")
    head = LINEN.replace(
        "import flax", "import dataclasses\nfrom functools import partial\n\nimport flax"
    )
    source = head + "class Net(nn.Module):\n    remat: bool = True\n" + DTYPES[case]
    assert lint_source(source, "model.py", config=_config("JXR107", tmp_path)) == ()
    removed = source.replace("remat: bool = True", "remat: bool = False")
    assert _kept_nbytes(removed) > _kept_nbytes(source)
