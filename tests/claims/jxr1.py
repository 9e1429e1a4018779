"""JXR1, placement."""

import inspect
import types

import jax
import jax.numpy as jnp

from claims import Claim, count, flops, saved, temp_nbytes

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


def _decorated(namespace):
    assert saved(namespace["loss"], W, X) == []


def _last_stage(namespace):
    """The head's forward pass runs twice."""
    trunk, head, loss = namespace["trunk"], namespace["head"], namespace["loss"]

    def plain(w, x):
        return head(w, trunk(w, x))

    dots = [count(jax.value_and_grad(f), "dot_general", W, X) for f in (loss, plain)]
    assert dots[0] == dots[1] + 1


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


def _as_many_bytes(fun, *args):
    """With the checkpoint, the inputs are kept: no fewer bytes than what `fun` itself keeps."""

    def nbytes(f):
        _, vjp = jax.vjp(f, *args)
        arrays = {id(x): x.nbytes for x in jax.tree.leaves(vjp) if hasattr(x, "nbytes")}
        return sum(arrays.values())

    return nbytes(jax.checkpoint(fun)) >= nbytes(fun)


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
        Claim(_decorated, bad=1),
    ),
    "JXR102": (Claim(_last_stage),),
    "JXR103": (Claim(_around),),
    "JXR104": (Claim(_of_gradient),),
    "JXR105": (Claim(_discarded),),
    "JXR106": (Claim(_nested), Claim(_outer_policy_decides, bad=2)),
    "JXR107": (Claim(_trivial), Claim(_linear, bad=1)),
    "JXR108": (
        Claim(_forward_only),
        Claim(_in_custom_vjp, bad=1),
        Claim(_stopped_teacher, bad=3),
        Claim(_stopped("value", W, X), bad=4),
        Claim(_stopped("advantages", X, X), bad=5),
    ),
    "JXR109": (Claim(_stacked),),
}
