"""Random differentiable functions: control flow and transforms, nested in each other.

A program is a tuple of steps, each a plain tuple; `function` makes it callable. A step maps a
vector to a vector of the same length and may read a matrix, a scalar and an integer.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name

SIZE = 3
NAMES = ("a", "b")
_CONSTANT = np.linspace(0.5, 1.5, SIZE, dtype=np.float32)
_MATRIX = np.eye(SIZE, dtype=np.float32) + 0.1
_cp = jax.checkpoint_policies

POLICIES = {
    "none": None,
    "everything": _cp.everything_saveable,
    "nothing": _cp.nothing_saveable,
    "dots": _cp.dots_saveable,
    "dots_no_batch": _cp.dots_with_no_batch_dims_saveable,
    "only_a": _cp.save_only_these_names("a"),
    "all_names_but_a": _cp.save_any_names_but_these("a"),
    "dots_or_b": _cp.save_from_both_policies(_cp.dots_saveable, _cp.save_only_these_names("b")),
    "offload_a": _cp.save_and_offload_only_these_names(
        names_which_can_be_saved=["b"],
        names_which_can_be_offloaded=["a"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


@dataclass(frozen=True)
class Environment:
    """What a step may read beside the vector that it maps."""

    W: Any
    s: Any
    k: Any


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -2.0, 2.0)


def _clipped_fwd(x):
    return clipped(x), (jnp.abs(x) < 2.0, x)


def _clipped_bwd(kept, g):
    inside, x = kept
    return (jnp.where(inside, g, 0.1 * g * jnp.tanh(x)),)


clipped.defvjp(_clipped_fwd, _clipped_bwd)


@jax.custom_jvp
def logistic(x):
    return 1 / (1 + jnp.exp(-x))


@logistic.defjvp
def _logistic_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    y = logistic(x)
    return y, t * y * (1 - y)


def _told(x):
    jax.debug.callback(lambda x: None, x)
    return 3.0 * x


@jax.jit
def shared(x):
    return jnp.sin(x) * jnp.cos(x)


# Steps without a body: name -> vector and environment -> vector.
PLAIN = {
    "sin": lambda c, e: jnp.sin(c),
    "exp": lambda c, e: jnp.exp(-jnp.abs(c)),
    "tanh": lambda c, e: jnp.tanh(c),
    "square": lambda c, e: c**2 / 2,
    "sqrt": lambda c, e: jnp.sqrt(jnp.abs(c) + 1),
    "log": lambda c, e: jnp.log1p(c * c),
    "relu": lambda c, e: jax.nn.relu(c),
    "gelu": lambda c, e: jax.nn.gelu(c),
    "silu": lambda c, e: jax.nn.silu(c),
    "softmax": lambda c, e: jax.nn.softmax(c),
    "logsumexp": lambda c, e: c - jax.nn.logsumexp(c),
    "normalize": lambda c, e: (c - c.mean()) * lax.rsqrt(c.var() + 1e-5),
    "dot": lambda c, e: e.W @ c,
    "quadratic": lambda c, e: (c @ e.W @ c) * c,
    "batched_dot": lambda c, e: jnp.einsum("bi,bij->bj", jnp.stack([c, c]), jnp.stack([e.W] * 2))[
        0
    ],
    "scale": lambda c, e: c * e.s,
    "divide": lambda c, e: e.s / (c * c + 1),
    "double": lambda c, e: 2.0 * c,
    "shift": lambda c, e: c + 0.25,
    "constant": lambda c, e: c * _CONSTANT,
    "integer": lambda c, e: c * e.k,
    "gather": lambda c, e: c[jnp.array([2, 0, 1])] * c,
    "take": lambda c, e: c + c[e.k],
    "update": lambda c, e: c.at[1].set(jnp.sin(c[0])),
    "slice": lambda c, e: jnp.concatenate([c[1:] * c[:-1], c[:1]]),
    "sort": lambda c, e: jnp.sort(c) * c,
    "max": lambda c, e: c * jnp.max(c),
    "cumsum": lambda c, e: jnp.cumsum(c) * c,
    "where": lambda c, e: jnp.where(c > 0, jnp.sin(c), c),
    "mask": lambda c, e: jnp.tril(e.W) @ jnp.where(jnp.arange(SIZE) < 2, c, 0.0),
    "half": lambda c, e: jnp.sin(c.astype(jnp.bfloat16)).astype(jnp.float32),
    "reshape": lambda c, e: (jnp.sin(c.reshape(1, SIZE).T) * c.reshape(SIZE, 1)).reshape(SIZE),
    "outer": lambda c, e: jnp.sin(jnp.outer(c, c)) @ c,
    "stop": lambda c, e: c * lax.stop_gradient(jnp.sin(c)),
    "custom_vjp": lambda c, e: clipped(c),
    "custom_jvp": lambda c, e: logistic(c),
    "shared_jit": lambda c, e: shared(c),
    "callback": lambda c, e: _told(c),
    "dropout": lambda c, e: jnp.where(
        jax.random.bernoulli(jax.random.key(0), 0.5, (SIZE,)), c, 0.0
    ),
    "while": lambda c, e: c * lax.while_loop(lambda i: i < e.k, lambda i: i + 1, 0),
    "while_detached": lambda c, e: (
        c
        + lax.while_loop(
            lambda v: v[0] < 2, lambda v: (v[0] + 1, jnp.sin(v[1])), (0, lax.stop_gradient(c))
        )[1]
    ),
}


def run(steps, c, e):
    for step in steps:
        c = apply(step, c, e)
    return c


def apply(step, c, e):
    kind, *rest = step
    return PLAIN[kind](c, e) if kind in PLAIN else NESTED[kind](c, e, *rest)


def _name(c, e, name):
    return checkpoint_name(c, name)


def _residual(c, e, body):
    return c + run(body, c, e)


def _twice(c, e, body):
    return run(body, run(body, c, e), e)


def _scope(c, e, body):
    with jax.named_scope("scope"):
        return run(body, c, e)


def _jit(c, e, body):
    @jax.jit
    def jitted(c, W, s, k):
        return run(body, c, Environment(W, s, k))

    return jitted(c, e.W, e.s, e.k)


def _jit_closure(c, e, body):
    return jax.jit(lambda c: run(body, c, e))(c)


def _scan(c, e, length, body):
    return lax.scan(lambda c, _: (run(body, c, e), None), c, length=length)[0]


def _scan_slices(c, e, body):
    """Over the rows of the matrix, reading and making one slice per trip."""

    def trip(c, row):
        return run(body, c * row, e), jnp.sin(c) * row

    c, made = lax.scan(trip, c, e.W)
    return c + made.sum(0)


def _scan_with_passenger(c, e, body):
    """Carries a value that no trip changes, and a counter."""

    def trip(carry, _):
        c, still, i = carry
        return (run(body, c, e) * still + i, still, i + 1), None

    return lax.scan(trip, (c, c, 0), length=2)[0][0]


def _scan_backwards(c, e, body):
    def trip(c, row):
        return run(body, c + row, e), c

    c, made = lax.scan(trip, c, e.W, reverse=True, unroll=2)
    return c * made[0]


def _fori(c, e, body):
    return lax.fori_loop(0, 2, lambda i, c: run(body, c, e) + i, c)


def _map(c, e, body):
    return lax.map(lambda row: run(body, row, e), e.W * c).sum(0)


def _cond(c, e, yes, no):
    return lax.cond(e.k > 1, lambda c: run(yes, c, e), lambda c: run(no, c, e), c)


def _switch(c, e, *bodies):
    return lax.switch(e.k, [lambda c, b=b: run(b, c, e) for b in bodies], c)


def _vmap(c, e, body):
    return jax.vmap(lambda c: run(body, c, e))(jnp.stack([c, 2 * c])).sum(0)


def _vmap_weights(c, e, body):
    return jax.vmap(lambda s: run(body, c, Environment(e.W, s, e.k)))(c).mean(0)


def _checkpoint(c, e, policy, prevent_cse, body):
    remat = jax.checkpoint(
        lambda c, W, s: run(body, c, Environment(W, s, e.k)),
        policy=POLICIES[policy],
        prevent_cse=prevent_cse,
    )
    return remat(c, e.W, e.s)


def _checkpoint_closure(c, e, policy, body):
    return jax.checkpoint(lambda c: run(body, c, e), policy=POLICIES[policy])(c)


def _custom_vjp(c, e, body):
    """A custom derivative whose residuals are an argument and what it makes of the body's."""

    @jax.custom_vjp
    def custom(c, W):
        return run(body, c, Environment(W, 1.0, 1))

    def fwd(c, W):
        y = custom(c, W)
        return y, (jnp.cos(y), W)

    def bwd(kept, g):
        y, W = kept
        return g * y, jnp.outer(g, y) * W

    custom.defvjp(fwd, bwd)
    return custom(c, e.W)


def _custom_jvp(c, e, body):
    """Of constants: what has a custom JVP may not close over what is traced."""

    @jax.custom_jvp
    def custom(c):
        return run(body, c, Environment(_MATRIX, 1.25, 1))

    @custom.defjvp
    def jvp(primals, tangents):
        y = custom(*primals)
        return y, tangents[0] * jnp.cos(y)

    return custom(c)


def _gradient(c, e, body):
    return jax.grad(lambda c: run(body, c, e).sum())(c)


NESTED = {
    "name": _name,
    "residual": _residual,
    "twice": _twice,
    "scope": _scope,
    "jit": _jit,
    "jit_closure": _jit_closure,
    "scan": _scan,
    "scan_slices": _scan_slices,
    "scan_with_passenger": _scan_with_passenger,
    "scan_backwards": _scan_backwards,
    "fori": _fori,
    "map": _map,
    "cond": _cond,
    "switch": _switch,
    "vmap": _vmap,
    "vmap_weights": _vmap_weights,
    "checkpoint": _checkpoint,
    "checkpoint_closure": _checkpoint_closure,
    "custom_vjp_of": _custom_vjp,
    "custom_jvp_of": _custom_jvp,
    "gradient": _gradient,
}


def _nesting(body):
    policies = st.sampled_from(sorted(POLICIES))
    one_body = ("residual", "twice", "scope", "jit", "jit_closure", "scan_slices", "fori", "map")
    more = ("scan_with_passenger", "scan_backwards", "vmap", "vmap_weights", "gradient")
    custom = ("custom_vjp_of", "custom_jvp_of")
    return st.one_of(
        st.tuples(st.sampled_from((*one_body, *more, *custom)), body),
        st.tuples(st.just("scan"), st.integers(1, 3), body),
        st.tuples(st.just("cond"), body, body),
        st.tuples(st.just("switch"), body, body, body),
        st.tuples(st.just("checkpoint"), policies, st.booleans(), body),
        st.tuples(st.just("checkpoint_closure"), policies, body),
    )


_leaves = st.sampled_from(
    [*((kind,) for kind in sorted(PLAIN)), *(("name", name) for name in NAMES)]
)


def _bodies(steps):
    return st.lists(steps, min_size=1, max_size=3).map(tuple)


programs = _bodies(st.recursive(_leaves, lambda steps: _nesting(_bodies(steps)), max_leaves=8))


def function(program, output="sum"):
    """The program as a function of a matrix, a vector, a scalar and an integer.

    Args:
      output: `sum` for a scalar, `vector` for the vector itself, `tree` for both and an integer.
    """

    def fun(W, x, s, k):
        c = run(program, x, Environment(W, s, k))
        if output == "vector":
            return c
        if output == "tree":
            return {"loss": c.sum(), "vector": c, "best": jnp.argmax(c)}
        return (c * c).sum()

    fun.__name__ = "program"
    return fun


def is_differentiable(fun):
    """Whether JAX itself can differentiate such a function: it fails on some, as 0.8.3 does on a
    cond that one branch of has a value to offload."""
    try:
        jax.jit(jax.grad(fun, argnums=(0, 1, 2))).trace(*arguments())
    except Exception:
        return False
    return True


outputs = st.sampled_from(("sum", "vector", "tree"))


@functools.cache
def arguments():
    """Concrete ones, for `function`."""
    rng = np.random.default_rng(0)
    return (
        jnp.asarray(rng.normal(size=(SIZE, SIZE)), jnp.float32),
        jnp.asarray(rng.normal(size=SIZE), jnp.float32),
        jnp.asarray(0.75, jnp.float32),
        jnp.asarray(2, jnp.int32),
    )
