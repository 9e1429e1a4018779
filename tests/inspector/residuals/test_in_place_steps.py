"""Steps that change what they are given, and steps that do nothing with their gradients."""

import jax
import jax.numpy as jnp
import pytest

import jaxresid
from jaxresid.base.errors import InputsError, TraceError
from jaxresid.cli.main import run
from jaxresid.inspector.call.inputs import from_function
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.report import inspection
from jaxresid.inspector.trace.changes import passed_through
from jaxresid.inspector.trace.step import StepTrace
from tests.stages import without_stages

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

from fixtures.inspect import nnx_steps as zoo  # noqa: E402

FILE = "fixtures/inspect/nnx_steps.py"
STEPS = ["train_step", "plain_step", "train_step_global", "train_step_method"]
STEPS += ["train_step_knowing", "train_step_metrics", "train_step_donated", "train_step_frozen"]


def inspected(name, mode="auto"):
    inputs = from_function(getattr(zoo, f"{name}_inputs"), name)
    fun = getattr(zoo, name)
    return inspection(Question(fun, inputs.args, inputs.kwargs, mode=mode))


def by_role(found):
    program = step_program(found.trace)
    totals = {}
    for role, value in zip(program.inputs, program.block.inputs, strict=True):
        totals[role.kind] = totals.get(role.kind, 0) + value.nbytes
    return totals


def nbytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def functional():
    return inspected("train_step_functional")


@pytest.mark.integration
@pytest.mark.parametrize("name", STEPS)
def test_is_a_step_with_the_roles_of_its_trees(name):
    found = inspected(name)
    assert isinstance(found.trace, StepTrace)
    known = zoo.train_step_frozen_inputs if "frozen" in name else zoo.train_step_inputs
    model, optimizer = jax.eval_shape(known)[:2]
    trained = nnx.state(model, nnx.Param)
    state = nnx.state(optimizer, nnx.optimizer.OptState)
    if name == "train_step_frozen":
        trained = nnx.state(model, nnx.All(nnx.Param, nnx.PathContains(zoo.LAYERS - 1)))
    totals = by_role(found)
    assert totals["parameters"] == nbytes(trained)
    assert totals["optimizer-state"] == nbytes(state)
    assert totals["batch"] == nbytes(jax.eval_shape(zoo.batch))
    donated = {role.donated for role in step_program(found.trace).inputs if role.kind != "batch"}
    assert donated == {name == "train_step_donated"}


@pytest.mark.integration
@pytest.mark.parametrize("name", ["train_step", "plain_step", "train_step_global"])
def test_reads_as_the_functional_step(name, functional):
    mine, theirs = inspected(name).report, functional.report
    assert mine.totals.computed_nbytes == theirs.totals.computed_nbytes
    assert [(c.verdict, c.calls) for c in mine.checkpoints] == [
        (c.verdict, c.calls) for c in theirs.checkpoints
    ]
    assert mine.checkpoints
    for phase in ("forward", "backward", "recompute", "update"):
        ours, other = getattr(mine.cost, phase).flops, getattr(theirs.cost, phase).flops
        assert ours == pytest.approx(other, rel=0.01)
    assert mine.peak.nbytes == pytest.approx(theirs.peak.nbytes, rel=0.03)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["train_step", "train_step_donated"])
def test_compiles_what_nnx_jit_compiles(name):
    expected = getattr(zoo, name).lower(*zoo.train_step_inputs()).compile().memory_analysis()
    inputs = from_function(zoo.train_step_inputs, name)
    [row] = jaxresid.compile(getattr(zoo, name), on="cpu", cache=False)(*inputs.args).compiled
    assert row.argument_nbytes == expected.argument_size_in_bytes
    assert row.output_nbytes == expected.output_size_in_bytes
    assert row.temp_nbytes == pytest.approx(expected.temp_size_in_bytes, rel=0.01)
    assert row.alias_nbytes == pytest.approx(expected.alias_size_in_bytes, rel=0.01)


@pytest.mark.integration
def test_a_loss_that_changes_statistics_is_a_function():
    found = inspected("loss")
    assert found.report.target.mode == "loss"
    changed = found.trace.arguments.changing
    assert {path.rpartition(".")[2] for path in changed} == {"mean", "var", "count"}
    # Returned beside the loss, and not differentiated.
    assert found.trace.num_outputs == 1 + len(changed) == 1 + 3 * zoo.LAYERS
    assert not changed & set(found.report.target.differentiated)
    graph, parameters, rest = nnx.split(
        nnx.eval_shape(lambda: zoo.Net(nnx.Rngs(0))), nnx.Param, ...
    )

    def pure(parameters, x, y):
        model = nnx.merge(graph, parameters, rest, copy=True)
        return zoo.loss(model, x, y), jax.tree.leaves(nnx.split(model, nnx.Param, ...)[2])

    expected = jax.jit(lambda p, x, y: jax.vjp(pure, p, x, y, has_aux=True)[1])
    kept = jax.tree.leaves(expected.trace(parameters, *zoo.batch()).out_info)
    assert len(found.report.residuals) == len(kept)


@pytest.mark.integration
def test_what_comes_back_unchanged_is_no_change():
    changed = inspected("train_step_frozen").trace.outputs
    assert not any("blocks[0].up" in path or "rngs.key" in path for path in changed)
    assert any(path == "model.blocks[2].up.kernel" for path in changed)


def test_handed_through_loops_and_calls():
    def fun(a, b, xs):
        def body(carry, x):
            (left, right), total = carry
            return ((left, right), total + x.sum()), x

        (same, total), stacked = jax.lax.scan(body, ((a, b), 0.0), xs)
        swapped = jax.lax.cond(total > 0, lambda p: p, lambda p: p[::-1], same)
        return (*jax.jit(lambda p: p)(same), stacked, total, *swapped)

    jaxpr = jax.make_jaxpr(fun)(jnp.ones(2), jnp.ones(2), jnp.ones((3, 2))).jaxpr
    found = [passed_through(jaxpr, v) for v in jaxpr.outvars]
    assert found == [0, 1, 2, None, None, None]


@pytest.mark.integration
@pytest.mark.parametrize("name", ["train_step_method", "train_step_global"])
def test_what_the_user_holds_stays_as_it_is(name):
    held = [zoo.model, zoo.optimizer, zoo.trainer.model, zoo.trainer.optimizer]
    before = [jax.tree.leaves(each) for each in held]
    inspected(name)
    after = [jax.tree.leaves(each) for each in held]
    pairs = zip(before, after, strict=True)
    assert all(x is y for xs, ys in pairs for x, y in zip(xs, ys, strict=True))
    assert (zoo.trainer.steps, zoo.trainer.last) == (0, None)


@pytest.mark.integration
def test_what_the_user_holds_stays_as_it_is_when_the_trace_fails():
    model, optimizer = zoo.create()
    notes = {"losses": []}

    def step(x):
        notes["losses"].append(zoo.plain_step(model, optimizer, x, x))
        raise ValueError("enough")

    before = jax.tree.leaves((model, optimizer))
    with pytest.raises(TraceError, match="enough"):
        jaxresid.inspect(step, mode="program")(zoo.batch()[0])
    assert all(x is y for x, y in zip(before, jax.tree.leaves((model, optimizer)), strict=True))
    assert notes == {"losses": []}
    zoo.plain_step(model, optimizer, *zoo.batch())  # and can be changed as before


def test_tied_weights_are_one_parameter():
    class Tied(nnx.Module):
        def __init__(self, rngs):
            self.into = nnx.Linear(8, 8, use_bias=False, rngs=rngs)
            self.out = nnx.Linear(8, 8, use_bias=False, rngs=rngs)
            self.out.kernel = self.into.kernel

    def step(model, optimizer, x):
        def loss(model):
            return jnp.sum(model.out(jnp.tanh(model.into(x))))

        optimizer.update(model, nnx.grad(loss)(model))

    def inputs():
        model = Tied(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), jnp.ones((4, 8))

    given = from_function(inputs, "inputs")
    found = inspection(Question(step, given.args))
    assert by_role(found)["parameters"] == 8 * 8 * 4
    assert found.report.target.differentiated == ("model.into.kernel",)


# Not of Flax.

W, X = {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32)}, jax.ShapeDtypeStruct((16, 8), jnp.float32)


def square(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"]) ** 2)


def sgd(params, x):
    value, gradient = jax.value_and_grad(square)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value


def in_dict(state, x):
    state["params"], value = sgd(state["params"], x)
    return value


class Plain:
    def __init__(self):
        self.params = {"w": jnp.ones((8, 4))}
        self.count = 0

    def step(self, x):
        self.count += 1
        self.params, value = jax.jit(sgd)(self.params, x)
        return value


def test_dicts_and_attributes_that_a_gradient_changes():
    expected = inspection(Question(sgd, (W, X)))
    owner = Plain()
    held = owner.params
    for found in (
        inspection(Question(in_dict, ({"params": W}, X))),
        inspection(Question(owner.step, (X,))),
    ):
        assert by_role(found) == by_role(expected)
        assert found.report.peak.nbytes == expected.report.peak.nbytes
    assert owner.params is held
    assert owner.count == 0


def test_notes_in_a_dict_are_no_outputs_of_a_function():
    def loss(params, x):
        params["seen"] = x.sum()
        return square(params, x)

    found = inspection(Question(loss, (dict(W), X)))
    assert found.report.target.mode == "loss"
    assert found.trace.num_outputs == 1


def test_metrics_and_scales_are_no_optimizer_state():
    def step(params, scale, metrics, x):
        value, gradient = jax.value_and_grad(lambda p: square(p, x) * scale)(params)
        fine = jnp.isfinite(gradient["w"]).all()
        params = {"w": jnp.where(fine, params["w"] - gradient["w"] / scale, params["w"])}
        metrics = {"total": metrics["total"] + value, "count": metrics["count"] + 1}
        return params, jnp.where(fine, scale * 2, scale / 2), metrics

    number = jax.ShapeDtypeStruct((), jnp.float32)
    counted = {"total": number, "count": jax.ShapeDtypeStruct((), jnp.int32)}
    totals = by_role(inspection(Question(step, (W, number, counted, X))))
    assert totals["parameters"] == 8 * 4 * 4
    assert "optimizer-state" not in totals


# Gradients that nothing depends on.


def forgetful(params, x):
    return sgd(params, x)[1]


def stale(params, x):
    return params, sgd(params, x)[1]


@pytest.mark.parametrize("fun", [forgetful, stale, jax.jit(forgetful)])
def test_a_dead_backward_pass_is_said(fun):
    report = jaxresid.inspect(fun)(W, X)
    assert report.target.mode == "program"
    assert report.cost.backward.flops == 0
    assert any("depends on its gradients" in warning for warning in report.warnings)
    for refuses in (
        jaxresid.compare(fun),
        jaxresid.plan(fun, budget="1MiB"),
        jaxresid.check(fun),
    ):
        with pytest.raises(InputsError, match="depends on its gradients"):
            refuses(W, X)


@pytest.mark.integration
def test_what_lacks_its_backward_pass_does_not_fit():
    report = jaxresid.compile(forgetful, on="cpu", cache=False)(W, X)
    assert report.compiled[0].fits is None
    assert any("depends on its gradients" in warning for warning in report.warnings)


def test_its_checkpoints_are_not_judged():
    def step(params, x):
        return jax.value_and_grad(jax.checkpoint(square))(params, x)[0]

    assert jaxresid.inspect(step)(W, X).checkpoints == ()


def test_a_dead_gradient_in_a_function_is_said():
    report = jaxresid.inspect(forgetful, mode="loss")(W, X)
    assert report.target.mode == "loss"
    assert any("depends on its gradients" in warning for warning in report.warnings)


@pytest.mark.parametrize("fun", [sgd, lambda p, x: square(sgd(p, x)[0], x)])
def test_a_gradient_that_is_used_is_not_dead(fun):
    assert jaxresid.inspect(fun)(W, X).warnings == ()


def test_a_gradient_that_decides_is_not_dead():
    def step(params, x):
        gradient = jax.grad(square)(params, x)["w"]
        return jax.lax.cond(jnp.isfinite(gradient).all(), jnp.sin, jnp.cos, params["w"])

    assert jaxresid.inspect(step)(W, X).warnings == ()


def both_taken(params, other, x):
    params, value = sgd(params, x)
    return params, value, jax.value_and_grad(square)(other, x)[0]


def both_jitted(params, other, x):
    taken = jax.jit(jax.value_and_grad(square))
    gradient = taken(params, x)[1]
    return jax.tree.map(jnp.subtract, params, gradient), taken(other, x)[0]


def both_in_a_loop(params, other, x):
    def body(params, _):
        params, value, _ = both_taken(params, other, x)
        return params, value

    return jax.lax.scan(body, params, None, length=3)


@pytest.mark.parametrize("fun", [both_taken, both_jitted, jax.jit(both_taken), both_in_a_loop])
def test_one_dead_gradient_beside_a_live_one_is_said(fun):
    args = (W, W, X)
    (warning,) = jaxresid.inspect(fun)(*args).warnings
    assert "computes gradients of other['w'] (of the code that begins at " in warning
    # It is no more than a warning: the other gradient is real.
    assert any("other['w']" in w for w in jaxresid.plan(fun, budget="1GiB")(*args).warnings)


@jax.custom_vjp
def with_a_metric(x):
    return jnp.sum(x**2), jnp.abs(x)


with_a_metric.defvjp(
    lambda x: (with_a_metric(x), x), lambda x, cotangents: (2 * cotangents[0] * x,)
)


def test_zeros_for_a_metric_that_nobody_differentiates_are_no_dead_gradient():
    def step(params, x):
        def loss(params):
            value, metric = with_a_metric(jnp.sin(x @ params["w"]))
            return value, metric

        gradient, metric = jax.grad(loss, has_aux=True)(params)
        return jax.tree.map(jnp.subtract, params, gradient), metric.sum()

    assert jaxresid.inspect(step)(W, X).warnings == ()


def as_a_metric(params, other, x):
    params, value = sgd(params, x)
    return params, value, jnp.sum(jax.grad(square)(other, x)["w"] ** 2)


def adversarial(critic, generator, x):
    def of_critic(critic):
        return square(critic, jax.lax.stop_gradient(x @ (generator["w"] @ generator["w"].T)))

    def of_generator(generator):
        return -square(critic, x @ (generator["w"] @ generator["w"].T))

    critic = jax.tree.map(jnp.subtract, critic, jax.grad(of_critic)(critic))
    return critic, jax.tree.map(jnp.subtract, generator, jax.grad(of_generator)(generator))


def partly_frozen(params, other, x):
    def both(params, other):
        return square(params, x) + square(other, x)

    return jax.tree.map(jnp.subtract, params, jax.grad(both, argnums=(0, 1))(params, other)[0])


def deciding(params, other, x):
    fine = jnp.isfinite(jax.grad(square)(other, x)["w"]).all()
    return jax.lax.cond(fine, lambda: sgd(params, x)[0], lambda: params)


@pytest.mark.parametrize("fun", [as_a_metric, adversarial, partly_frozen, deciding])
def test_gradients_that_are_used_are_not_lost(fun):
    assert jaxresid.inspect(fun)(W, W, X).warnings == ()


@pytest.mark.parametrize(
    "command", [["report"], ["compare"], ["plan", "--budget", "1MiB"], ["check"]]
)
def test_commands(command, capsys):
    code = run([command[0], f"{FILE}:train_step_evaluated", *command[1:]])
    done = capsys.readouterr()
    assert "depends on its gradients" in " ".join((done.out + done.err).split())
    assert code == (0 if command[0] == "report" else 2)
    assert "earns its keep" not in done.out


@pytest.mark.integration
@pytest.mark.parametrize("name", ["train_step", "train_step_functional", "train_step_evaluated"])
def test_a_step_is_not_split(name, capsys):
    assert run(["split", f"{FILE}:{name}"]) == 2
    said = without_stages(capsys.readouterr().err)
    assert len(said.splitlines()) == 1
    assert f"{name} is a program with both passes of a gradient in it (grad at " in said
    assert "split the function that is differentiated there" in said


@pytest.mark.integration
def test_its_loss_is_split():
    assert run(["split", f"{FILE}:loss"]) == 0


@pytest.mark.integration
def test_variants_change_the_same(functional):
    args = from_function(zoo.train_step_inputs, "inputs").args
    mine = jaxresid.compare(zoo.train_step)(*args)
    given = from_function(zoo.train_step_functional_inputs, "inputs").args
    theirs = jaxresid.compare(zoo.train_step_functional)(*given)
    assert len(mine.rows) > 3
    for ours, other in zip(mine.rows, theirs.rows, strict=True):
        assert ours.policy == other.policy
        assert ours.kept_nbytes == other.kept_nbytes
        assert ours.peak_nbytes == pytest.approx(other.peak_nbytes, rel=0.03)


# What a target adds, and what nothing reads.


class Sowing(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        x = self.inner(x)
        self.seen = nnx.Intermediate(x)
        return jnp.tanh(x)


def mean_square(model, x):
    return jnp.mean(model(x) ** 2)


@pytest.mark.integration
def test_a_variable_that_a_module_gains_is_a_change():
    model = Sowing(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(model, optimizer, x):
        optimizer.update(model, nnx.grad(mean_square)(model, x))

    def closed(x):
        return step(model, optimizer, x)

    for fun, args in (
        (step, (model, optimizer, X)),
        (nnx.jit(step), (model, optimizer, X)),
        (closed, (X,)),
    ):
        found = inspection(Question(fun, args))
        assert found.report.target.mode == "program"
        assert "model.seen" in found.trace.outputs
    loss = inspection(Question(lambda w, x: mean_square(model, x * w), (jnp.ones(8), X)))
    assert loss.report.target.mode == "loss"
    assert loss.trace.num_outputs == 2
    assert not hasattr(model, "seen")


def test_attributes_that_a_step_adds_are_outputs():
    class Adding(Plain):
        def step(self, x):
            self.params, self.last = sgd(self.params, x)
            self.notes = {"kept": [self.last, "a note"]}

    owner = Adding()
    found = inspection(Question(owner.step, (X,)))
    assert set(found.trace.outputs) == {"self.params['w']", "self.last", "self.notes['kept'][0]"}
    assert set(vars(owner)) == {"params", "count"}


class Partly(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(8, 8, rngs=rngs)
        self.unread = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return jnp.tanh(self.inner(x))


@pytest.mark.parametrize(
    "tx",
    [
        optax.sgd(0.1),
        optax.sgd(0.1, momentum=0.9),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
        optax.MultiSteps(optax.adam(1e-3), 4),
    ],
)
def test_parameters_that_no_forward_pass_reads(tx):
    def inputs():
        model = Partly(nnx.Rngs(0))
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param), jnp.ones((16, 8))

    @nnx.jit
    def step(model, optimizer, x):
        optimizer.update(model, nnx.grad(mean_square)(model, x))

    model, optimizer = jax.eval_shape(inputs)[:2]
    totals = by_role(inspection(Question(step, from_function(inputs, "inputs").args)))
    assert totals["parameters"] == nbytes(nnx.state(model, nnx.Param))
    assert totals["optimizer-state"] == nbytes(nnx.state(optimizer, nnx.optimizer.OptState))


def test_means_beside_parameters_are_none():
    def step(state, x):
        params, value = sgd(state["params"], x)
        gradient = jax.tree.map(jnp.subtract, params, state["params"])
        mean = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, state["mean"], params)
        norm = 0.9 * state["norm"] + 0.1 * optax.global_norm(gradient)
        return {"params": params, "mean": mean, "norm": norm}, value

    state = {"params": W, "mean": W, "norm": jax.ShapeDtypeStruct((), jnp.float32)}
    assert inspection(Question(step, (state, X))).report.target.differentiated == (
        "state['params']['w']",
    )
