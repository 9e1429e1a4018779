"""What is reported of programs that take no gradient."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import jaxresid
from jaxresid.base.errors import InputsError
from tests.programs_without_gradient import EVALUATE, evaluate, f32, i32, report
from tests.schemas import validate

X = f32((64, 64))


def of(fun, *args, **options):
    return jaxresid.inspect(fun, on="gpu:h100", **options)(*args)


@pytest.mark.parametrize("name", ["evaluate", "decode", "generate"])
def test_it_is_one_pass_without_residuals_or_checkpoints(name):
    result = report(name)
    assert (result.target.mode, result.target.has_gradient) == ("program", False)
    assert (result.residuals, result.checkpoints) == ((), ())
    assert result.peak.phase == "program"
    assert [(s.phase, s.start, s.stop) for s in result.peak.phases] == [
        ("program", 0, len(result.peak.curve))
    ]
    assert {value.phase for value in result.peak.live} <= {"program", None}
    assert result.cost.total == result.cost.program
    assert result.next_step.action in ("none", "change")
    assert "checkpoint" not in result.next_step.message
    validate(json.loads(result.to_json()), "report")


def test_its_flops_are_those_of_one_pass():
    n, d = 4096, 256
    assert report("evaluate").cost.program.matmul_flops == 3 * (2 * n * d * d + 2 * 2 * n * n * d)


def test_arguments_and_outputs_are_those_of_the_call():
    result = report("evaluate")
    leaves, outputs = (
        jax.tree.leaves(EVALUATE),
        jax.tree.leaves(jax.eval_shape(evaluate, *EVALUATE)),
    )
    assert [a.aval.shape for a in result.arguments] == [leaf.shape for leaf in leaves]
    assert [a.aval.shape for a in result.outputs] == [leaf.shape for leaf in outputs]
    assert sum(a.nbytes for a in result.arguments) == result.peak.arguments_nbytes
    assert sum(a.nbytes for a in result.outputs) == result.peak.outputs_nbytes
    assert [a.path for a in result.arguments] == ["params[0]", "params[1]", "params[2]", "q"]


def test_jvp_is_of_the_one_pass():
    result = of(lambda x, v: jax.jvp(lambda x: jnp.sin(x @ x), (x,), (v,)), X, X)
    assert (result.target.has_gradient, result.peak.phase) == (False, "program")
    assert result.cost.total == result.cost.program


def accuracy(params, x, labels):
    return ((x @ params).argmax(-1) == labels).mean()


def looping(params, x):
    """Whether any of many sums is positive: no float goes from trip to trip."""
    return jax.lax.fori_loop(0, 3, lambda i, n: n + (x @ params > i).sum(), 0).astype(jnp.float32)


@pytest.mark.parametrize(
    ("fun", "args"), [(accuracy, (X, X, i32((64,)))), (looping, (X, X))], ids=["accuracy", "loop"]
)
@pytest.mark.parametrize("jitted", [False, True])
def test_what_has_no_derivative_but_zero_is_taken_as_it_is(fun, args, jitted):
    result = of(jax.jit(fun) if jitted else fun, *args)
    assert (result.target.mode, result.target.has_gradient) == ("program", False)


@pytest.mark.parametrize(
    "body",
    [
        lambda x, pair: (pair[0] + jnp.sin(x).sum(), 0.0),
        lambda x, pair: (pair[1], jnp.sin(x).sum()),  # a trip later
    ],
)
def test_a_loss_whose_float_goes_through_a_loop_is_a_loss(body):
    def loss(x):
        return jax.lax.fori_loop(0, 3, lambda i, pair: body(x, pair), (0.0, 0.0))[0]

    for fun in (loss, jax.jit(loss)):
        result = of(fun, X)
        assert (result.target.mode, result.target.has_gradient) == ("loss", True)


def test_what_returns_no_array_is_an_error():
    with pytest.raises(InputsError, match="returns no array and changes nothing"):
        of(lambda x: None, X)


def test_what_prints_is_a_program():
    result = of(lambda x: jax.debug.print("{}", x.sum()), X)
    assert (len(result.arguments), result.outputs) == (1, ())


def test_memory_that_is_not_known_makes_it_a_lower_bound():
    def fun(x):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return io_callback(lambda x: x, out, x) @ x

    result = of(fun, X)
    assert result.peak.uncounted == ("io_callback",)
    assert "lower bound" in result.next_step.message


def test_code_is_by_module():
    result = of(lambda params, x: {"y": x @ params["dense"]["kernel"]}, {"dense": {"kernel": X}}, X)
    (dense, x, rest) = result.modules
    assert {(m.path, m.parameters_nbytes) for m in (dense, x, rest)} == {
        (("dense",), X.size * 4),
        (("x",), X.size * 4),
        ((), 0),
    }


def test_what_is_about_passes_refuses_it_in_a_line():
    with pytest.raises(InputsError, match=r"evaluate takes no gradient: .*--mode loss"):
        jaxresid.compare(evaluate, on="gpu:h100")(*EVALUATE)


def test_a_mode_that_refuses_is_not_named():
    """What has no derivative but zero is not to be asked about its gradient."""

    def accuracy(x, labels):
        return jnp.mean(x.argmax(-1) == labels)

    with pytest.raises(InputsError, match=r"takes no gradient: .* has an effect$"):
        jaxresid.compare(accuracy, on="gpu:h100")(f32((8, 4)), i32((8,)))
