"""JXR833 against compilers: XLA's peak falls where a loop is really written without its excess."""

import jax
import jax.numpy as jnp
import pytest
from peaks_by_xla import cases, figures, peak_by_xla, peaks

L, N, D = 8, 65536, 512


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layer(x, w):
    return x + jnp.tanh(x @ w)


def last_of_stack(lean):
    def loss(ws, x):
        def body(x, w):
            x = layer(x, w)
            return x, None if lean else x

        end, stack = jax.lax.scan(jax.checkpoint(body), x, ws)
        return jnp.sum((end if lean else stack[-1]) ** 2)

    return loss, (f32(L, D, D), f32(N, D))


def last_hidden(lean):
    def loss(ws, x):
        def body(carry, w):
            x = layer(carry[0], w)
            hidden = jnp.sin(x)
            return (x, hidden) if lean else (x,), None if lean else hidden

        carry = (x, jnp.zeros_like(x)) if lean else (x,)
        carry, stack = jax.lax.scan(jax.checkpoint(body), carry, ws)
        return jnp.sum((carry[1] if lean else stack[-1]) ** 2)

    return loss, (f32(L, D, D), f32(N, D))


def with_context(lean):
    def loss(ws, x, context):
        def body(carry, w):
            x, c = (carry, context) if lean else carry
            x = layer(x, w) * c
            return x if lean else (x, c), None

        end, _ = jax.lax.scan(jax.checkpoint(body), x if lean else (x, context), ws)
        return jnp.sum((end if lean else end[0]) ** 2)

    return loss, (f32(L, D, D), f32(N, D), f32(N, D))


def linen(lean):
    """A decoder whose scanned layers read what an encoder made."""
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, carry, context=None):
            x, context = (carry, context) if lean else carry
            x = x + nn.Dense(D)(jnp.tanh(nn.Dense(D)(context) * x))
            return x if lean else (x, context), None

    stack = nn.scan(
        nn.remat(Block, prevent_cse=False),
        variable_axes={"params": 0},
        split_rngs={"params": True},
        length=L,
        in_axes=nn.broadcast,
    )()

    def call(variables, x, context):
        if lean:
            return stack.apply(variables, x, context)[0]
        return stack.apply(variables, (x, context))[0][0]

    args = f32(N, D), f32(N, D)
    start = (args[0], args[1]) if lean else (args,)
    variables = jax.eval_shape(stack.init, jax.random.key(0), *start)
    return lambda *a: jnp.sum(call(*a) ** 2), (variables, *args)


def equinox(lean):
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __init__(self, key):
            self.up, self.down = (eqx.nn.Linear(D, D, key=k) for k in jax.random.split(key))

        def __call__(self, x, mask):
            return x + jnp.where(mask, jax.vmap(self.down)(jnp.tanh(jax.vmap(self.up)(x))), 0)

    def stacked():
        return eqx.filter_vmap(Block)(jax.random.split(jax.random.key(0), L))

    def loss(blocks, x, mask):
        arrays, static = eqx.partition(blocks, eqx.is_array)

        @eqx.filter_checkpoint
        def body(carry, arrays):
            x, m = (carry, mask) if lean else carry
            x = eqx.combine(arrays, static)(x, m)
            return x if lean else (x, m), None

        end, _ = jax.lax.scan(body, x if lean else (x, mask), arrays)
        return jnp.sum((end if lean else end[0]) ** 2)

    mask = jax.ShapeDtypeStruct((N, D), jnp.float32)
    return loss, (eqx.filter_eval_shape(stacked), f32(N, D), mask)


def maxtext_4405(lean):
    """maxtext#4405: scanned NNX layers that return their parameters, which the loop stacks.

    The thread ended with returning only what is no parameter.
    """
    nnx = pytest.importorskip("flax.nnx")
    width = 2048

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(width, 2 * width, rngs=rngs)
            self.down = nnx.Linear(2 * width, width, rngs=rngs)

        def __call__(self, x):
            return x + self.down(jnp.tanh(self.up(x)))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.vmap(Block)(rngs.fork(split=L))

        def __call__(self, x):
            graph, params, state = nnx.split(self.layers, nnx.Param, ...)

            @jax.checkpoint
            def body(x, slices):
                block = nnx.merge(graph, *slices)
                x = block(x)
                if lean:
                    return x, nnx.split(block, nnx.Param, ...)[2]
                return x, nnx.state(block)

            x, new = jax.lax.scan(body, x, (params, state))
            nnx.update(self.layers, new)
            return x

    def step(model, x):
        gradients = nnx.grad(lambda m: jnp.sum(m(x) ** 2))(model)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), gradients)
        nnx.update(model, new)

    model = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    return step, (model, f32(512, width))


def history(lean):
    """A simulation of oscillators without a gradient, of which mean, variance and peak are read."""

    def simulate(x, v):
        def trip(carry, _):
            (x, v), sums = carry
            v = v - 0.1 * jnp.sin(x)
            x = x + 0.1 * v
            if not lean:
                return ((x, v), sums), (x, v**2)
            first, second, highest = sums
            return ((x, v), (first + x, second + x**2, jnp.maximum(highest, v**2))), None

        sums = (jnp.zeros_like(x), jnp.zeros_like(x), jnp.zeros_like(x)) if lean else ()
        (end, sums), stacks = jax.lax.scan(trip, ((x, v), sums), length=200)
        if lean:
            first, second, highest = sums[0] / 200, sums[1] / 200, sums[2]
        else:
            xs, energies = stacks
            first, second, highest = xs.mean(0), (xs**2).mean(0), energies.max(0)
        return end, first, second - first**2, highest

    return simulate, (f32(N, 16), f32(N, 16))


PROGRAMS = (last_of_stack, last_hidden, with_context, linen, equinox, maxtext_4405, history)
# What the gate has time for.
GATE = {
    (maxtext_4405, "gpu:h100"),
    (linen, "tpu:v5e"),
    (history, "gpu:h100"),
    (history, "tpu:v5e"),
}


@pytest.mark.parametrize(("program", "on"), cases(PROGRAMS, GATE))
def test_the_peak_of_xla_falls_as_much(program, on):
    if program is maxtext_4405 and on == "tpu:v5e":
        # This compiler reads the parameters where the program reads the stack of them.
        before, after = (peak_by_xla(*program(lean), on) for lean in (False, True))
        assert figures("JXR833", *program(False), on) == [] and before - after < 0.03 * before
        return
    found = peaks(program, "JXR833", on)
    if on == "gpu:h100":
        near = 0.05 if program is maxtext_4405 else 0.15
        estimated = found.estimated_before - found.estimated_after
        assert estimated == pytest.approx(found.before - found.after, rel=near)
    assert found.fall > 0.7 * found.estimated_fall
