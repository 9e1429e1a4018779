"""The table of primitives against JAX: what is public, what functions trace to, what it returns."""

import math
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import primitives as public

from jaxresid import jax_compat
from jaxresid.inspector.cost.flops import RULES
from jaxresid.inspector.jaxpr import primitives
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.primitives import PRIMITIVES, of_kind
from jaxresid.inspector.memory.rules import op_kinds as tpu
from jaxresid.inspector.program.ops import UNWRITTEN

X, Y = jnp.full((3, 7), 0.5), jnp.full((3, 7), 0.25)
N = jnp.ones((3, 7), jnp.int32)
C = jnp.ones((3, 7), jnp.complex64)
IMAGE = jnp.ones((2, 9, 9, 3))

# Of one array, with a derivative.
UNARY = """
    abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf
    erf_inv erfc exp exp2 expm1 floor lgamma log log1p logistic neg reciprocal round rsqrt sign sin
    sinh sqrt square tan tanh
""".split()
BINARY = """
    add atan2 div eq ge gt igamma igammac le lt max min mul ne nextafter polygamma pow rem sub zeta
""".split()
INTEGER = """
    bitwise_and bitwise_or bitwise_xor shift_left shift_right_arithmetic shift_right_logical
""".split()
ROWS = jnp.array([0, 2])


def pooled(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def convolved(x):
    return lax.conv(x, jnp.ones((4, 9, 3, 3)), (1, 1), "SAME")


def moved(x):
    padded = jnp.pad(lax.squeeze(x[:1], (0,)), (0, 14)).reshape(3, 7)
    return jnp.concatenate([x.T.reshape(3, 7)[:, ::-1], x[:, 1:], padded], 1)


def pieces(x):
    start = jnp.argmax(x)
    cut = lax.dynamic_slice(x, (start, start), (1, 7))
    x = lax.dynamic_update_slice(x, x[:1], (start, 0))
    return jnp.stack([x[start], cut[0], *jnp.unstack(x), jnp.split(x, 3)[1][0]])


def scattered(x):
    at = (x.at[ROWS].set(x[:2]), x.at[ROWS].add(x[:2]), x.at[ROWS].multiply(2, unique_indices=True))
    return sum((*at, x.at[ROWS].max(x[:2]), x.at[ROWS].min(x[:2])))


def handed_on(x):
    x = checkpoint_name(lax.optimization_barrier(jnp.array(jax.device_put(x))), "x")
    return x.astype(jnp.bfloat16).astype(jnp.float32) + lax.stop_gradient(jnp.zeros_like(x))


def attention(x):
    scores = jnp.where(jnp.tri(3, dtype=bool), x @ x.T, -jnp.inf)
    dropped = jax.random.bernoulli(jax.random.split(jax.random.key(0))[0], 0.5, x.shape)
    return jax.nn.softmax(scores) @ jnp.where(dropped, 0, x)


def decomposed(x):
    square = x @ x.T + jnp.eye(3)
    values = jnp.linalg.eigh(square)[0] + jnp.linalg.svd(x, compute_uv=False)
    return jnp.linalg.solve(square, x) + jnp.linalg.cholesky(square).sum() + values.sum()


def looped(x):
    x = lax.scan(lambda c, row: (c + row, c), x[0], x)[1]
    return lax.cond(x.sum() > 0, jnp.sin, jnp.cos, jax.checkpoint(lambda x: x @ x.T @ x)(x))


DIFFERENTIATED = [
    *((getattr(lax, name), X) for name in UNARY),
    *((partial(reduce, axis=1), X) for reduce in (jnp.sum, jnp.prod, jnp.max, jnp.min, jnp.var)),
    *((add_up, X) for add_up in (jnp.cumsum, jnp.cumprod, lax.cummax, lax.cumlogsumexp)),
    *((layer, X) for layer in (jax.nn.gelu, jax.nn.silu, jax.nn.softplus, jnp.sort, jnp.median)),
    *((partial(lax.integer_pow, y=n), X) for n in (3, -2)),
    *((fun, X) for fun in (moved, pieces, scattered, handed_on, attention, decomposed, looped)),
    *((fun, IMAGE) for fun in (pooled, convolved)),
    (partial(jax.nn.gelu, approximate=False), X),
    (lambda x: lax.clamp(Y, x, X) + jnp.where(x > Y, x, Y) * x, X),
    (lambda x: lax.igamma(x, Y), X),
    (lambda x: lax.top_k(x, 2)[0], X),
    (lambda x: lax.ragged_dot(x, jnp.ones((2, 7, 4)), jnp.array([1, 2])), X),
    (jax.jit(lambda x: jax.random.gamma(jax.random.key(0), x)), X),
]
PLAIN = [
    *((getattr(lax, name), X, Y) for name in BINARY),
    *((getattr(lax, name), N, N) for name in INTEGER),
    *((fun, N) for fun in (jnp.invert, lax.clz, lax.population_count)),
    *((fun, C) for fun in (lax.real, lax.imag, lax.conj, jnp.fft.fft)),
    *((fun, X) for fun in (lax.is_finite, jnp.argmax, jnp.argmin, lax.cummin)),
    *((partial(reduce, axis=1), X > 0) for reduce in (jnp.any, jnp.all, jnp.bitwise_xor.reduce)),
    (lax.complex, X, Y),
    (lax.betainc, X, Y, X),
    (lambda x: lax.random_gamma_grad(x, x), X),
    (lambda x: lax.bitcast_convert_type(x, jnp.int32), X),
    (lambda x: lax.reduce_precision(x, 8, 7), X),
    (lambda x: lax.while_loop(lambda c: c.sum() < 5, lambda c: c * 2 + jnp.arange(7.0), x), X),
    (lambda: jax.random.bits(jax.random.PRNGKey(0), (16,)),),
]

# What no ordinary function is made of.
RARE = {
    *("eq_to", "le_to", "lt_to"),  # of total orders
    *("mulhi", "reciprocal"),  # in kernels
    *("log2", "one_minus_square", "polynomial"),  # since 0.11 and 0.12
    "select_if_vmap",  # equinox'
}


def pulled_back(fun):
    def both(x):
        y, pull = jax.vjp(fun, x)
        return y, pull(y)

    return both


def traced():
    for fun, *args in [*DIFFERENTIATED, *PLAIN]:
        yield jax.make_jaxpr(fun)(*args)
    for fun, x in DIFFERENTIATED:
        yield jax.make_jaxpr(pulled_back(fun))(x)


@pytest.fixture(scope="module")
def eqns():
    return [eqn for jaxpr in traced() for eqn in eqns_in(jax_compat.open_jaxpr(jaxpr))]


def named(eqns, *kinds):
    names = of_kind(*kinds)
    return [eqn for eqn in eqns if jax_compat.primitive_name(eqn) in names]


def shapes(variables):
    return [v.aval.shape for v in variables]


def nbytes(var):
    return math.prod(var.aval.shape) * var.aval.dtype.itemsize


def test_one_row_each():
    assert Counter(row.name for row in primitives._ROWS).most_common(1)[0][1] == 1


def test_what_jax_exports_is_in_the_table():
    names = {value.name for name, value in vars(public).items() if name.endswith("_p")}
    assert len(names) > 100
    # `call` is no transformation's any more, and remat2 is named remat.
    assert names - PRIMITIVES.keys() <= {"call", "remat2"}


@pytest.mark.integration
def test_what_functions_trace_to_is_in_the_table(eqns):
    assert {jax_compat.primitive_name(eqn) for eqn in eqns} <= PRIMITIVES.keys()


def test_elementwise_rows_are_elementwise(eqns):
    found = named(eqns, "elementwise", "special")
    for eqn in found:
        assert shapes(eqn.outvars) == [np.broadcast_shapes(*shapes(eqn.invars))], eqn
    missing = of_kind("elementwise", "special") - {eqn.primitive.name for eqn in found}
    assert missing <= RARE


@pytest.mark.parametrize(
    ("kinds", "is_right"),
    [
        (("cast",), lambda e: shapes(e.invars) == shapes(e.outvars)),
        (("view",), lambda e: nbytes(e.invars[0]) == nbytes(e.outvars[0])),
        (
            ("copy", "mark", "sharding", "dependency"),
            lambda e: (
                [(v.aval.shape, v.aval.dtype) for v in e.invars]
                == [(v.aval.shape, v.aval.dtype) for v in e.outvars]
            ),
        ),
        (("fill",), lambda e: all(nbytes(v) <= nbytes(e.outvars[0]) for v in e.invars)),
        (("part",), lambda e: all(nbytes(v) <= nbytes(e.invars[0]) for v in e.outvars)),
        (("scatter",), lambda e: shapes(e.invars[:1]) == shapes(e.outvars)),
        # The axes are what `program.dims` reads.
        (
            ("reduction", "arg_reduction"),
            lambda e: (
                len(e.outvars[0].aval.shape) == len(e.invars[0].aval.shape) - len(e.params["axes"])
            ),
        ),
        (("cumulative",), lambda e: shapes(e.invars) == shapes(e.outvars)),
        (("call", "checkpoint", "control"), nests),
    ],
)
def test_rows_of_a_kind_do_what_it_says(eqns, kinds, is_right):
    found = named(eqns, *kinds)
    assert found
    for eqn in found:
        assert is_right(eqn), eqn


def test_a_row_says_how_what_it_holds_lines_up(eqns):
    for eqn in eqns:
        row = PRIMITIVES.get(jax_compat.primitive_name(eqn))
        if row is not None and row.body is not None:
            kinds = {nest.kind for nest in nests(eqn)}
            assert kinds == {"call" if row.nesting == "solve" else row.nesting}, eqn
            for nest in nests(eqn):
                assert (nest.condition is not None) == (row.name == "while")
                inner, outer = nest.jaxpr.invars, [eqn.invars[i] for i in nest.operands]
                for i, (v, w) in enumerate(zip(inner, outer, strict=True)):
                    assert v.aval.shape == w.aval.shape[i in nest.slices :]


def test_every_row_has_its_cost():
    assert RULES.keys() <= PRIMITIVES.keys()
    # What holds jaxprs costs what they do; nothing is known of foreign code.
    without = PRIMITIVES.keys() - RULES.keys()
    assert without <= of_kind(
        "window", "call", "checkpoint", "rule", "control", "map", "foreign", "callback"
    )


def test_compilers_speak_of_rows():
    assert PRIMITIVES.keys() >= tpu._MOVES - UNWRITTEN | tpu._UNMEASURED | tpu.LIBRARY
    assert tpu.EXPENSIVE <= primitives.ELEMENTWISE
