"""The profile of a TPU: each rule on a program whose answer can be counted, and whole models
against the TPU compiler where libtpu is installed."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxresid
from jaxresid.inspector.call.arguments import arguments
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.memory.liveness import timeline
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.profile import GPU, TPU
from jaxresid.inspector.memory.rules.kernels import kernels
from jaxresid.inspector.memory.rules.layouts import layouts, stored_nbytes
from jaxresid.inspector.program.build import value_and_gradients
from jaxresid.inspector.program.ops import Block, Value
from jaxresid.inspector.trace.function import trace

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
ROWS, WIDTH, LAYERS = 4096, 1024, 5
ACTIVATION = ROWS * WIDTH  # elements
WEIGHT = WIDTH * WIDTH
# What scalars and vectors may add to a figure in bytes.
SMALL = 64 << 10


def program(fun, *args):
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in args]
    return value_and_gradients(trace(fun, arguments(Question(fun, args)), False, Frames()))


def walked(fun, *args):
    return timeline(lower(program(fun, *args), TPU))


def temporaries(fun, *args):
    return walked(fun, *args).peak_nbytes


def lowered(fun, *args):
    return kernels(program(fun, *args).block, None, TPU)


def bodies(block):
    return [op.bodies[0] for op in block.ops if op.nest is not None]


def size(block, value):
    return block.nbytes.get(value, value.nbytes)


def about(nbytes):
    return pytest.approx(nbytes, abs=SMALL)


X, W = ((ROWS, WIDTH), F32), ((WIDTH, WIDTH), F32)
STACK = ((LAYERS, WIDTH, WIDTH), F32)


# --- what is an array ------------------------------------------------------------------------


def test_cheap_elementwise_values_are_computed_where_they_are_read():
    assert temporaries(lambda x: jnp.sum(jnp.tanh(jnp.exp(x) * 2)), X) == about(0)


def test_a_dot_is_an_array_and_what_is_made_of_it_is_not():
    def loss(x, w, b):
        return jnp.sum(jax.nn.relu(x @ w + b))

    assert temporaries(loss, X, W, ((WIDTH,), F32)) == about(4 * ACTIVATION)


def test_a_sine_that_dots_read_is_an_array_of_bfloat16():
    def loss(x, w):
        return jnp.sum(jnp.sin(x @ w) @ w)

    block = lowered(loss, X, W)
    (sine,) = (op for op in block.ops if op.name == "sin")
    assert size(block, sine.results[0]) == 2 * ACTIVATION


def test_a_sine_that_is_read_once_is_not():
    block = lowered(lambda x: jnp.sum(jnp.sin(x)), X)
    assert "sin" not in {op.name for op in block.ops}


def test_one_buffer_for_each_layer_without_checkpoint():
    """What the masks are made of stays; the gradient is written over it."""

    def loss(x, *weights):
        for w in weights:
            x = jax.nn.relu(x @ w)
        return jnp.sum(x)

    weights = [W] * LAYERS
    assert temporaries(loss, ((ROWS, WIDTH), BF16), *[(s, BF16) for s, _ in weights]) == about(
        2 * ACTIVATION * LAYERS
    )


def test_a_residual_sum_is_written_by_the_dot_it_adds():
    def loss(x, w):
        for _ in range(2):
            x = x + x @ w
        return jnp.sum(x * x)

    names = [op.name for op in lowered(loss, X, W).ops if op.phase == "forward"]
    assert "add" not in names


def test_a_dot_is_not_written_over_what_it_multiplies():
    def loss(x, w):
        return jnp.sum((x @ w) @ w + 1)

    forward = [op for op in lowered(loss, X, W).ops if op.phase == "forward"]
    dots = [op for op in forward if op.name == "dot_general"]
    assert [op.overwrites for op in dots] == [(), ()]


def test_what_takes_several_arrays_to_compute_is_an_array_for_several_readers():
    def loss(x, w):
        a, b = x @ w, x @ (w + 1)
        mixed = jnp.sin(a) * jnp.cos(b)
        return jnp.sum(mixed @ w) + jnp.sum(jnp.square(mixed @ (w * 3))) + jnp.sum(mixed**3)

    names = [op.name for op in lowered(loss, X, W).ops if op.phase == "forward"]
    assert names.count("mul") == 1


def test_a_cast_to_a_narrower_type_is_an_array_for_two_dots():
    def loss(x, w, v):
        read = jnp.exp(x @ w).astype(BF16)
        return jnp.sum((read @ v).astype(F32))

    block = lowered(loss, X, W, ((WIDTH, WIDTH), BF16))
    casts = [
        op
        for op in block.ops
        if op.name == "convert_element_type" and op.results[0].shape == (ROWS, WIDTH)
    ]
    assert [op.results[0].dtype for op in casts if op.phase == "forward"] == ["bfloat16"]


def test_a_dot_that_sums_over_nothing_is_a_product():
    def loss(a, b):
        return jnp.sum(jnp.tanh(jnp.einsum("i,j->ij", a, b)))

    assert temporaries(loss, ((ROWS,), F32), ((WIDTH,), F32)) == about(0)


def test_the_gradient_of_picking_a_label_is_a_comparison():
    words = 8192

    def loss(x, w, labels):
        logits = x @ w
        right = jnp.take_along_axis(logits, labels[:, None], axis=-1)
        return jnp.sum(jax.nn.logsumexp(logits, axis=-1)) - jnp.sum(right)

    names = [op.name for op in lowered(loss, X, ((WIDTH, words), F32), ((ROWS,), I32)).ops]
    assert not [name for name in names if name.startswith("scatter")]
    assert temporaries(loss, X, ((WIDTH, words), F32), ((ROWS,), I32)) == about(4 * ROWS * words)


def test_a_scatter_into_rows_that_many_share_is_a_kernel():
    def loss(x, w, ids):
        return jnp.sum(jnp.square((x @ w)[ids]))

    names = [op.name for op in lowered(loss, X, W, ((2 * ROWS,), I32)).ops]
    assert [name for name in names if name.startswith("scatter")]


def test_a_dot_with_a_vector_reads_float32():
    def loss(x, w, shares):
        out = jnp.einsum("td,edf->etf", x, w)
        return jnp.sum(jnp.einsum("te,etf->tf", shares, out))

    block = lowered(loss, X, ((4, WIDTH, WIDTH), F32), ((ROWS, 4), F32))
    (out,) = (op for op in block.ops if op.phase == "forward" and len(op.results[0].shape) == 3)
    assert size(block, out.results[0]) == 4 * 4 * ACTIVATION


def test_a_cast_at_the_end_of_an_epilogue_counts_if_it_narrows():
    def loss(x, w, v):
        between = ((x @ w).astype(F32) * 2 + 1).astype(BF16)
        return jnp.sum((between @ v).astype(F32))

    block = lowered(loss, (X[0], BF16), (W[0], BF16), (W[0], BF16))
    first = block.ops[0]
    assert first.name == "dot_general"
    assert size(block, first.results[0]) == 2 * ACTIVATION


@pytest.mark.parametrize(
    ("finished", "dtype"),
    [
        (lambda y, b, r: jnp.tanh(y), BF16),
        (lambda y, b, r: jnp.exp(y + b), BF16),
        (lambda y, b, r: r + y, F32),
        (lambda y, b, r: jax.nn.softmax(y * 2), F32),
    ],
    ids=["tanh", "bias", "residual", "softmax"],
)
def test_a_dot_that_is_finished_in_a_wider_type_alone_keeps_its_own(finished, dtype):
    """As libtpu 0.0.52 has it: a tanh in float32 of a bfloat16 dot is computed for each reader."""

    def loss(x, w, v, b, r):
        y = finished((x @ w).astype(F32), b, r)
        return jnp.sum((y.astype(BF16) @ v).astype(F32)) + jnp.sum(jnp.square(y))

    shapes = ((ROWS, WIDTH), BF16), ((WIDTH, WIDTH), BF16), ((WIDTH, WIDTH), BF16)
    block = lowered(loss, *shapes, ((WIDTH,), F32), X)
    made = next(op for op in block.ops if op.name == "dot_general")
    assert made.results[0].dtype == jnp.dtype(dtype).name


def test_what_another_array_is_made_of_does_not_count_as_read_by_its_readers():
    """The loss's cotangent leads to one array, which three kernels read."""

    def loss(x, w, b, y):
        away = jax.nn.gelu(x @ w + b) - y
        return jnp.mean(jnp.square(away.astype(F32)))

    block = lowered(loss, (X[0], BF16), (W[0], BF16), ((WIDTH,), BF16), (X[0], BF16))
    assert "convert_element_type" not in {op.name for op in block.ops}


# --- loops -----------------------------------------------------------------------------------


def linear(x, w):
    return x @ w, None


def test_a_stack_that_dots_alone_read_holds_bfloat16_and_their_weights_are_cast_once():
    def loss(x, ws):
        return jnp.sum(lax.scan(linear, x, ws)[0])

    live = walked(loss, X, STACK).live
    stacks = [s.buffer.nbytes for s in live if s.buffer.value.shape[:1] == (LAYERS,)]
    assert sorted(stacks) == [2 * LAYERS * WEIGHT, 2 * LAYERS * ACTIVATION]


@pytest.mark.parametrize("turned", [False, True])
def test_a_dot_of_which_dots_read_pieces_holds_bfloat16(turned):
    def fun(x, w, y):
        pieces = jnp.split(x @ w, 2, axis=-1)
        return sum(jnp.sin(p.T @ y if turned else y.T @ p).sum() for p in pieces)

    found = lowered(fun, X, W, ((ROWS, 256), F32))
    made = next(op for op in found.ops if op.name == "dot_general")
    assert size(found, made.results[0]) == 2 * ACTIVATION


def test_a_dot_whose_pieces_are_split_into_heads_holds_float32():
    def fun(x, w):
        first, second = (
            v.reshape(ROWS, 8, -1).transpose(1, 0, 2) for v in jnp.split(x @ w, 2, axis=-1)
        )
        return jnp.sin(first @ second.swapaxes(1, 2)).sum()

    found = lowered(fun, X, W)
    made = next(op for op in found.ops if op.name == "dot_general")
    assert size(found, made.results[0]) == 4 * ACTIVATION


def test_layers_that_are_iterated_over_are_slices():
    """Since 0.12 they are one unstack."""

    def iterated(x, ws):
        for w in ws:
            x = jnp.sin(x @ w)
        return jnp.sum(x)

    def indexed(x, ws):
        for i in range(LAYERS):
            x = jnp.sin(x @ ws[i])
        return jnp.sum(x)

    assert temporaries(iterated, X, STACK) == temporaries(indexed, X, STACK)


def test_at_highest_precision_nothing_is_narrowed():
    def step(x, w):
        return jnp.matmul(x, w, precision=lax.Precision.HIGHEST), None

    def loss(x, ws):
        return jnp.sum(lax.scan(step, x, ws)[0])

    live = walked(loss, X, STACK).live
    stacks = [s.buffer.nbytes for s in live if s.buffer.value.shape[:1] == (LAYERS,)]
    assert stacks == [4 * LAYERS * ACTIVATION]


def test_a_checkpoint_in_a_scan_copies_its_slices_of_the_stacks():
    def loss(x, ws):
        body = jax.checkpoint(lambda x, w: jnp.sin(x @ w))
        return jnp.sum(lax.scan(lambda x, w: (body(x, w), None), x, ws)[0])

    def copied(fun):
        backward = bodies(lowered(fun, X, STACK))[-1]
        copies = (op.results[0] for op in backward.ops if op.name == "copy")
        return sorted(size(backward, v) for v in copies)

    def plain(x, ws):
        return jnp.sum(lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, ws)[0])

    assert copied(loss) == [2 * WEIGHT, 2 * ACTIVATION]
    assert copied(plain) == []


def test_what_a_checkpoint_recomputes_is_finished_by_the_gradient():
    """A sine in a scan: in the forward pass the dot writes it, in the backward pass the dot that is
    recomputed writes the product with the cotangent, for dots in bfloat16; the bias's gradient is
    summed up on the way."""

    def loss(x, ws, bs):
        body = jax.checkpoint(lambda x, w, b: jnp.sin(x @ w + b))
        return jnp.sum(lax.scan(lambda x, p: (body(x, *p), None), x, (ws, bs))[0])

    forward, backward = bodies(lowered(loss, X, STACK, ((LAYERS, WIDTH), F32)))
    assert [op.name for op in forward.ops] == ["dot_general"]
    (recomputed,) = (op for op in backward.ops if op.phase == "recompute" and op.name != "copy")
    assert size(backward, recomputed.results[0]) == 2 * ACTIVATION


def test_a_stack_is_laid_out_as_what_it_stacks():
    def loss(x):
        return jnp.sum(lax.scan(lambda x, _: (jnp.sin(x), None), x, None, length=LAYERS)[0])

    block = lowered(loss, ((64, 257, 1024), F32))
    (stack,) = (v for op in block.ops for v in op.results if v.shape[:1] == (LAYERS,))
    assert size(block, stack) == 4 * LAYERS * 64 * 264 * 1024


def test_weight_gradients_are_the_last_kernels_of_a_trip():
    def loss(x, ws):
        return jnp.sum(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0])

    backward = bodies(lowered(loss, X, STACK))[-1]
    assert [op.results[0].shape for op in backward.ops][-1] == (WIDTH, WIDTH)


@pytest.mark.integration
def test_a_gradient_that_is_added_to_later_is_made_where_its_dot_is():
    """Sums over microbatches and optimizers add to all gradients after the backward pass."""

    def loss(ws, x):
        for w in ws:
            x = x + jax.checkpoint(lambda x, w: jnp.sin(x @ w) @ w.T)(x, w)
        return jnp.sum(x**2)

    def added(ws, totals, x):
        return [t * 0.9 + g for t, g in zip(totals, jax.grad(loss)(ws, x), strict=True)]

    x, ws = jax.ShapeDtypeStruct(*X), [jax.ShapeDtypeStruct(*W)] * LAYERS
    for place in ("tpu:v5e", "gpu:h100"):
        step = jaxresid.inspect(added, mode="program", on=place)(ws, ws, x)
        gradients = jaxresid.inspect(jax.grad(loss), mode="program", on=place)(ws, x)
        more = 4 * LAYERS * WEIGHT if place == "gpu:h100" else 0  # the products are arrays there
        least = gradients.peak.temporaries_nbytes
        assert least - SMALL <= step.peak.temporaries_nbytes <= least + more + SMALL


def test_an_inner_scan_has_a_stack_of_its_own():
    def loss(x, ws):
        def outer(x, ws):
            return lax.scan(lambda x, w: (jnp.sin(x @ w), x), x, ws)

        return jnp.sum(lax.scan(outer, x, ws)[1])

    forward = bodies(lowered(loss, X, ((2, LAYERS, WIDTH, WIDTH), F32)))[0]
    inner = next(op for op in forward.ops if op.nest is not None)
    copies = [op for op in forward.ops if op.name == "copy" and op.operands[0] in inner.results]
    assert len(copies) == len([v for v in inner.results if v.shape[:1] == (LAYERS,)])


def test_a_sum_over_trips_stays_in_its_buffer():
    """The gradient of a weight that all trips share."""

    def loss(x, w, xs):
        def step(x, y):
            return x + jnp.sin(y @ w), None

        return jnp.sum(lax.scan(step, x, xs)[0])

    backward = bodies(lowered(loss, X, W, ((LAYERS, ROWS, WIDTH), F32)))[-1]
    sums = [v for v in backward.outputs if v.shape == (WIDTH, WIDTH)]
    assert [size(backward, v) for v in sums] == [0]


# --- layouts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "fixed", "elements"),
    [
        ((1000,), {}, 1000),
        ((4096, 1), {}, 4096),
        ((16, 1000), {}, 16 * 1024),
        ((8, 1024, 64), {}, 8 * 1024 * 64),
        ((64, 257, 1024), {}, 64 * 264 * 1024),
        ((8, 1024, 16, 64), {}, 8 * 1024 * 16 * 64),
        ((8, 1024, 16, 64), {(8, 1024, 16, 64): (2, 3)}, 2 * 8 * 1024 * 16 * 64),
        ((4096, 4, 256), {(4096, 4, 256): (1, 2)}, 4096 * 4 * 256),
        ((4096, 3, 256), {(4096, 3, 256): (1, 2)}, 4096 * 8 * 256),
        ((16, 32, 32, 64), {(16, 32, 32, 64): (0, 3)}, 2 * 16 * 32 * 32 * 64),
        ((128, 32, 32, 64), {(128, 32, 32, 64): (0, 3)}, 128 * 32 * 32 * 64),
        ((32, 512, 16, 1, 64), {}, 32 * 512 * 16 * 64),
    ],
)
def test_arrays_are_padded_to_tiles(shape, fixed, elements):
    assert stored_nbytes(Value(shape, "float32", 4), 4, fixed) == 4 * elements
    stack = Value((5, *shape), "float32", 4)
    assert stored_nbytes(stack, 4, fixed, is_stack=True) == 5 * 4 * elements


def test_images_are_tiled_over_batch_and_features():
    def loss(x, k):
        y = lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(y * y)

    for batch, padded in ((16, 2), (128, 1)):
        args = ((batch, 32, 32, 128), BF16), ((3, 3, 128, 64), BF16)
        assert temporaries(loss, *args) == about(2 * batch * 32 * 32 * 64 * padded)


def test_a_reshape_of_the_minor_axis_is_a_copy_in_float32():
    def loss(x, w):
        y = (x @ w).reshape(64, 64, 8, WIDTH // 8).astype(F32)
        return jnp.sum(jnp.square(y - jnp.mean(y, axis=(1, 3), keepdims=True)))

    block = lowered(loss, ((ROWS, WIDTH), BF16), ((WIDTH, WIDTH), BF16))
    cut = [op for op in block.ops if op.name == "reshape" and op.phase == "forward"]
    assert [size(block, op.results[0]) for op in cut] == [4 * ACTIVATION]


def in_groups(x):
    return x.reshape(*x.shape[:-1], 8, x.shape[-1] // 8)


def divided(x, axes):
    """Divide by the root mean square of groups, as `flax.linen.GroupNorm` does."""
    square = jnp.mean(jnp.square(in_groups(x).astype(F32)), axis=axes, keepdims=True)
    root = jnp.broadcast_to(lax.rsqrt(square), (*square.shape[:-1], x.shape[-1] // 8))
    return x * root.reshape(*root.shape[:-2], x.shape[-1])


def divided_in_groups(x, axes):
    y = in_groups(x).astype(F32)
    y = y - jnp.mean(y, axis=axes, keepdims=True)
    square = jnp.mean(jnp.square(y), axis=axes, keepdims=True)
    return (y * lax.rsqrt(square)).reshape(x.shape)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_groups_that_are_asked_for_statistics_over_rows_are_no_copy(dtype):
    def loss(normalised, axes):
        def fun(x, w):
            x = (x @ w).reshape(64, 64, WIDTH)
            return jnp.sum(jnp.square(normalised(x, axes).astype(F32)))

        return fun

    args = ((ROWS, WIDTH), dtype), ((WIDTH, WIDTH), dtype)
    product = ACTIVATION * jnp.dtype(dtype).itemsize
    assert temporaries(loss(divided, (1, 3)), *args) == about(product + 64 * WIDTH * 4)
    # The sum over the lanes of a row cannot be taken before they are split, and what is computed
    # in groups has copies in some programs.
    for fun in (loss(divided, (3,)), loss(divided_in_groups, (1, 3))):
        copies = [op for op in lowered(fun, *args).ops if op.name == "reshape"]
        assert {op.results[0].shape for op in copies} == {(64, 64, 8, 128), (64, 64, WIDTH)}
        assert temporaries(fun, *args) >= 12 * ACTIVATION


def test_groups_may_go_through_many_ops():
    def loss(x, w):
        y = in_groups((x @ w).reshape(64, 64, WIDTH))
        for _ in range(1200):
            y = y + 1.0
        return jnp.sum(y)

    assert temporaries(loss, X, W) == about(2 * ACTIVATION)


def summed(y):
    return jnp.sum(jnp.square(jnp.sum(y, axis=(1, 3))))


@pytest.mark.parametrize(
    ("loss", "is_copied"),
    [
        (lambda y, z: summed(y * y), False),
        (lambda y, z: summed(y * jnp.exp(jnp.sum(y, axis=(1, 3), keepdims=True) + y * 0)), False),
        (lambda y, z: summed(y * jnp.exp(jnp.broadcast_to(z[:, :1, :, :1], y.shape))), False),
        (lambda y, z: summed(y * z), True),  # z is in groups for itself
        (lambda y, z: (summed(y), y * 2), True),
        (lambda y, z: summed(jnp.sort(y) * y), True),
    ],
)
def test_groups_are_copies_where_anything_needs_their_order(loss, is_copied):
    def fun(x, w, z):
        y = in_groups(lax.stop_gradient((x @ w).reshape(64, 64, WIDTH)))
        return loss(y, lax.stop_gradient(z))

    args = X, W, ((64, 64, 8, 128), F32)
    shaped = [jax.ShapeDtypeStruct(*each) for each in args]
    traced = trace(fun, arguments(Question(fun, shaped, has_aux=False)), False, Frames())
    block = lower(value_and_gradients(traced), TPU).block
    assert any(op.name == "reshape" for op in block.ops) is is_copied


@pytest.mark.parametrize("shape", [(ROWS, 1, 8, 128), (64, 32, 16, 128)])
def test_groups_of_single_rows_or_across_rows_are_copies(shape):
    def loss(x, w):
        return summed(jnp.square((x @ w).reshape(*shape[:1], -1, WIDTH).reshape(shape)))

    assert any(op.name == "reshape" for op in lowered(loss, X, W).ops)


def test_heads_that_a_batched_dot_reads_are_not_padded():
    shape = 16, ROWS // 16, 8, 64

    def attended(x, w):
        q = (x @ w).reshape(shape)
        return jnp.sum(jnp.square(jnp.einsum("bqhd,bkhd->bhqk", q, q)))

    def grouped(x, w):
        y = (x @ w).reshape(shape)
        return jnp.sum(jnp.square(y - jnp.mean(y, axis=(1, 3), keepdims=True)))

    def padding(loss):
        block = program(loss, ((ROWS, 512), BF16), ((512, 512), BF16)).block
        split = Value(shape, "bfloat16", 2)
        return stored_nbytes(split, 2, layouts(block)) / split.nbytes

    assert padding(attended) == 1
    assert padding(grouped) == 2  # 64 of 128 lanes


# --- whatever else a program may hold --------------------------------------------------------


@pytest.mark.parametrize(
    ("fun", "least"),
    [
        (lambda x: jnp.sum(jnp.sort(x) * x), 4 * ACTIVATION),
        (lambda x: jnp.sum(jnp.square(jnp.cumsum(x, axis=0))), 4 * ACTIVATION),
        (lambda x: jnp.sum(jnp.abs(jnp.fft.rfft(x))), 4 * ACTIVATION),
        (
            lambda x: jnp.sum(lax.cond(x[0, 0] > 0, lambda x: jnp.sin(x) @ x.T @ x, jnp.cos, x)),
            4 * ACTIVATION,
        ),
        (
            lambda x: jnp.sum(
                x * lax.stop_gradient(lax.while_loop(lambda c: c[0, 0] < 9, jnp.exp, x))
            ),
            4 * ACTIVATION,
        ),
    ],
    ids=["sort", "cumsum", "fft", "cond", "while"],
)
def test_other_primitives_are_arrays(fun, least):
    assert temporaries(fun, X) >= least


def test_lowering_twice_changes_nothing():
    block = lowered(lambda x, w: jnp.sum(jnp.sin(x @ w)), X, W)
    assert kernels(block, None, TPU) is block
    assert isinstance(block, Block)


# --- against the compiler --------------------------------------------------------------------

AHEAD_OF_TIME = [
    ("mlp/scan/nothing", 0.02),
    ("sine/unroll/none", 0.08),
    ("lstm/unroll/nothing", 0.05),
    ("mha/scan/dots_no_batch", 0.10),
    ("moe/scan/dots", 0.10),
    ("soft_moe/scan/dots_no_batch", 0.10),
]


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.skipif(
    tuple(int(n) for n in jax.__version__.split(".")[:2]) < (0, 12),
    reason="the figures are those of the compiler that JAX 0.12 comes with",
)
@pytest.mark.parametrize(("name", "bound"), AHEAD_OF_TIME)
def test_the_estimate_is_near_what_the_tpu_compiler_allocates(name, bound):
    from tests.benchmarks import zoo
    from tests.benchmarks.compiled import compiled_nbytes

    (case,) = (c for c in zoo.CASES if c.name == name)
    fun, args = case.build("tpu")
    estimate = jaxresid.inspect(fun, on="tpu:v5p")(*args).peak.nbytes
    assert estimate == pytest.approx(compiled_nbytes(fun, args), rel=bound)


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_group_norm_of_flax_takes_what_the_tpu_compiler_allocates(dtype):
    linen = pytest.importorskip("flax.linen")
    from tests.benchmarks.compiled import compiled_nbytes

    class Blocks(linen.Module):
        @linen.compact
        def __call__(self, x):
            for _ in range(3):
                h = linen.silu(linen.GroupNorm(8, dtype=dtype)(x))
                x = x + linen.Conv(128, (3, 3), dtype=dtype)(h)
            return x

    def loss(variables, x):
        return jnp.mean(jnp.square(Blocks().apply(variables, x).astype(F32)))

    x = jax.ShapeDtypeStruct((64, 32, 32, 128), dtype)
    args = jax.eval_shape(Blocks().init, jax.random.key(0), x), x
    estimate = jaxresid.inspect(loss, on="tpu:v5p")(*args).peak.nbytes
    assert estimate == pytest.approx(compiled_nbytes(loss, args), rel=0.25)


def test_a_carry_is_held_to_the_end_of_a_trip():
    def loss(dots):
        def body(h, w):
            h = jnp.tanh(h @ w)
            value = h
            for _ in range(dots):
                value = jnp.exp(value @ w)
            return h, jnp.sum(value)

        def constant(x, w):
            last, sums = lax.scan(lambda h, _: body(h, w), x, length=LAYERS)
            return jnp.sum(last) + jnp.sum(sums)

        return lambda x, w: jnp.sum(w) + lax.stop_gradient(constant(x, lax.stop_gradient(w)))

    # The second dot's result stands beside the first one's, in bfloat16, and beside the carry.
    assert temporaries(loss(2), X, W) - temporaries(loss(1), X, W) == about(2 * ACTIVATION)


def returning_weights(ws, x):
    x, stack = lax.scan(jax.checkpoint(lambda x, w: (jnp.sin(x @ w), w)), x, ws)
    return jnp.sum(x) + jnp.sum(jnp.sin(stack)), stack


@pytest.mark.parametrize(
    ("profile", "is_returned", "count"),
    [(TPU, False, 0), (GPU, False, 1), (TPU, True, 1)],
    ids=["tpu", "gpu", "returned"],
)
def test_a_stack_of_slices_of_an_input_is_that_input(profile, is_returned, count):
    fun = returning_weights if is_returned else lambda *args: returning_weights(*args)[0]
    forward, _ = [op for op in lower(program(fun, STACK, X), profile).block.ops if op.nest]
    assert [v.shape for v in forward.results].count(STACK[0]) == count
