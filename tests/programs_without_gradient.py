"""Programs that take no gradient: evaluation, decoding with a cache, simulation, init."""

import functools

import jax
import jax.numpy as jnp

import jaxresid

f32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
i32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)


def evaluate(params, q):
    for w in params:
        scores = jax.nn.softmax(q @ w @ q.T)
        q = q + scores @ q
    return q


EVALUATE = ([f32((256, 256))] * 3, f32((4096, 256)))


def decode(params, cache, token, position):
    """One layer's keys and values, stacked over layers that a scan runs over."""

    def layer(x, weights):
        w, k, v = weights
        k = jax.lax.dynamic_update_slice(k, (x @ w)[:, None], (0, position, 0))
        v = jax.lax.dynamic_update_slice(v, (x @ w)[:, None], (0, position, 0))
        scores = jax.nn.softmax(jnp.einsum("bd,btd->bt", x, k))
        return x + jnp.einsum("bt,btd->bd", scores, v), (k, v)

    x, cache = jax.lax.scan(layer, params["embed"][token], (params["layers"], *cache))
    return x.argmax(-1), cache


CACHE = f32((4, 8, 1024, 64))
DECODE = (
    {"embed": f32((1000, 64)), "layers": f32((4, 64, 64))},
    (CACHE, CACHE),
    i32((8,)),
    i32(()),
)


def generate(params, cache, token, length):
    """Decoding until a length that the program decides: a while loop."""

    def step(state):
        i, cache, x = state
        cache = jax.lax.dynamic_update_index_in_dim(cache, x, i, 0)
        scores = jax.nn.softmax(jnp.einsum("bd,tbd->bt", x @ params, cache))
        return i + 1, cache, jnp.tanh(jnp.einsum("bt,tbd->bd", scores, cache))

    return jax.lax.while_loop(lambda s: s[0] < length, step, (0, cache, token))[1:]


GENERATE = (f32((64, 64)), f32((512, 8, 64)), f32((8, 64)), i32(()))


@functools.cache
def report(name, on="gpu:h100", **options):
    """The report of one of these: `evaluate`, `decode`, `decode_donated` or `generate`."""
    functions = {
        "evaluate": (evaluate, EVALUATE),
        "decode": (decode, DECODE),
        "decode_donated": (jax.jit(decode, donate_argnums=1), DECODE),
        "generate": (generate, GENERATE),
    }
    fun, args = functions[name]
    return jaxresid.inspect(fun, on=on, **options)(*args)
