"""Which gradients a function takes itself, and where."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxresid
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from tests.small import f32

X = f32(8)


def energy(x):
    return jnp.sum(jnp.sin(x) ** 2)


def line_of(fun, text):
    """The line of a function, unjitted, that holds a text."""
    code = getattr(fun, "__wrapped__", fun).__code__
    with open(code.co_filename) as file:
        lines = file.read().splitlines()
    return next(n for n, line in enumerate(lines, 1) if n > code.co_firstlineno and text in line)


def step(x):
    return x - 0.1 * jax.grad(energy)(x)  # here


@jax.jit
def jitted_step(x):
    value, gradient = jax.value_and_grad(energy)(x)  # here
    return value, x - gradient


def in_a_loop(x):
    def body(x, _):
        return x - jax.grad(energy)(x), None  # here

    return lax.scan(body, x, None, length=3)[0]


def in_a_branch(x):
    return lax.cond(x[0] > 0, lambda: jax.grad(energy)(x), lambda: x)  # here


def per_example(x):
    return jax.vmap(jax.grad(jnp.sin))(x)  # here


def many_of_one_line(x):
    for _ in range(3):
        x = x - jax.grad(energy)(x)  # here
    return x


def of_a_checkpoint(x):
    return jax.grad(jax.checkpoint(energy))(x)  # here


def pulled_back(x):
    value, vjp = jax.vjp(energy, x)  # here
    return vjp(value)


def hessian(x):
    return jax.hessian(energy)(x)  # here


def hvp(x):
    return jax.jvp(jax.grad(energy), (x,), (x,))[1]  # here


def hvp_of_a_checkpoint(x):
    return jax.jvp(jax.grad(jax.checkpoint(energy)), (x,), (x,))[1]  # here


def grad_of_jvp(x):
    return jax.grad(lambda x: jax.jvp(energy, (x,), (x,))[1])(x)  # here


def grad_of_grad(x):
    return jax.grad(lambda x: jnp.sum(jax.grad(energy)(x) ** 2))(x)  # here


@pytest.mark.parametrize(
    ("fun", "kind"),
    [
        *((fun, "grad") for fun in (step, jitted_step, in_a_loop, in_a_branch, per_example)),
        *((fun, "grad") for fun in (many_of_one_line, of_a_checkpoint, pulled_back)),
        (hessian, "jvp of grad"),
        (hvp, "jvp of grad"),
        (hvp_of_a_checkpoint, "jvp of grad"),
        (grad_of_jvp, "grad of jvp"),
        (grad_of_grad, "grad of grad"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_a_gradient_has_its_line(fun, kind):
    target = subject(Question(fun, (X,))).target
    (gradient,) = target.gradients
    assert (gradient.kind, gradient.location.line) == (kind, line_of(fun, "# here"))
    assert target.mode == "program"


def test_two_lines_take_two_gradients():
    def two(x):
        first = jax.grad(energy)(x)
        return first + jax.grad(lambda x: energy(x * 2))(x)

    target = subject(Question(two, (X,))).target
    assert [g.kind for g in target.gradients] == ["grad", "grad"]
    lines = [g.location.line for g in target.gradients]
    assert lines[1] - lines[0] == 1
    assert not target.is_step


def test_a_loss_has_those_inside_of_it():
    def penalised(x):
        return energy(x) + jnp.sum(jax.grad(energy)(x) ** 2)

    target = subject(Question(penalised, (X,))).target
    assert (target.mode, target.other_mode) == ("loss", "program")
    assert [g.kind for g in target.gradients] == ["grad"]
    assert target.gradients[0].location.code.startswith("return energy(x) +")


def test_without_a_line_it_is_that_of_what_is_differentiated():
    target = subject(Question(jax.jit(jax.grad(energy)), (X,))).target
    (gradient,) = target.gradients
    assert gradient.location.function == "energy"


def test_a_gradient_of_a_gradient_is_one_where_no_line_takes_the_outer_one():
    def penalised(x):
        return jnp.sum(jax.grad(energy)(x) ** 2)

    target = subject(Question(jax.jit(jax.grad(penalised)), (X,))).target
    assert [g.kind for g in target.gradients] == ["grad of grad"]


def test_a_loss_has_those_that_ran_before():
    force = jax.jit(jax.grad(energy))
    force(jnp.ones(8))

    def matching(x):
        return jnp.sum(force(x) ** 2)  # here

    target = subject(Question(matching, (X,))).target
    (gradient,) = target.gradients
    assert (target.mode, gradient.kind) == ("loss", "grad")
    assert gradient.location.line == line_of(matching, "# here")


def directional(fun):
    return lambda x: jax.jvp(fun, (x,), (x,))[1]


@pytest.mark.parametrize(
    ("derivative", "kind"), [(jax.grad, "grad of grad"), (directional, "jvp of grad")]
)
def test_a_gradient_inside_of_a_jitted_call_is_part_of_the_derivative(derivative, kind):
    @jax.jit
    def penalty(x):
        return jnp.sum(jax.grad(energy)(x) ** 2)

    def outer(x):
        return x + derivative(penalty)(x)

    (gradient,) = subject(Question(outer, (X,))).target.gradients
    assert gradient.kind == kind
    assert "penalty" not in gradient.location.function


def test_lines_are_those_of_the_gradients_of_the_report():
    def two(x):
        return x - jax.grad(energy)(x) - jax.grad(lambda x: energy(x * 2))(x)

    report = jaxresid.inspect(two)(X)
    lines = [each.location for each in report.gradients]
    assert [each.location for each in report.target.gradients] == lines
    assert len(lines) == 2


@jax.custom_vjp
def solved(x):
    return lax.while_loop(lambda x: x[0] < 9, lambda x: x + x, x)


solved.defvjp(lambda x: (solved(x), x), lambda x, g: (g / x,))


@pytest.mark.parametrize(
    ("fun", "other_mode"),
    [
        (energy, "program"),
        (jnp.sin, "loss"),
        (lambda x: jax.jvp(jnp.sin, (x,), (x,))[1], "loss"),
        (jnp.argsort, None),
        (jnp.zeros_like, None),
        (lambda x: lax.while_loop(lambda x: x[0] < 9, lambda x: x + x, x), None),
        (step, None),
        (solved, "loss"),
        (functools.partial(jax.jit, donate_argnums=0)(lambda x: x * 2), None),
    ],
)
def test_the_other_mode_is_one_that_makes_sense(fun, other_mode):
    target = subject(Question(fun, (X,))).target
    assert target.other_mode == other_mode
    assert not target.is_step


def error(w, x):
    return jnp.mean((jnp.tanh(x @ w) - 1.0) ** 2)


def descended(w, x):
    return w - 0.1 * jax.grad(error)(w, x)


def with_dropout(w, x, key):
    def loss(w):
        return error(w, jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0))

    return w - 0.1 * jax.grad(loss)(w)


def langevin(w, x, key):
    return w - 0.1 * jax.grad(error)(w, x) + jax.random.normal(key, w.shape)


def metropolis(w, x, key):
    proposal = w - 0.1 * jax.grad(error)(w, x)
    accepted = jax.random.uniform(key) < jnp.exp(error(w, x) - error(proposal, x))
    return jnp.where(accepted, proposal, w)


def newton(w, x):
    return w - jnp.linalg.solve(jax.hessian(error)(w, x), jax.grad(error)(w, x))


def newton_by_elements(w, x):
    gradient, curvature = jax.jvp(lambda w: jax.grad(error)(w, x), (w,), (jnp.ones_like(w),))
    return w - gradient / curvature


def newton_cg(w, x):
    gradient = jax.grad(error)

    def product(v):
        return jax.jvp(lambda w: gradient(w, x), (w,), (v,))[1]

    return w - jax.scipy.sparse.linalg.cg(product, gradient(w, x), maxiter=3)[0]


def gauss_newton(w, x):
    jacobian = jax.jacrev(lambda w: jnp.tanh(x @ w))(w)
    return w - jnp.linalg.solve(jacobian.T @ jacobian, jax.grad(error)(w, x))


def relaxed(x):
    return x - 0.1 * jax.grad(energy)(x)


VECTOR, ROWS = jnp.ones(4), jnp.ones((8, 4))
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("fun", "args", "is_step"),
    [
        (descended, (VECTOR, ROWS), True),
        (with_dropout, (VECTOR, ROWS, KEY), True),
        (langevin, (VECTOR, ROWS, KEY), False),
        (langevin, (VECTOR, ROWS, jax.random.PRNGKey(0)), False),
        (metropolis, (VECTOR, ROWS, KEY), False),
        (newton, (VECTOR, ROWS), False),
        (newton_by_elements, (VECTOR, ROWS), False),
        (newton_cg, (VECTOR, ROWS), False),
        (gauss_newton, (VECTOR, ROWS), False),
        (relaxed, (X,), False),
    ],
)
def test_what_updates_by_a_gradient_is_called_training_only_where_it_trains(fun, args, is_step):
    target = subject(Question(fun, args)).target
    assert target.gradients and target.is_step == is_step
