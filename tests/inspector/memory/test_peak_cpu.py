"""The peak under the `cpu` profile: what each rule stores, and what XLA:CPU then reports."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxresid import jax_compat
from jaxresid.inspector.call.arguments import arguments
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.memory.cpu.profile import Cpu
from jaxresid.inspector.memory.liveness import timeline
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.program.build import ValueRole, program_of_jaxpr, value_and_gradients
from jaxresid.inspector.trace.function import trace

F32, BF16 = jnp.float32, jnp.bfloat16
X = jax.ShapeDtypeStruct((128, 128), F32)
UNIT = 128 * 128 * 4


def array(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def stored(fun, *args):
    """Temporaries of a function at its peak, in arrays of 128 x 128 floats."""
    closed = jax.make_jaxpr(fun)(*args)
    jaxpr = jax_compat.open_jaxpr(closed)
    inputs = [ValueRole("argument")] * (len(jaxpr.constvars) + len(jaxpr.invars))
    program = program_of_jaxpr(jaxpr, inputs, [ValueRole("output")] * len(jaxpr.outvars))
    return round(timeline(lower(program, Cpu())).peak_nbytes / UNIT, 1)


def matmul(a, b, contracting, batch=((), ())):
    return lax.dot_general(a, b, (contracting, batch))


class TestLoopFusions:
    def test_a_chain_of_elementwise_ops_needs_nothing(self):
        assert stored(lambda x: jnp.tan(jnp.exp(x) * 2) + 1, X) == 0

    def test_what_a_dot_reads_is_stored(self):
        assert stored(lambda x, w: jnp.tan(x) @ w, X, X) == 1

    def test_a_dear_value_that_two_loops_read_is_stored(self):
        def fun(first, x):
            y = first(x)
            return jnp.tan(y[:2]), jnp.tan(y[2:4])

        assert stored(functools.partial(fun, jnp.exp), X) == 1
        assert stored(functools.partial(fun, lambda x: x + 1), X) == 0

    def test_a_loop_writes_over_what_nobody_reads_again(self):
        assert stored(lambda x, w: jnp.tan(x @ w) @ w, X, X) == 1

    def test_but_not_over_what_is_read_again(self):
        def fun(x, w):
            y = x @ w
            return jnp.tan(y) @ w + y

        assert stored(fun, X, X) == 2

    def test_dead_code_is_free(self):
        def fun(x):
            jnp.tan(x @ x) @ x
            return x + 1

        assert stored(fun, X) == 0


class TestLibraryFusions:
    def test_a_reduction_takes_in_what_only_it_reads(self):
        assert stored(lambda x: jnp.sum(jnp.exp(x * x)), X) == 0

    def test_and_what_is_left_of_it_to_its_only_reader(self):
        def fun(x, w, v):
            shares = jnp.exp(x @ w - jnp.max(x @ w))
            return shares.reshape(64, 256) @ v

        assert stored(fun, X, X, array(256, 128)) == 1

    def test_not_what_others_read(self):
        assert stored(lambda x: (jnp.sum(jnp.exp(x)), jnp.tan(jnp.exp(x))[:2]), X) == 1

    def test_nor_what_it_has_no_kernel_for(self):
        assert stored(lambda x: jnp.sum(jnp.tan(x)), X) == 1

    def test_small_ones_are_loops(self):
        assert stored(lambda x: jnp.sum(jnp.tan(x[:8])), X) == 0

    def test_a_broadcast_that_two_of_them_read_is_stored(self):
        assert stored(lambda x: jnp.max(x * 0.3), X) == 0
        assert stored(lambda x, y: jnp.max(x * 0.3) + jnp.max(y * 0.3), X, X) == 1


class TestCopies:
    def test_a_matrix_is_read_either_way_round(self):
        assert stored(lambda a, b: matmul(a, b, ((0,), (0,))), X, X) == 0
        assert stored(lambda a, b: a.T @ b, X, X) == 0

    def test_so_are_matrices_behind_a_batch(self):
        a = array(4, 64, 64)
        assert stored(lambda a, b: matmul(a, b, ((1,), (2,)), ((0,), (0,))), a, a) == 0

    def test_axes_that_are_out_of_order_are_copied(self):
        a = array(8, 16, 128)
        assert stored(lambda a, b: matmul(a, b, ((0, 1), (0, 1))), a, a) == 1
        assert stored(lambda a, b: matmul(a, b, ((2,), (2,)), ((1,), (1,))), a, a) == 2

    def test_transpositions_in_a_row_are_one(self):
        def fun(a, b):
            heads = a.transpose(1, 0, 2)
            return matmul(
                heads, b.transpose(1, 0, 2).transpose(0, 2, 1), ((2,), (1,)), ((0,), (0,))
            )

        assert stored(fun, array(8, 16, 128), array(8, 16, 128)) == 2

    def test_a_dot_writes_its_result_either_way_round(self):
        assert stored(lambda a, b: (a @ b).T, X, X) == 0

    def test_bfloat16_is_widened_where_the_library_has_no_kernel(self):
        a = array(128, 128, dtype=BF16)
        assert stored(lambda a, b: a @ b, a, a) == 0
        assert stored(lambda a, b: matmul(a, b, ((0,), (0,))), a, a) == 3

    def test_what_several_scatters_write_over_is_copied_but_once(self):
        def fun(x, y):
            at = jnp.arange(3)
            a = jnp.zeros_like(x).at[at].add(y[:3])
            b = jnp.zeros_like(x).at[at].add(y[3:6])
            return a[:2], b[:2]

        assert stored(fun, X, X) == 3

    def test_zeros_scattered_to_and_added_are_scattered_to_the_other(self):
        def fun(x, y):
            return jnp.tan(jnp.zeros_like(x).at[jnp.arange(3)].add(y[:3]) + x @ x)[:2]

        assert stored(fun, X, X) == 1


class TestOutputs:
    def test_a_buffer_holds_temporaries_until_it_is_written(self):
        def fun(x):
            y = jnp.tan(x) @ x
            return jnp.tan(y) @ x

        assert stored(fun, X) == 1
        assert stored(lambda x: jnp.sum(fun(x)[0]), X) == 2


class TestLoops:
    def test_a_scan_keeps_its_stack_and_a_carry(self):
        def fun(x):
            return jnp.tan(lax.scan(lambda c, _: (jnp.tan(c), c), x, None, length=4)[1]).sum()

        # The stack, which its tangent overwrites; the carry, and its next value.
        assert stored(fun, X) == 6

    def test_stacks_that_are_returned_are_outside(self):
        def fun(x):
            return lax.scan(lambda c, _: (c + 1, c), x, None, length=64)[1]

        assert stored(fun, X) < 4

    def test_a_slice_of_a_stack_that_a_dot_reads_is_copied(self):
        def fun(read, x, stack):
            return lax.scan(lambda c, w: (read(c, w), None), x, stack)[0]

        stack = array(4, 128, 128)
        by_loop = stored(functools.partial(fun, lambda c, w: c + w), X, stack)
        by_dot = stored(functools.partial(fun, lambda c, w: c + w @ w), X, stack)
        assert by_dot - by_loop == 2  # the slice and the product


def test_the_gradient_of_pooling_finds_its_places_by_coordinates():
    def fun(x, g):
        def pool(x):
            return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID")

        return jax.vjp(pool, x)[1](g)[0] + 1

    # Coordinates of each axis; of each window its maximum and its place, as a table too.
    assert stored(fun, X, array(64, 64)) == pytest.approx(2 + 3 / 4, abs=0.1)


def layer(x, w):
    return jnp.sin(jnp.sin(jnp.sin(x @ w)))


def estimate(fun, *args):
    program = value_and_gradients(trace(fun, arguments(Question(fun, args)), False, Frames()))
    outside = sum(v.nbytes for v in program.block.inputs)
    outside += sum(v.size * v.itemsize for v in program.block.outputs)
    return outside + timeline(lower(program, Cpu())).peak_nbytes


def unrolled(body, x, ws):
    for w in ws:
        x = body(x, w)
    return jnp.sum(x**2)


def scanned(body, x, ws):
    return jnp.sum(lax.scan(lambda x, w: (body(x, w), None), x, ws)[0] ** 2)


class TestCheckpoints:
    def test_a_region_is_computed_again_and_only_its_inputs_are_kept(self):
        ws = [X] * 8
        plain = estimate(functools.partial(unrolled, layer), X, ws)
        checkpointed = estimate(functools.partial(unrolled, jax.checkpoint(layer)), X, ws)
        # Three values of each layer are kept without, its input with; some are in the gradients'.
        assert plain - checkpointed > 4 * UNIT

    def test_without_its_barrier_nothing_is_saved(self):
        ws = [X] * 8
        undone = jax.checkpoint(layer, prevent_cse=False)
        plain = estimate(functools.partial(unrolled, layer), X, ws)
        assert estimate(functools.partial(unrolled, undone), X, ws) == plain


# --- against the compiler ---------------------------------------------------------------------


def attention(x, p):
    heads = [z.reshape(2, 256, 4, 64).transpose(0, 2, 1, 3) for z in jnp.split(x @ p["qkv"], 3, -1)]
    q, k, v = heads
    shares = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) * 0.125)
    y = x + (shares @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"]
    return y + jax.nn.gelu(y @ p["up"]) @ p["down"]


def dense(x, p):
    return x + jax.nn.gelu(x @ p["a"] + p["c"]) @ p["b"]


def blurred(x, p):
    numbers = ("NHWC", "HWIO", "NHWC")
    h = lax.conv_general_dilated(x, p["k"], (1, 1), "SAME", dimension_numbers=numbers)
    return x + jax.nn.relu(h - jnp.mean(h, axis=(0, 1, 2)))


def pooled(ws, x):
    for w in ws:
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return (x**2).sum()


def recurrent(w, xs):
    def step(h, x):
        h = jnp.tanh(x @ w["x"] + h @ w["h"])
        return h, h

    return jnp.sum(lax.scan(step, xs[0], xs)[1] ** 2)


def tagged(w, x, tokens):
    h = w["words"][tokens] + x
    logits = h @ w["words"].T
    right = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - right)


def weights(count, dtype=F32, stack=False, **shapes):
    if stack:
        return {name: array(count, *shape, dtype=dtype) for name, shape in shapes.items()}
    return [{name: array(*shape, dtype=dtype) for name, shape in shapes.items()}] * count


ATTENTION = {"qkv": (256, 768), "out": (256, 256), "up": (256, 1024), "down": (1024, 256)}
DENSE = {"a": (512, 1024), "c": (1024,), "b": (1024, 512)}
CASES = {
    "attention, scanned": (
        functools.partial(scanned, attention),
        (array(2, 256, 256), weights(4, stack=True, **ATTENTION)),
    ),
    "attention, scanned and checkpointed": (
        functools.partial(scanned, jax.checkpoint(attention)),
        (array(2, 256, 256), weights(4, stack=True, **ATTENTION)),
    ),
    "attention, unrolled, dots": (
        functools.partial(
            unrolled,
            jax.checkpoint(attention, policy=jax.checkpoint_policies.dots_saveable),
        ),
        (array(2, 256, 256), weights(3, **ATTENTION)),
    ),
    "dense, unrolled": (
        functools.partial(unrolled, dense),
        (array(512, 512), weights(4, **DENSE)),
    ),
    "dense, scanned, bfloat16": (
        lambda x, ws: scanned(dense, x, ws).astype(F32),
        (array(512, 512, dtype=BF16), weights(4, dtype=BF16, stack=True, **DENSE)),
    ),
    "convolutions, checkpointed": (
        functools.partial(unrolled, jax.checkpoint(blurred)),
        (array(8, 32, 32, 64), weights(4, k=(3, 3, 64, 64))),
    ),
    "recurrence": (
        recurrent,
        ({"x": array(256, 256), "h": array(256, 256)}, array(32, 128, 256)),
    ),
    "pooling": (
        pooled,
        ([array(3, 3, 16, 32), array(3, 3, 32, 64)], array(8, 32, 32, 16)),
    ),
    "words": (
        tagged,
        ({"words": array(4096, 256)}, array(2, 256, 256), array(2, 256, dtype=jnp.int32)),
    ),
}


@pytest.mark.skipif(
    tuple(int(n) for n in jax.__version__.split(".")[:2]) < (0, 12),
    reason="XLA:CPU before jaxlib 0.12 fuses otherwise, and drops the barriers of checkpoints",
)
@pytest.mark.parametrize("name", CASES)
def test_the_compiler_agrees(name):
    fun, args = CASES[name]
    real = [
        i
        for i, a in enumerate(args)
        if all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(a))
    ]
    device = jax.devices("cpu")[0]
    gradient = jax.jit(jax.value_and_grad(fun, argnums=tuple(real)))
    with jax.default_device(device):
        stats = gradient.lower(*args).compile().memory_analysis()
    actual = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    assert estimate(fun, *args) == pytest.approx(actual, rel=0.15)
