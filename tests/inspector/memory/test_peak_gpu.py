"""The profile of a GPU: each rule on a program whose answer can be counted."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxresid.inspector.memory.compilers import profile_of
from jaxresid.inspector.memory.liveness import timeline
from jaxresid.inspector.memory.lowered import lower
from jaxresid.inspector.memory.profile import GPU, GPU_BEFORE_0_12, TPU
from jaxresid.inspector.memory.rules.kernels import kernels
from jaxresid.inspector.program.ops import Op
from jaxresid.xla.places import parse_place
from tests.inspector.memory.test_peak_tpu import F32, I32, bodies, program

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


def test_a_residual_connection_finishes_a_dot_but_an_activation_does_not():
    def connected(x, w):
        return jnp.sum((x + x @ w) ** 2)

    def activated(x, w):
        return jnp.sum(jnp.exp(x @ w) @ w)

    assert "add" not in large(made(connected, X, W))
    assert "exp" in large(made(activated, X, W))


@pytest.mark.parametrize("profile", [GPU, TPU])
def test_a_dropout_keeps_its_mask_and_not_its_bits(profile):
    def loss(x, w, key):
        h = x @ w
        keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.5, h.shape)
        return jnp.sum(jnp.where(keep, h, 0.0) ** 2)

    block = kernels(program(loss, X, W, ((2,), jnp.uint32)).block, None, profile)
    bits = next(op for op in block.ops if op.name == "random_bits")
    assert bits.results[0].dtype == "bool"


def test_gathers_are_computed_inside_what_reads_them():
    def loss(x, w, i):
        return jnp.sum((x[i] * 2.0 + 1.0) @ w)

    assert "gather" not in large(made(loss, X, W, ((ROWS,), I32)))


# Logits that are far larger than all else, and labels.
HEAD, LABELS = ((WIDTH, 16 * WIDTH), F32), ((ROWS - 1,), I32)


def picked(logits, labels):
    return jnp.take_along_axis(logits, labels[:, None], axis=1)


def of_all_but_the_last(x, w, labels):
    logits = (x @ w)[:-1]
    return jnp.sum(jax.nn.logsumexp(logits, axis=1) - picked(logits, labels)[:, 0])


def log_softmax_of_all_but_the_last(x, w, labels):
    return -jnp.sum(picked(jax.nn.log_softmax((x @ w)[:-1]), labels))


def test_a_scatter_into_zeros_writes_into_what_it_is_added_to():
    """XLA's peak of these, with 8,192 tokens, 20,000 logits and optax's loss, is 1,355 MiB: two
    arrays of logits; and 1,980 MiB with a log_softmax, from whose gradient another is subtracted.
    """
    block = made(of_all_but_the_last, X, HEAD, LABELS)
    (scatter,) = (op for op in block.ops if op.name == "scatter-add")
    (softmax,) = (op for op in block.ops if scatter.operands[0] in op.results)
    assert scatter.overwrites == softmax.results
    logits = 16 * ACTIVATION
    assert temporaries(of_all_but_the_last, X, HEAD, LABELS) < 2.1 * logits
    assert temporaries(log_softmax_of_all_but_the_last, X, HEAD, LABELS) > 2.9 * logits


def test_a_scatter_that_is_read_beside_the_sum_has_zeros_of_its_own():
    def sums(x, i, u, reads_twice):
        made = jnp.zeros_like(x).at[i].add(u)
        return jnp.sin(made + x), made if reads_twice else 0.0

    given = ((ROWS, WIDTH), F32), ((ROWS,), I32), ((ROWS, WIDTH), F32)
    for reads_twice in (False, True):
        block = made(lambda *a, twice=reads_twice: jnp.sum(sum(sums(*a, twice))), *given)
        (scatter,) = (op for op in block.ops if op.name == "scatter-add")
        assert (scatter.operands[0] in block.inputs) == (not reads_twice)


ITEMS = 256


def clipped(norms_of, x, g):
    """The sum of clipped gradients of each item, as optax's dpsgd has it."""
    each = jax.vmap(jnp.outer)(x, g)
    return jnp.tensordot(norms_of(each, x), each, axes=1)


@pytest.mark.parametrize(
    "norms_of", [lambda each, x: jnp.sum(each**2, (1, 2)) ** -0.5, lambda each, x: x[:, 0]]
)
def test_a_dot_with_a_vector_reads_an_array(norms_of):
    """XLA's peak of the first of 784 by 512 weights is 394 MiB, of which 392 are the products."""
    given = ((ITEMS, WIDTH), F32), ((ITEMS, WIDTH), F32)
    products = ITEMS * WIDTH * WIDTH * 4

    def loss(w, x, g):
        return jnp.sum(w) + jnp.sum(lax.stop_gradient(jnp.sin(clipped(norms_of, x, g))))

    peak = temporaries(loss, ((8,), F32), *given)
    assert products < peak < 1.1 * products
    assert temporaries(loss, ((8,), F32), *given, profile=TPU) < 0.1 * products


def test_a_dot_of_two_vectors_computes_what_it_reads():
    def loss(w, x, g):
        return jnp.sum(w) + jnp.sum(lax.stop_gradient(jax.vmap(jnp.dot)(x * g, x + g)))

    assert temporaries(loss, ((8,), F32), X, X) < 0.1 * ACTIVATION


def overwriting(block):
    return [op for op in block.ops if op.overwrites]


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


def recurrent(x, w):
    """Stack its states in the forward pass, and the cotangents of what it reads in the backward."""
    return jnp.sum(lax.scan(lambda h, u: (jnp.tanh(h + u),) * 2, x[0] @ w, x @ w)[1] ** 2)


def test_the_zeros_of_all_stacks_alike_are_made_before_the_first_loop():
    block = kernels(program(recurrent, X, W).block, None, GPU_BEFORE_0_12)
    first, last = (i for i, op in enumerate(block.ops) if op.bodies)
    fill = block.ops[first - 1]
    (zeros,) = fill.results
    assert (fill.name, fill.operands, zeros.nbytes) == ("broadcast_in_dim", (), ACTIVATION)
    assert zeros in block.ops[last].overwrites
    (cotangents,) = (v for v in block.ops[last].results if v.nbytes == ACTIVATION)
    assert cotangents.shape == zeros.shape


def test_zeros_take_the_place_of_the_stack_from_the_first_loop_on():
    def loss(x, w):
        scan = lambda a: lax.scan(lambda h, u: (jnp.tanh(h + u),) * 2, a[0], a)[1]
        return jnp.sum(jnp.sin(scan(jnp.sin(scan(x @ w)) @ w)))

    found = [temporaries(loss, X, W, profile=each) for each in (GPU_BEFORE_0_12, GPU)]
    assert found[0] - found[1] == pytest.approx(2 * ACTIVATION, rel=0.01)


def test_stacks_of_another_shape_have_no_zeros_before_their_loop():
    block = kernels(program(scanned, X, STACK).block, None, GPU_BEFORE_0_12)
    loops = [op for op in block.ops if op.bodies]
    assert len(loops) == 2
    assert not any(v.shape[:1] == (LAYERS,) for op in loops for v in op.overwrites)


def recurrences(count):
    def loss(x, w):
        h, total = x[0] @ w, 0.0
        for _ in range(count):
            h, stack = lax.scan(lambda h, u: (jnp.tanh(h + u),) * 2, h, x)
            total += jnp.sum(stack**2)
        return total

    return program(loss, X, W).block


@pytest.mark.parametrize("copied", [False, True])
def test_the_zeros_of_more_than_96_stacks_alike_are_copied_from_one(copied):
    # As a fusion of XLA:GPU has 96 results at most. JAX makes three or four stacks of a loop here.
    stacks = [v for op in recurrences(1).ops if op.nest for v in op.results]
    each = sum(v.nbytes == ACTIVATION for v in stacks)
    assert 96 % each == 0
    block = kernels(recurrences(96 // each + copied), None, GPU_BEFORE_0_12)
    fills = [op for op in block.ops if op.name == "broadcast_in_dim"]
    (fill,) = (op for op in fills if op.results[0].nbytes == ACTIVATION)
    over = [v for op in block.ops for v in fill.results if op.bodies and v in op.overwrites]
    assert over == ([] if copied else list(fill.results))
    assert (len(fill.results) == 1) is copied
    assert all(any(v in op.operands for op in block.ops) for v in fill.results)


@pytest.mark.parametrize(
    ("jaxlib", "profile"),
    [
        ("0.9.2", GPU_BEFORE_0_12),
        ("0.11.2", GPU_BEFORE_0_12),
        ("0.12.0.1", GPU),
        ("0.12.0.dev20260901", GPU),
        ("1.0", GPU),
    ],
)
def test_the_profile_is_that_of_jaxlibs_version(jaxlib, profile):
    assert profile_of(parse_place("gpu:h100"), jaxlib) is profile
    assert profile_of(parse_place("tpu:v5e"), jaxlib) is TPU


def test_a_donated_arguments_buffer_is_not_lent():
    import jaxresid

    def step(params, x):
        grads = jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p) @ p))(params)
        return params - grads

    args = jax.ShapeDtypeStruct(*W), jax.ShapeDtypeStruct(*X)
    given = jaxresid.inspect(jax.jit(step, donate_argnums=0), mode="program", on="gpu:h100")(*args)
    held = jaxresid.inspect(jax.jit(step), mode="program", on="gpu:h100")(*args)
    assert given.peak.nbytes <= held.peak.nbytes
    assert given.peak.temporaries_nbytes >= held.peak.temporaries_nbytes


def test_a_gpu_keeps_more_than_a_tpu():
    def loss(x, a, b):
        return jnp.sum(jax.nn.gelu(x @ a) @ b)

    assert temporaries(loss, X, W, W) > temporaries(loss, X, W, W, profile=TPU)


def test_the_tables_name_every_decision():
    assert {GPU.name, TPU.name} == {"gpu", "tpu"}
    assert isinstance(made(scanned, X, STACK).ops[0], Op)
