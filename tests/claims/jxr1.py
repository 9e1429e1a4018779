"""JXR1, placement."""

import inspect
import io
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rule_examples import example

from claims import Claim, count, flops, saved, temp_nbytes
from jaxresid.linter.patterns import dead_ends

W = jnp.full((8, 8), 0.1)
X = jnp.full((4, 8), 0.5)


def _layers(w, x):
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return x.sum()


def _same_peak(namespace):
    """The residuals go, the temporary memory and the gradient stay, the FLOPs rise."""
    loss = namespace["loss"]
    wrapped = jax.checkpoint(loss)
    assert len(saved(wrapped, W, X)) == 0 < len(saved(loss, W, X))
    value, gradient = namespace["step"](W, X)
    plain, plain_gradient = jax.value_and_grad(loss)(W, X)
    assert jnp.allclose(value, plain) and jnp.allclose(gradient, plain_gradient)


def _same_temp(_):
    """Compiled: within 20 % of the plain peak, for a third more FLOPs."""
    w, x = jnp.full((256, 256), 0.01), jnp.full((512, 256), 0.5)
    plain = jax.value_and_grad(_layers)
    whole = jax.value_and_grad(jax.checkpoint(_layers))
    assert temp_nbytes(whole, w, x) > 0.8 * temp_nbytes(plain, w, x)
    assert flops(whole, w, x) > 1.2 * flops(plain, w, x)


def _same_temp_before_arithmetic(_):
    """The same with a squared distance after the checkpoint."""
    w, x = jnp.full((256, 256), 0.01), jnp.full((512, 256), 0.5)

    def network(w, x):
        for _ in range(6):
            x = jnp.tanh(x @ w)
        return x

    def step(network):
        return jax.value_and_grad(lambda w, x: jnp.mean((network(w, x) - x) ** 2))

    whole, plain = step(jax.checkpoint(network)), step(network)
    assert temp_nbytes(whole, w, x) > 0.8 * temp_nbytes(plain, w, x)
    assert flops(whole, w, x) > 1.2 * flops(plain, w, x)


def _same_temp_in_training(_):
    """The same for the steps of a scan, whose gradients go into the parameters."""
    w, x = jnp.full((256, 256), 0.01), jnp.full((8, 512, 256), 0.5)

    def train(loss):
        def step(w, x):
            value, gradient = jax.value_and_grad(loss)(w, x)
            return w - 0.1 * gradient, value

        return lambda w, x: jax.lax.scan(step, w, x)

    whole, plain = train(jax.checkpoint(_layers)), train(_layers)
    assert temp_nbytes(whole, w, x) > 0.8 * temp_nbytes(plain, w, x)
    assert flops(whole, w, x) > 1.2 * flops(plain, w, x)


def _applied(namespace, _, x):
    parameters = namespace["Net"]().init(jax.random.key(0), x)
    return namespace["step"](parameters, x, x)


def _decorated(namespace):
    assert saved(namespace["loss"], W, X) == []


def _last_stage(namespace):
    """The head's forward pass runs twice."""
    trunk, head, loss = namespace["trunk"], namespace["head"], namespace["loss"]

    def plain(w, x):
        return head(w, trunk(w, x))

    dots = [count(jax.value_and_grad(f), "dot_general", W, X) for f in (loss, plain)]
    assert dots[0] == dots[1] + 1


def _mean_of_each(_):
    """The same where each of several results is averaged, as losses of several constraints are."""
    w, x = jnp.full((256, 256), 0.01), jnp.full((512, 256), 0.5)

    def heads(w, x):
        for _ in range(6):
            x = jnp.tanh(x @ w)
        return [jnp.sin(x @ w), jnp.cos(x @ w)]

    def step(heads):
        def loss(w, x):
            return jnp.mean(jnp.stack([jnp.mean(y) for y in heads(w, jnp.tanh(x @ w))]))

        return jax.value_and_grad(loss)

    last, plain = step(jax.checkpoint(heads)), step(heads)
    assert temp_nbytes(last, w, x) > 0.8 * temp_nbytes(plain, w, x)
    assert flops(last, w, x) > 1.2 * flops(plain, w, x)


def _recomputed(code, name, call, **options):
    """A claim: the checkpoint of a whole chain adds matrix products, and changes no gradient."""

    def check(namespace):
        fixed = {"__name__": "fixed"}
        exec(compile(example(code, name).fixed, "<fixed>", "exec"), fixed)
        steps = [lambda w, x, n=n: call(n, w, x) for n in (namespace, fixed)]
        with_it, without = (count(step, "dot_general", W, X) for step in steps)
        assert with_it > without > 0
        one, other = (jax.tree.leaves(step(W, X)) for step in steps)
        assert all(jnp.allclose(a, b) for a, b in zip(one, other, strict=True))

    return Claim(check, example=name, **options)


def _around(namespace):
    """As much temporary memory as the plain loop, several times that of a checkpointed body."""
    step = namespace["step"]
    ws, x = jnp.full((16, 64, 64), 0.01), jnp.full((256, 64), 0.5)

    def loss(run):
        return jax.grad(lambda ws, x: run(ws, x).sum())

    def scan(body):
        return lambda ws, x: jax.lax.scan(body, x, ws)[0]

    plain = temp_nbytes(loss(scan(step)), ws, x)
    around = temp_nbytes(jax.grad(namespace["loss"]), ws, x)
    body = temp_nbytes(loss(scan(jax.checkpoint(step, prevent_cse=False))), ws, x)
    assert around > 0.8 * plain
    assert body < 0.7 * plain


def _around_set_up(namespace):
    """The same where constants and other shapes stand before the loop."""
    rollout, x = namespace["rollout"], jnp.full((256, 8), 0.5)
    params = {"w": jnp.full((8, 8), 0.01)}

    def loss(run):
        return jax.grad(lambda params, x: run(params, x, 4).sum())

    def body(params, x, n):
        def step(c, t):
            return c + 0.1 * jnp.tanh(c @ params["w"] + t), None

        step = jax.checkpoint(step, prevent_cse=False)
        return jax.lax.scan(step, x, jnp.arange(16))[0]

    plain = temp_nbytes(loss(inspect.unwrap(rollout)), params, x)
    assert temp_nbytes(loss(rollout), params, x) > 0.8 * plain
    assert temp_nbytes(loss(body), params, x) < 0.7 * plain


def _of_gradient(namespace):
    """The same residuals cross inside: as many dots with it as without."""
    loss = namespace["loss"]
    wrapped = count(jax.checkpoint(jax.grad(loss)), "dot_general", W, X)
    assert wrapped == count(jax.grad(loss), "dot_general", W, X)


def _discarded(namespace):
    def block(x):
        return jnp.sin(jnp.sin(x))

    def plain(x):
        return block(x).sum()

    def meant(x):
        return jax.checkpoint(block)(x).sum()

    assert saved(lambda x: namespace["loss"](block, x), X) == saved(plain, X) != saved(meant, X)


def _nested(namespace):
    def f(x):
        return jnp.sin(jnp.sin(x))

    assert saved(lambda x: namespace["run"](f, x), X) == saved(jax.checkpoint(f), X)


def _outer_policy_decides(namespace):
    """The inner policy would keep the dot; the outer checkpoint has none."""
    inner = jax.checkpoint(
        lambda w, x: jnp.sin(x @ w), policy=jax.checkpoint_policies.dots_saveable
    )
    assert saved(namespace["block"], W, X) == []
    assert saved(inner, W, X) == [("float32", (4, 8))]


def _kept_nbytes(fun, *args):
    _, vjp = jax.vjp(fun, *args)
    arrays = {id(x): x.nbytes for x in jax.tree.leaves(vjp) if hasattr(x, "nbytes")}
    return sum(arrays.values())


def _as_many_bytes(fun, *args):
    """With the checkpoint, the inputs are kept: no fewer bytes than what `fun` itself keeps."""
    return _kept_nbytes(jax.checkpoint(fun), *args) >= _kept_nbytes(fun, *args)


def _trivial(namespace):
    del namespace
    from jaxresid.linter.rules import trivial_checkpoint as rule

    # jax 0.10.2 keeps tanh and 1 - tanh; every other one keeps an array of its input's size.
    for name in sorted(rule._ELEMENTWISE - {"tanh"}):
        for module in (jnp, jax.lax, jax.nn):
            fun = getattr(module, name, None)
            if fun is not None:
                assert _as_many_bytes(fun, X), f"{module.__name__}.{name}"


def _linear(namespace):
    project = namespace["project"]
    assert saved(project, W, X) == saved(lambda w, x: x @ w, W, X) == []


def _copies_are_stacked(_):
    """Where the rule is silent: a scan stacks what a product makes of its weights."""
    ws, x = jnp.full((5, 2, 8, 8), 0.1), X

    def nstacked(layer):
        def loss(ws, x):
            return jax.lax.scan(lambda x, w: (jnp.tanh(layer(x, w)), None), x, ws)[0].sum()

        return sum(shape == (5, 8, 8) for _, shape in saved(loss, ws, x))

    layers = (lambda x, w: x @ w[0], lambda x, w: x @ w[0].T, lambda x, w: jnp.dot(x, w[1] * 1.0))
    for layer in layers:
        assert nstacked(jax.checkpoint(layer, prevent_cse=False)) < nstacked(layer)


def _layers_keep(build):
    """The checkpoint drops nothing, except scalars and a pool's counts of one image."""

    def check(namespace):
        del namespace
        for name, fun, args in build():
            given = sum(x.nbytes for x in jax.tree.leaves(args))
            dropped = _kept_nbytes(fun, *args) - _kept_nbytes(jax.checkpoint(fun), *args)
            assert dropped <= 0.05 * given, name

    return check


def _linen_layers():
    import flax.linen as nn

    image = jnp.ones((2, 8, 8, 3))
    for layer, x in [
        (nn.Dense(4), X),
        (nn.DenseGeneral((2, 2)), X),
        (nn.Einsum((8, 4), "bi,ij->bj"), X),
        (nn.Embed(10, 4), jnp.arange(6) % 10),
        (nn.Conv(4, (3, 3)), image),
        (nn.ConvTranspose(4, (3, 3)), image),
    ]:
        yield type(layer).__name__, layer.apply, (layer.init(jax.random.key(0), x), x)


def _nnx_layers():
    from flax import nnx

    rngs, image = nnx.Rngs(0), jnp.ones((2, 8, 8, 3))
    for layer, x in [
        (nnx.Linear(8, 4, rngs=rngs), X),
        (nnx.LinearGeneral(8, (2, 2), rngs=rngs), X),
        (nnx.Einsum("bi,ij->bj", (8, 4), rngs=rngs), X),
        (nnx.Embed(10, 4, rngs=rngs), jnp.arange(6) % 10),
        (nnx.Conv(3, 4, (3, 3), rngs=rngs), image),
        (nnx.ConvTranspose(3, 4, (3, 3), rngs=rngs), image),
    ]:
        graph, state = nnx.split(layer)
        yield type(layer).__name__, lambda s, x, g=graph: nnx.merge(g, s)(x), (state, x)


def _equinox_layers():
    import equinox as eqx

    key, image = jax.random.key(0), jnp.ones((3, 8, 8))
    for layer, x in [
        (eqx.nn.Linear(8, 4, key=key), X[0]),
        (eqx.nn.Embedding(10, 4, key=key), jnp.asarray(3)),
        (eqx.nn.Conv2d(3, 4, 3, key=key), image),
        (eqx.nn.ConvTranspose2d(3, 4, 3, key=key), image),
        (eqx.nn.AvgPool2d(2, 2), image),
        (eqx.nn.MaxPool2d(2, 2), image),
        (eqx.nn.Identity(), X),
    ]:
        arrays, rest = eqx.partition(layer, eqx.is_array)
        yield type(layer).__name__, lambda a, x, r=rest: eqx.combine(a, r)(x), (arrays, x)


def _haiku_layers():
    import haiku as hk

    rows, image = jnp.ones((2, 8, 3)), jnp.ones((2, 8, 8, 3))
    for make, x in [
        (lambda: hk.Linear(4), X),
        (lambda: hk.Embed(10, 4), jnp.arange(6) % 10),
        (lambda: hk.Conv1D(4, 3), rows),
        (lambda: hk.Conv2D(4, 3), image),
        (lambda: hk.Conv2DTranspose(4, 3), image),
        (lambda: hk.DepthwiseConv2D(2, 3), image),
        (lambda: hk.AvgPool(2, 2, "SAME"), image),
        (lambda: hk.MaxPool(2, 2, "SAME"), image),
        (hk.Bias, X),
    ]:
        net = hk.without_apply_rng(hk.transform(lambda x, make=make: make()(x)))
        yield "haiku", net.apply, (net.init(jax.random.key(0), x), x)


def _lookups():
    from jax import lax

    table, ids = jnp.ones((10, 4)), jnp.arange(6) % 10
    sizes = jnp.asarray([1, 3])
    yield "lookup", lambda t, i: t[i], (table, ids)
    yield "take", lambda t, i: jnp.take(t, i, axis=0), (table, ids)
    yield "ragged_dot", lax.ragged_dot, (X, jnp.ones((2, 8, 4)), sizes)
    yield (
        "conv",
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
        (
            jnp.ones((2, 3, 8, 8)),
            jnp.ones((4, 3, 3, 3)),
        ),
    )


def _forward_only(namespace):
    x = jnp.ones(3)
    value, tangent = namespace["directional"](x, x)
    plain, plain_tangent = jax.jvp(namespace["f"], (x,), (x,))
    assert jnp.allclose(value, plain) and jnp.allclose(tangent, plain_tangent)
    whole = jax.make_jaxpr(namespace["directional"])(x, x)
    assert "cos" in str(whole)


def _in_custom_vjp(namespace):
    """Nothing of the scan's body crosses: the residuals are what the rule returns."""
    run, xs = namespace["run"], jnp.ones(5)
    assert saved(run, xs) == []
    assert jnp.allclose(jax.grad(run)(xs), jnp.cos(xs))


def _stopped(name, *args):
    """Nothing is kept, with the checkpoint and without, and the gradient is zero."""

    def check(namespace):
        fun = namespace[name]
        kept = saved(lambda *a: jax.tree.leaves(fun(*a)), *args)
        plain = saved(lambda *a: jax.tree.leaves(inspect.unwrap(fun)(*a)), *args)
        assert kept == plain == []

    return check


def _stopped_teacher(namespace):
    """What the teacher computes from is not kept for the student's gradient."""
    args = (W, {"w": W}, X)
    plain = dict(namespace, jax=types.SimpleNamespace(**{**vars(jax), "checkpoint": lambda f: f}))
    without = types.FunctionType(namespace["loss"].__code__, plain)
    assert saved(namespace["loss"], *args) == saved(without, *args)


def _conversions(namespace):
    """What is being differentiated cannot be converted; as a number it has no derivative."""

    def differentiated(use):
        return jax.grad(lambda x: jnp.sum(jnp.asarray(use(jnp.sin(x)))))(X)

    for name in sorted(dead_ends.CONVERSIONS):
        convert = getattr(np, name.removeprefix("numpy."))
        given = (io.BytesIO(),) if name.startswith("numpy.save") else ()
        with pytest.raises(jax.errors.TracerArrayConversionError):
            differentiated(lambda y, convert=convert, given=given: convert(*given, y))
    for number in (float, complex, lambda y: y.tolist()):
        with pytest.raises((TypeError, jax.errors.ConcretizationTypeError)):
            differentiated(lambda y, number=number: number(y[0, 0]))
    assert not differentiated(lambda y: y[0, 0].item()).any()
    for hands_on in (np.sum, jax.device_get):
        assert jnp.allclose(differentiated(hands_on), jnp.cos(X))


def _simulated(namespace):
    """It runs, and cannot be differentiated."""
    (x, *_), simulate = X, namespace["simulate"]
    assert simulate(x, 5)["path"].shape == (5, *x.shape)
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.grad(lambda x: jnp.sum(simulate(x, 5)["path"]))(x)


def _built(namespace):
    """The outer checkpoint keeps what the inner one alone would keep."""
    rate, state = namespace["build"](2.0), X
    outer = namespace["relaxation"](2.0)
    assert saved(outer, 0.0, state) == saved(lambda t, y: rate(t, y, 0.5), 0.0, state)


def _stacked(namespace):
    """The plain loop stacks arrays for every step, the fixed one the carry alone."""
    step = namespace["step"]
    ws, x = jnp.full((5, 8, 8), 0.1), X

    def loss(body):
        return lambda ws, x: jax.lax.scan(body, x, ws)[0].sum()

    def stacked(body):
        return [shape for _, shape in saved(loss(body), ws, x) if shape[0] == 5]

    assert len(stacked(jax.checkpoint(step, prevent_cse=False))) < len(stacked(step))


CLAIMS = {
    "JXR101": (
        Claim(_same_peak),
        # XLA:CPU drops the barrier of straight-line code before jaxlib 0.12.
        Claim(_same_temp, since=(0, 12)),
        Claim(_decorated, example="decorated_loss"),
        _recomputed(
            "JXR101", "called_by_a_helper_of_the_loss", lambda n, w, x: n["step"](w, {"x": x})
        ),
        _recomputed("JXR101", "method_of_a_trainer", lambda n, w, x: n["Trainer"]().step(w, x)),
        _recomputed("JXR101", "linen_module_in_mean_squared_error", _applied, needs=("flax",)),
        _recomputed("JXR101", "halved_squared_error", lambda n, w, x: n["step"](w, x, {"y": x})),
        Claim(_same_temp_before_arithmetic, since=(0, 12)),
        Claim(_same_temp_in_training, source="", since=(0, 12)),
    ),
    "JXR102": (
        Claim(_last_stage),
        Claim(_mean_of_each, source="", since=(0, 12)),
        _recomputed("JXR102", "method_of_a_model", lambda n, w, x: n["Model"]().step(w, x)),
    ),
    "JXR103": (Claim(_around), Claim(_around_set_up, example="preparation_before_the_scan")),
    "JXR104": (Claim(_of_gradient),),
    "JXR105": (Claim(_discarded),),
    "JXR106": (
        Claim(_nested),
        Claim(_built, example="made_by_a_factory"),
        Claim(_outer_policy_decides, example="both_decorators_with_a_policy"),
    ),
    "JXR107": (
        Claim(_trivial),
        Claim(_linear, example="product_in_a_lambda"),
        Claim(_copies_are_stacked, source=""),
        Claim(_layers_keep(_lookups), example="table_lookup"),
        Claim(_layers_keep(_linen_layers), example="linen_module_with_one_dense", needs=("flax",)),
        Claim(_layers_keep(_nnx_layers), example="nnx_layer_of_two_kinds", needs=("flax",)),
        Claim(_layers_keep(_haiku_layers), example="haiku_conv_and_pool", needs=("haiku",)),
        Claim(
            _layers_keep(_equinox_layers), example="equinox_linear_of_a_method", needs=("equinox",)
        ),
    ),
    "JXR108": (
        Claim(_forward_only),
        Claim(_in_custom_vjp, example="custom_vjp_forward_rule"),
        Claim(_stopped_teacher, example="stopped_arguments"),
        Claim(_stopped("value", W, X), example="stopped_inside"),
        Claim(_stopped("advantages", X, X), example="decorated_with_stopped_results"),
        Claim(_conversions, source=""),
        Claim(_simulated, example="simulation_to_numpy"),
    ),
    "JXR109": (Claim(_stacked),),
}
