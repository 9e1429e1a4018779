"""The profile of a GPU: each rule on a program whose answer can be counted."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxresid.inspector.memory.liveness import timeline
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.profile import GPU, TPU
from jaxresid.inspector.memory.rules.kernels import Kernel, kernels
from jaxresid.inspector.memory.rules.strides import AS_IT_IS, read_order, row_major, viewed
from jaxresid.inspector.program.ops import Op
from tests.inspector.memory.test_peak_tpu import BF16, F32, I32, bodies, program

ROWS, WIDTH, LAYERS = 4096, 1024, 5
X, W = ((ROWS, WIDTH), F32), ((WIDTH, WIDTH), F32)
STACK = ((LAYERS, WIDTH, WIDTH), F32)
ACTIVATION = ROWS * WIDTH * 4


def made(fun, *args):
    """Return the kernels of a function with its gradients."""
    return kernels(program(fun, *args).block, None, GPU)


def large(block):
    """Return the names of the kernels that write an activation or more."""
    return [op.name for op in block.ops if any(v.nbytes >= ACTIVATION for v in op.results)]


def temporaries(fun, *args, profile=GPU):
    return timeline(lower(program(fun, *args), profile)).peak_nbytes


def test_a_dot_reads_arrays_which_are_kept_for_the_backward_pass():
    def loss(x, a, b):
        return jnp.sum(jnp.tanh(x @ a) @ b)

    block = made(loss, X, W, W)
    tanh = next(op for op in block.ops if op.name == "tanh")
    readers = [op.name for op in block.ops if tanh.results[0] in op.operands]
    assert readers.count("dot_general") == 2
    assert "tanh" not in large(kernels(program(loss, X, W, W).block, None, TPU))


def test_nothing_is_padded_and_float32_stays():
    def loss(x, w):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    block = made(loss, ((4096, 1000), F32), ((1000, 1001), F32))
    assert block.nbytes == {}


def test_elementwise_values_are_computed_again_in_their_readers():
    def loss(x, w):
        return jnp.sum(jnp.cos(jnp.sin(x @ w)) * jnp.sin(x @ w))

    assert large(made(loss, X, W)).count("sin") == 0


@pytest.mark.parametrize(("dtype", "count"), [(F32, 0), (BF16, 1)])
def test_tanh_of_two_bytes_is_kept(dtype, count):
    def loss(x, w):
        h = jnp.tanh(x @ w)
        return jnp.sum(h * (h + x))

    names = [op.name for op in made(loss, (X[0], dtype), (W[0], dtype)).ops]
    assert names.count("tanh") == count


def test_a_residual_connection_finishes_a_dot_but_an_activation_does_not():
    def connected(x, w):
        return jnp.sum((x + x @ w) ** 2)

    def activated(x, w):
        return jnp.sum(jnp.exp(x @ w) @ w)

    assert "add" not in large(made(connected, X, W))
    assert "exp" in large(made(activated, X, W))


HEADS = ((4, 256, 8, 128), F32)


def test_heads_are_copied_to_the_front_once_for_all_dots():
    def loss(q, k):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        return jnp.sum(scores**2)

    block = made(loss, HEADS, HEADS)
    assert sum(op.name == "copy" for op in block.ops) == 2


def _op(name, before, after, **params):
    return next(
        op
        for op in program(lambda x: jnp.sum(after(x) * 1.0), (before, F32)).block.ops
        if op.name == name
    )


@pytest.mark.parametrize(
    ("view", "name", "expected"),
    [
        (lambda x: x.reshape(2, 3, 20), "reshape", (60, 20, 1)),
        (lambda x: x.reshape(24, 5), "reshape", (5, 1)),
        (lambda x: x.reshape(1, 120), "reshape", (1, 1)),
        (lambda x: x.transpose(1, 0, 2), "transpose", (20, 60, 1)),
    ],
)
def test_views_have_the_strides_of_their_array(view, name, expected):
    op = _op(name, (2, 3, 20) if name == "transpose" else (6, 4, 5), view)
    assert viewed(op, row_major(op.operands[0].shape)) == expected


def test_a_reshape_across_a_transpose_is_no_view():
    op = _op("reshape", (6, 4), lambda x: x.reshape(24))
    assert viewed(op, (1, 6)) is None


def test_a_dot_reads_either_order_of_rows_and_columns_where_they_lie():
    block = program(lambda x, w: jnp.sum(x @ w), ((8, 16), F32), ((16, 32), F32)).block
    dot = next(op for op in block.ops if op.name == "dot_general")
    assert read_order(dot, 0, (16, 1)) == read_order(dot, 0, (1, 8)) == AS_IT_IS
    assert read_order(dot, 0, None) != AS_IT_IS


def test_a_dropout_keeps_its_mask_and_not_its_bits():
    def loss(x, w, key):
        h = x @ w
        keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.5, h.shape)
        return jnp.sum(jnp.where(keep, h, 0.0) ** 2)

    block = made(loss, X, W, ((2,), jnp.uint32))
    bits = next(op for op in block.ops if op.name == "random_bits")
    assert bits.results[0].dtype == "bool"


def test_gathers_are_computed_inside_what_reads_them():
    def loss(x, w, i):
        return jnp.sum((x[i] * 2.0 + 1.0) @ w)

    assert "gather" not in large(made(loss, X, W, ((ROWS,), I32)))


def overwriting(block):
    return [op for op in block.ops if isinstance(op, Kernel) and op.overwrites]


def test_an_elementwise_kernel_writes_over_what_it_reads():
    block = made(lambda x, w: jnp.sum(jnp.exp(x @ w) @ w), X, W)
    assert any(op.name == "exp" for op in overwriting(block))


def test_a_softmax_does_not_write_over_what_it_sums_up():
    block = made(lambda x, w: jnp.sum(jax.nn.softmax(x @ w) @ w), X, W)
    scores = block.ops[0].results[0]
    assert not any(scores in op.overwrites for op in overwriting(block))


def test_two_elementwise_kernels_of_one_array_write_over_nothing():
    def loss(x, w):
        h = x @ w
        return jnp.sum(jnp.sin(h) @ w) + jnp.sum(jnp.exp(h) @ w)

    first = made(loss, X, W).ops[0].results[0]
    assert not any(first in op.overwrites for op in overwriting(made(loss, X, W)))
    assert first.nbytes == ACTIVATION


def scanned(x, stack):
    return jnp.sum(lax.scan(lambda h, w: (jnp.exp(h @ w), None), x, stack)[0])


def test_slices_of_a_stack_are_copied_for_dots_at_the_start_of_a_trip():
    body = bodies(made(scanned, X, STACK))[-1]
    assert [op.name for op in body.ops[:1]] == ["copy"]


def test_what_a_trip_stacks_and_reads_is_an_array_besides():
    body = bodies(made(scanned, X, STACK))[0]
    stacked = [op for op in body.ops if op.name == "copy" and op.results[0] in body.outputs]
    assert stacked


def test_constants_that_a_loop_reads_are_arrays():
    def loss(x, stack):
        fill = jnp.full(x.shape, 3.0)
        body = lambda h, w: (jnp.where(h > 0, h @ w, fill), None)
        return jnp.sum(lax.scan(body, x, stack)[0])

    assert "broadcast_in_dim" in large(made(loss, X, STACK))


def test_a_donated_arguments_buffer_is_not_lent():
    import jaxresid

    def step(params, x):
        grads = jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p) @ p))(params)
        return params - grads

    args = jax.ShapeDtypeStruct(*W), jax.ShapeDtypeStruct(*X)
    given = jaxresid.inspect(jax.jit(step, donate_argnums=0), mode="step", on="gpu:h100")(*args)
    held = jaxresid.inspect(jax.jit(step), mode="step", on="gpu:h100")(*args)
    assert given.peak.nbytes <= held.peak.nbytes
    assert given.peak.temporaries_nbytes >= held.peak.temporaries_nbytes


def test_a_gpu_keeps_more_than_a_tpu():
    def loss(x, a, b):
        return jnp.sum(jax.nn.gelu(x @ a) @ b)

    assert temporaries(loss, X, W, W) > temporaries(loss, X, W, W, profile=TPU)


def test_the_tables_name_every_decision():
    assert {GPU.name, TPU.name} == {"gpu", "tpu"}
    assert isinstance(made(scanned, X, STACK).ops[0], Op)
