"""The peak of programs without a gradient: rules that no loss shows, on programs to count."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jaxresid
from tests.benchmarks.accuracy import corpus, estimates, rows

MIB = 1 << 20
PLACES = ("gpu:h100", "tpu:v5e")


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def peak(fun, *args, on="gpu:h100"):
    return jaxresid.inspect(fun, mode="program", on=on)(*args).peak


def temporaries(fun, *args, on="gpu:h100"):
    """Return the temporaries of a program in arrays of 4 MiB."""
    return peak(fun, *args, on=on).temporaries_nbytes / (4 * MIB)


X, W = f32(1024, 1024), f32(1024, 1024)


def test_a_gpus_dot_is_not_written_over_what_it_reads():
    def apply(x, w):
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return x.sum()

    assert temporaries(apply, X, W) == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize(("stride", "arrays"), [(1, 1), (2, 1 + 1 / 4)])
def test_a_gpus_convolution_that_pads_one_end_more_reads_a_padded_copy(stride, arrays):
    def apply(x, w):
        spec = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (stride,) * 2, "SAME", dimension_numbers=spec).sum()

    found = temporaries(apply, f32(4, 64, 64, 64), f32(3, 3, 64, 64))
    assert found == pytest.approx(arrays, rel=0.02)


def test_a_softmax_that_is_cast_does_not_write_over_what_it_sums_up():
    def apply(x, w, v):
        scores = (x @ w).astype(jnp.bfloat16)
        return jax.nn.softmax(scores.astype(jnp.float32)).astype(jnp.bfloat16) @ v

    inputs = f32(2048, 64), f32(64, 2048), jax.ShapeDtypeStruct((2048, 64), jnp.bfloat16)
    assert temporaries(apply, *inputs) == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("axes", "arrays"), [((1, 0, 2), 2), ((0, 1, 2), 1), ((1, 2, 0), 1), ((2, 0, 1), 2)]
)
def test_a_gpu_finishes_a_dot_only_as_a_matrix_or_its_transpose(axes, arrays):
    """Directions that are vmapped over part the columns, as of the columns of a Hessian."""

    def apply(x, w, y):
        made = jnp.transpose(jnp.tensordot(x, w, 1), axes)
        made = made + y.reshape(made.shape)
        return jnp.tanh(made) @ jnp.ones(made.shape[-1])

    inputs = f32(1024, 64), f32(64, 8, 128), f32(8 * 1024 * 128)
    assert temporaries(apply, *inputs) == pytest.approx(arrays, rel=0.05)


@pytest.mark.parametrize("on", PLACES)
def test_donated_weights_that_moments_are_made_beside_are_written_in_place(on):
    @functools.partial(jax.jit, donate_argnums=(0, 1, 2))
    def update(w, first, second, g):
        first, second = 0.9 * first + 0.1 * g, 0.99 * second + 0.01 * g * g
        return w - first / (jnp.sqrt(second) + 1e-8), first, second

    assert peak(update, X, X, X, X, on=on).temporaries_nbytes < MIB


@pytest.mark.parametrize("on", PLACES)
def test_a_donated_stack_that_a_scan_reads_and_writes_anew_is_there_twice(on):
    def put(carry, cache):
        return carry, lax.dynamic_update_slice(cache, carry, (0, 0))

    scanned = jax.jit(lambda row, caches: lax.scan(put, row, caches), donate_argnums=1)
    found = peak(scanned, f32(1, 1024), f32(4, 1024, 1024), on=on)
    assert found.aliased_nbytes == 16 * MIB
    assert found.temporaries_nbytes == pytest.approx(16 * MIB, rel=0.01)

    @functools.partial(jax.jit, donate_argnums=1)
    def looped(row, caches):
        put = lambda i, caches: lax.dynamic_update_slice(caches, row[None], (i, 0, 0))
        return lax.fori_loop(0, 4, put, caches)

    in_place = peak(looped, f32(1, 1024), f32(4, 1024, 1024), on=on)
    assert in_place.aliased_nbytes == 16 * MIB
    assert in_place.temporaries_nbytes < MIB


@pytest.mark.parametrize(
    ("turn", "on", "is_copied"),
    [
        (lambda stack: jnp.swapaxes(stack, 0, 1), "gpu:h100", True),
        (lambda stack: jnp.swapaxes(stack, 0, 1), "tpu:v5e", False),
        (lambda stack: jnp.swapaxes(stack.reshape(16, 1, -1), 0, 1), "gpu:h100", False),
        (lambda stack: stack, "gpu:h100", False),
    ],
)
def test_a_gpu_copies_a_stack_that_is_returned_in_another_order(turn, on, is_copied):
    def steps(x):
        x, stack = lax.scan(lambda x, _: (x + 1, x * 2), x, None, 16)
        return turn(stack)

    stack = 16 * 4 * MIB if is_copied else 0
    assert 0 <= peak(steps, X, on=on).temporaries_nbytes - stack < 9 * MIB


@pytest.mark.parametrize("on", PLACES)
def test_what_a_vmapped_branch_reads_is_there_once(on):
    def apply(ws, xs, flags):
        def one(x, flag):
            return lax.cond(flag, lambda x: jnp.tanh(x @ ws[0]), lambda x: x @ ws[1], x)

        return jax.vmap(one)(xs, flags)

    def chosen(ws, xs, flags):
        return jnp.where(flags[:, None], jnp.tanh(xs @ ws[0]), xs @ ws[1])

    args = [W, W], f32(4096, 1024), jax.ShapeDtypeStruct((4096,), bool)
    # One of each example would be 16 GiB.
    assert peak(apply, *args, on=on).nbytes < 1.5 * peak(chosen, *args, on=on).nbytes


def attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", scores, v)


@pytest.mark.parametrize(
    ("queries", "heads", "width", "is_kept"),
    [(32768, 16, 32, True), (49152, 16, 32, False), (49152, 16, 128, True)],
)
def test_a_tpu_computes_large_scores_again_that_no_backward_pass_reads(
    queries, heads, width, is_kept
):
    inputs = f32(4, queries, heads, width), *[f32(4, 512, heads, width)] * 2
    scores = 4 * heads * queries * 512 * 4
    assert (peak(attention, *inputs, on="tpu:v5e").temporaries_nbytes >= scores) == is_kept
    assert peak(attention, *inputs).temporaries_nbytes >= scores

    def loss(*inputs):
        return attention(*inputs).sum()

    gradient = jax.value_and_grad(loss, (0, 1, 2))
    assert peak(gradient, *inputs, on="tpu:v5e").temporaries_nbytes >= scores


@pytest.mark.parametrize(
    ("fun", "dtype", "arrays"), [(jnp.fft.fft, jnp.complex64, 2), (jnp.fft.rfft, jnp.float32, 4)]
)
def test_a_tpus_fourier_transform_has_real_and_imaginary_parts(fun, dtype, arrays):
    x = jax.ShapeDtypeStruct((256, 1024, 1024), dtype)
    nbytes = x.size * x.dtype.itemsize
    assert peak(fun, x, on="tpu:v5e").temporaries_nbytes == arrays * nbytes
    assert peak(fun, x).temporaries_nbytes == 0


@pytest.mark.parametrize(("rows", "arrays"), [(16384, 64), (1024, 0)])
def test_a_tpu_keeps_what_is_left_to_solve_after_each_block(rows, arrays):
    def solve(a, b):
        return jax.lax.linalg.triangular_solve(a, b, left_side=True, lower=True)

    args = f32(rows, rows), f32(rows, 2048)
    found = peak(solve, *args, on="tpu:v5e").temporaries_nbytes
    assert found == arrays * rows * 2048 * 4
    assert peak(solve, *args).temporaries_nbytes == 0


def _library_primitive(name, implementation):
    made = Primitive(name)
    made.def_impl(implementation)
    made.def_abstract_eval(lambda x: jax.core.ShapedArray(x.shape, x.dtype))
    mlir.register_lowering(made, mlir.lower_fun(implementation, multiple_results=False))
    return made


def test_a_primitive_of_a_librarys_own_is_what_its_python_does():
    def solve(x):
        return lax.while_loop(lambda s: s[1].sum() > 0, lambda s: (s[1], s[0] @ s[1]), (x, x))[0]

    own = _library_primitive("solve_of_a_library", solve)
    found, plain = peak(own.bind, X), peak(solve, X)
    assert found.nbytes == plain.nbytes
    assert not found.uncounted
    assert {v.primitive for v in found.live} == {v.primitive for v in plain.live}


def test_what_a_primitive_takes_that_nobody_knows_is_not_counted():
    def solve(x):
        if isinstance(x, jax.core.Tracer):
            raise NotImplementedError("compiled elsewhere")
        return x

    report = jaxresid.inspect(_library_primitive("solve_elsewhere", solve).bind, on="gpu:h100")(X)
    assert report.peak.uncounted == ("solve_elsewhere",)
    assert report.peak.interval is None
    assert report.warnings == (
        "what solve_elsewhere takes is not known, as JAX cannot trace the Python that it is"
        " implemented by: NotImplementedError: compiled elsewhere",
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "place", "within"),
    [
        ("image-filters/none", "gpu:h100", 0.01),
        ("residual-network/none", "gpu:h100", 0.02),
        ("prefill/none", "gpu:h100", 0.02),
        ("decode-carried/donated", "gpu:h100", 0.01),
        ("decode-looped/donated", "tpu:v5e", 0.01),
        ("generate-tokens/none", "tpu:v5e", 0.01),
    ],
)
def test_the_estimate_is_what_the_compiler_said(name, place, within):
    program = next(p for p in corpus.PROGRAMS if p.name == f"forward:{name}")
    row = rows.read(rows.file_of(place, "0.10.2"))[program.name]
    written = estimates.traced(program, place)
    found = estimates.estimate_nbytes(written, place, row.jaxlib)
    assert found == pytest.approx(row.peak_nbytes, rel=within)


@pytest.mark.parametrize("place", PLACES)
def test_a_linear_solve_takes_what_its_solution_takes(place):
    a = f32(4096, 4096)

    def solution(a, b):
        def one(_, x):
            return b - jnp.tanh(a @ jnp.sin(a.T @ x))

        return lax.fori_loop(0, 3, one, b)

    def solved(a, b):
        return lax.custom_linear_solve(
            lambda x: x + a @ x, b, lambda _, b: solution(a, b), symmetric=True
        )

    assert peak(solved, a, a, on=place).nbytes == peak(solution, a, a, on=place).nbytes
