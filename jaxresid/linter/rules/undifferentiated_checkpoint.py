from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.patterns import dead_ends, stopped
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use


class UndifferentiatedCheckpoint(Rule):
    """Nothing ever runs this checkpoint's function backward.

    ## What it does
    Finds a checkpointed function whose every visible use is under forward-mode differentiation
    (`jax.jvp`, `jax.jacfwd`) or inside the rules of a `custom_vjp`, of this module or another of the
    project, which JAX does not differentiate; one that gets, or gives, nothing but values that go
    through `stop_gradient`, at its calls or in its own body; and one whose results, those of the
    loop or the ODE that runs it, all become NumPy arrays or Python numbers, as in a simulation that
    ends in `np.asarray`.

    ## Why is this bad?
    A checkpoint only changes what reverse mode keeps. Here there is no reverse mode, so it drops
    nothing.

    ## Use instead
    The function itself.

    ## When is this fine?
    Where a rule takes a `jax.vjp` of the checkpointed function itself, where the function is used
    elsewhere too, or where one argument, one result or a value it closes over is not stopped. The
    rule is silent there.

    ## Is the fix safe?
    No: values stay the same, but the checkpoint is also a barrier to the compiler.
    """

    code = "JXR108"
    name = "undifferentiated-checkpoint"
    severity = "warning"
    lenient_in_tests = True
    why = "A checkpoint changes only what reverse-mode differentiation keeps."
    help = "use the function itself"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax


            def f(x):
                return jax.numpy.sin(jax.numpy.sin(x))


            def directional(x, t):
                return jax.jvp(jax.checkpoint(f), (x,), (t,))  # !
            """,
            fixed="""
            import jax


            def f(x):
                return jax.numpy.sin(jax.numpy.sin(x))


            def directional(x, t):
                return jax.jvp(f, (x,), (t,))
            """,
        ),
        Example(
            """
            import jax
            from functools import partial


            @jax.custom_vjp
            def run(xs):
                return _forward(xs)


            def _forward(xs):
                @partial(jax.checkpoint, prevent_cse=False)  # !
                def step(c, x):
                    return c + jax.numpy.sin(x), None

                return jax.lax.scan(step, 0.0, xs)[0]


            def fwd(xs):
                return _forward(xs), xs


            def bwd(xs, ct):
                return (ct * jax.numpy.cos(xs),)


            run.defvjp(fwd, bwd)
            """,
            fixed="""
            import jax
            from functools import partial


            @jax.custom_vjp
            def run(xs):
                return _forward(xs)


            def _forward(xs):
                def step(c, x):
                    return c + jax.numpy.sin(x), None

                return jax.lax.scan(step, 0.0, xs)[0]


            def fwd(xs):
                return _forward(xs), xs


            def bwd(xs, ct):
                return (ct * jax.numpy.cos(xs),)


            run.defvjp(fwd, bwd)
            """,
        ),
        Example(
            """
            import jax


            def targets(net, w, x):
                return jax.lax.stop_gradient(jax.checkpoint(net)(w, x))  # !
            """,
            fixed="""
            import jax


            def targets(net, w, x):
                return jax.lax.stop_gradient(net(w, x))
            """,
        ),
        Example(
            """
            import jax
            from jax import lax


            def teacher(params, x):
                return jax.nn.gelu(x @ params["w"])


            def loss(student, params, x):
                params = jax.tree.map(lax.stop_gradient, params)
                want = jax.checkpoint(teacher)(params, lax.stop_gradient(x))  # !
                return ((x @ student - want) ** 2).sum()


            step = jax.value_and_grad(loss)
            """,
            fixed="""
            import jax
            from jax import lax


            def teacher(params, x):
                return jax.nn.gelu(x @ params["w"])


            def loss(student, params, x):
                params = jax.tree.map(lax.stop_gradient, params)
                want = teacher(params, lax.stop_gradient(x))
                return ((x @ student - want) ** 2).sum()


            step = jax.value_and_grad(loss)
            """,
        ),
        Example(
            """
            import jax


            @jax.remat  # !
            def value(w, x):
                w, x = jax.lax.stop_gradient((w, x))
                return jax.nn.softplus(jax.nn.softplus(x @ w))
            """,
            fixed="""
            import jax


            def value(w, x):
                w, x = jax.lax.stop_gradient((w, x))
                return jax.nn.softplus(jax.nn.softplus(x @ w))
            """,
        ),
        Example(
            """
            import jax


            @jax.checkpoint  # !
            def advantages(values, rewards):
                deltas = jax.nn.tanh(rewards - values)
                return jax.lax.stop_gradient(deltas), jax.lax.stop_gradient(values)
            """,
            fixed="""
            import jax


            def advantages(values, rewards):
                deltas = jax.nn.tanh(rewards - values)
                return jax.lax.stop_gradient(deltas), jax.lax.stop_gradient(values)
            """,
        ),
        Example(
            """
            import jax


            def targets(net, w, x):
                q, _ = jax.checkpoint(net)(w, x)  # !
                q = jax.lax.stop_gradient(q)
                return q - q.mean()
            """,
            fixed="""
            import jax


            def targets(net, w, x):
                q, _ = net(w, x)
                q = jax.lax.stop_gradient(q)
                return q - q.mean()
            """,
        ),
        Example(  # the rules' bodies are in a module of their own
            """
            import jax


            def forward(xs):
                @jax.checkpoint  # !
                def step(c, x):
                    return c + jax.numpy.sin(jax.numpy.sin(x)), None

                return jax.lax.scan(step, 0.0, xs)[0], xs
            """,
            fixed="""
            import jax


            def forward(xs):
                def step(c, x):
                    return c + jax.numpy.sin(jax.numpy.sin(x)), None

                return jax.lax.scan(step, 0.0, xs)[0], xs
            """,
            files={
                "api.py": """
                import jax
                from module import forward


                @jax.custom_vjp
                def run(xs):
                    return forward(xs)[0]


                def bwd(xs, ct):
                    return (ct * jax.numpy.cos(xs),)


                run.defvjp(forward, bwd)
                """
            },
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp
            import numpy as np


            def simulate(x, steps):
                def step(state, _):
                    new = jnp.tanh(state)
                    return new, (new, new**2)

                step = jax.checkpoint(step)  # !
                last, (path, energy) = jax.lax.scan(step, x, length=steps)
                energy = jnp.where(jnp.isfinite(energy), energy, 0.0).sum(-1)
                return {"path": np.asarray(path), "energy": float(energy[-1]), "n": len(last)}
            """,
            fixed="""
            import jax
            import jax.numpy as jnp
            import numpy as np


            def simulate(x, steps):
                def step(state, _):
                    new = jnp.tanh(state)
                    return new, (new, new**2)

                last, (path, energy) = jax.lax.scan(step, x, length=steps)
                energy = jnp.where(jnp.isfinite(energy), energy, 0.0).sum(-1)
                return {"path": np.asarray(path), "energy": float(energy[-1]), "n": len(last)}
            """,
        ),
        Example(
            """
            import diffrax
            import jax
            import jax.numpy as jnp
            import numpy as np


            class Model:
                def _solve(self, field, y0):
                    term = diffrax.ODETerm(jax.checkpoint(field))  # !
                    return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y0)

                def simulate(self, y0):
                    solution = self._solve(lambda t, y, args: -jnp.tanh(y), y0)
                    if not solution.result == diffrax.RESULTS.successful:
                        return None
                    return np.array(solution.ys[:, 0])
            """,
            fixed="""
            import diffrax
            import jax
            import jax.numpy as jnp
            import numpy as np


            class Model:
                def _solve(self, field, y0):
                    term = diffrax.ODETerm(field)
                    return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y0)

                def simulate(self, y0):
                    solution = self._solve(lambda t, y, args: -jnp.tanh(y), y0)
                    if not solution.result == diffrax.RESULTS.successful:
                        return None
                    return np.array(solution.ys[:, 0])
            """,
        ),
        Example(
            """
            import jax


            def stopped(tree):
                return jax.tree.map(jax.lax.stop_gradient, tree)


            def distill(teacher, student, batch, hidden):
                @jax.checkpoint  # !
                def targets(batch):
                    out = teacher(batch)
                    result = {}
                    if hidden:
                        result["hidden"] = stopped(out.hidden)
                    result["logits"] = jax.lax.stop_gradient(out.logits)
                    return result

                return student(batch, **targets(batch))
            """,
            fixed="""
            import jax


            def stopped(tree):
                return jax.tree.map(jax.lax.stop_gradient, tree)


            def distill(teacher, student, batch, hidden):
                def targets(batch):
                    out = teacher(batch)
                    result = {}
                    if hidden:
                        result["hidden"] = stopped(out.hidden)
                    result["logits"] = jax.lax.stop_gradient(out.logits)
                    return result

                return student(batch, **targets(batch))
            """,
        ),
    )
    good = (
        Example(  # one item is not stopped
            """
            import jax


            def distill(teacher, student, batch):
                @jax.checkpoint
                def targets(batch):
                    out = teacher(batch)
                    result = {}
                    result["logits"] = jax.lax.stop_gradient(out.logits)
                    result["hidden"] = out.hidden
                    return result

                return student(batch, **targets(batch))
            """
        ),
        Example(  # the result is returned as a JAX array too
            """
            import jax
            import numpy as np


            def step(x, _):
                y = jax.numpy.tanh(x)
                return y, y


            def simulate(x, log):
                last, path = jax.lax.scan(jax.checkpoint(step), x, length=100)
                log.save(np.asarray(path))
                return last
            """
        ),
        Example(  # others may call it
            """
            import jax
            import numpy as np


            def step(x, _):
                y = jax.numpy.tanh(x)
                return y, y


            def rollout(x):
                return jax.lax.scan(jax.checkpoint(step), x, length=100)[1]


            def simulate(x):
                return np.asarray(rollout(x))
            """
        ),
        Example(  # what is kept elsewhere
            """
            import jax
            import numpy as np


            def step(x, _):
                y = jax.numpy.tanh(x)
                return y, y


            class Simulation:
                def run(self, x):
                    last, path = jax.lax.scan(jax.checkpoint(step), x, length=100)
                    self.path = path
                    return np.asarray(last)
            """
        ),
        Example(  # NumPy's sum calls the method of a JAX array
            """
            import jax
            import numpy as np


            def step(x, _):
                y = jax.numpy.tanh(x)
                return y, y


            def energy(x):
                return np.sum(jax.lax.scan(jax.checkpoint(step), x, length=100)[0])
            """
        ),
        Example(  # the weights are closed over, and not stopped
            """
            import jax


            def loss(w, x):
                def net(x):
                    return jax.nn.gelu(x @ w)

                return jax.checkpoint(net)(jax.lax.stop_gradient(x)).sum()
            """
        ),
        Example(
            """
            import jax


            def net(w, x):
                return jax.nn.gelu(x @ w)


            def loss(w, x):
                return jax.checkpoint(net)(w, jax.lax.stop_gradient(x)).sum()
            """
        ),
        Example(
            """
            import jax
            import flax.linen as nn


            class Net(nn.Module):
                def setup(self):
                    self.block = nn.Dense(4)

                def forward(self, x):
                    return nn.gelu(self.block(x))

                def __call__(self, x):
                    return nn.remat(Net.forward)(self, jax.lax.stop_gradient(x))
            """
        ),
        Example(  # one of the results is not stopped
            """
            import jax


            def both(net, w, x):
                q, h = jax.checkpoint(net)(w, x)
                return jax.lax.stop_gradient(q) + h
            """
        ),
        Example(
            """
            import jax


            @jax.checkpoint
            def both(w, x):
                h = jax.nn.gelu(x @ w)
                return jax.lax.stop_gradient(h), h
            """
        ),
        Example(  # straight-through: the value itself flows on as well
            """
            import jax


            def quantized(net, w, x):
                h = jax.checkpoint(net)(w, x)
                return h + jax.lax.stop_gradient(jax.numpy.round(h) - h)
            """
        ),
        Example(
            """
            import jax


            @jax.checkpoint
            def shifted(w, x):
                top = jax.lax.stop_gradient(x)
                return jax.nn.gelu((x - top.max()) @ w)
            """
        ),
        Example(
            """
            import jax


            @jax.checkpoint
            def maybe(w, x, frozen):
                h = jax.nn.gelu(x @ w)
                if frozen:
                    return jax.lax.stop_gradient(h)
                return h
            """
        ),
        Example(
            """
            import jax


            def net(w, x):
                return jax.nn.gelu(x @ w)


            def loss(w, x, frozen):
                if frozen:
                    w = jax.lax.stop_gradient(w)
                return jax.checkpoint(net)(w, jax.lax.stop_gradient(x)).sum()
            """
        ),
        Example(  # the rule in the other module takes a derivative
            """
            import jax


            def forward(xs):
                @jax.checkpoint
                def step(c, x):
                    return c + jax.numpy.sin(jax.numpy.sin(x)), None

                return jax.lax.scan(step, 0.0, xs)[0], xs
            """,
            files={
                "api.py": """
                import jax
                from module import forward


                @jax.custom_vjp
                def run(xs):
                    return forward(xs)[0]


                def fwd(xs):
                    return jax.vjp(forward, xs)


                def bwd(vjp, ct):
                    return vjp((ct, None))


                run.defvjp(fwd, bwd)
                """
            },
        ),
        Example(  # the other module also calls it outside the rules
            """
            import jax


            def forward(xs):
                @jax.checkpoint
                def step(c, x):
                    return c + jax.numpy.sin(jax.numpy.sin(x)), None

                return jax.lax.scan(step, 0.0, xs)[0], xs
            """,
            files={
                "api.py": """
                import jax
                from module import forward


                @jax.custom_vjp
                def run(xs):
                    return forward(xs)[0]


                def bwd(xs, ct):
                    return (ct * jax.numpy.cos(xs),)


                run.defvjp(forward, bwd)


                def plain(xs):
                    return forward(xs)[0]
                """
            },
        ),
        Example("""
            import jax


            def apply(f, x):
                return jax.checkpoint(f)(x)
            """),
        Example(
            """
            import jax


            @jax.checkpoint
            def f(x):
                return jax.numpy.sin(x)


            def both(x, t):
                y = jax.jvp(f, (x,), (t,))
                return y, jax.grad(f)(x)
            """
        ),
        Example(
            """
            import jax


            def second(f, x, t):
                def along(x):
                    return jax.jvp(jax.checkpoint(f), (x,), (t,))[1]

                return jax.grad(along)(x)
            """
        ),
        Example(
            """
            import jax


            @jax.custom_vjp
            def f(x):
                return _f(x)


            def _f(x):
                return x * x


            def fwd(x):
                return jax.vjp(jax.checkpoint(_f), x)


            def bwd(vjp, ct):
                return vjp(ct)


            f.defvjp(fwd, bwd)
            """
        ),
        Example(
            """
            import jax


            @jax.custom_jvp
            def f(x):
                return jax.checkpoint(jax.numpy.sin)(x)


            @f.defjvp
            def rule(primals, tangents):
                return f(*primals), tangents[0]
            """
        ),
        Example(
            """
            import jax


            def helper(step, xs):
                return jax.lax.scan(jax.checkpoint(step), 0.0, xs)


            @jax.custom_vjp
            def run(step, xs):
                return helper(step, xs)


            def other(step, xs):
                return helper(step, xs)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            reason = _reason(facts, site)
            if reason:
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} has no effect: {reason}",
                    fix=remove_checkpoint(facts, site),
                )


def _reason(facts: Facts, site: Site) -> str:
    inside = stopped.stops_inside(facts, site)
    if inside:
        return inside
    uses = facts.site_uses(site)
    if not uses or (site.definition is not None and facts.remote_uses(site.definition)):
        return ""
    reasons = {_no_reverse(facts, site, use) for use in uses}
    return reasons.pop() if len(reasons) == 1 else ""


def _no_reverse(facts: Facts, site: Site, use: Use) -> str:
    """Why one use is not differentiated in reverse mode; empty where it may be."""
    # Even a derivative taken around the call stops here.
    ended = dead_ends.dead_end(facts, use)
    if ended:
        return ended
    if use.kind == "call" and stopped.arguments_are_stopped(facts, site, use):
        return "its arguments go through stop_gradient"
    context = facts.context(use.node)
    if context.reverse:
        return ""
    if use.kind == "derivative" and use.mode == "forward":
        return "" if _differentiated_later(facts, use) else "only forward mode differentiates it"
    if use.kind in {"call", "loop"} and context.only_rule:
        return "it runs only inside a custom_vjp, which JAX does not differentiate"
    return ""


def _differentiated_later(facts: Facts, use: Use) -> bool:
    """Whether what forward mode gives may be differentiated in turn (Hessians): `jacfwd` makes a
    function, `jvp` runs in one that somebody might differentiate.
    """
    return any(u.kind in {"derivative", "loop", "checkpoint"} for u in facts.uses(use.node))
