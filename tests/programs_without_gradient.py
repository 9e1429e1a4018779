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
    """Keys and values of all layers in one array each, which the loop over layers carries."""

    def layer(i, state):
        x, keys, values = state
        new = (x @ params["layers"][i])[None, :, None]
        keys = jax.lax.dynamic_update_slice(keys, new, (i, 0, position, 0))
        values = jax.lax.dynamic_update_slice(values, new, (i, 0, position, 0))
        scores = jax.nn.softmax(jnp.einsum("bd,btd->bt", x, keys[i]))
        return x + jnp.einsum("bt,btd->bd", scores, values[i]), keys, values

    x, *cache = jax.lax.fori_loop(0, 4, layer, (params["embed"][token], *cache))
    return x.argmax(-1), tuple(cache)


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
