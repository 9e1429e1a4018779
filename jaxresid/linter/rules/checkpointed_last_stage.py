from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes.unwrapping import remove_checkpoint
from jaxresid.linter.resolve import results, stages
from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use


class CheckpointedLastStage(Rule):
    """The last stage of the differentiated function is checkpointed.

    ## What it does
    Finds `return jax.checkpoint(head)(x)` (through means, sums and the like) at the end of a
    function that is differentiated as a whole, after other stages; also where the result is handed
    out in a dictionary, a data class or a tuple, whose part the loss takes.

    ## Why is this bad?
    The backward pass begins with the last stage: what the checkpoint dropped is recomputed at once,
    while nothing has been freed yet. The peak stays, and the stage is computed twice.

    ## Use instead
    Leave the last stage plain and checkpoint the stages before it.

    ## When is this fine?
    With a policy. Where the function is itself a part of a larger one, a loop's body or mapped. A
    gradient taken in a loop counts only where an optimizer gets it (`tx.update(grads, state)`).

    ## Is the fix safe?
    No: values stay the same, memory and time may change.
    """

    code = "JXR102"
    name = "checkpointed-last-stage"
    severity = "warning"
    lenient_in_tests = True
    why = (
        "The backward pass begins here: what is dropped is recomputed at once, before anything "
        "else is freed."
    )
    help = "leave the last stage plain, and checkpoint the stages before it"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            import jax.numpy as jnp


            def trunk(w, x):
                return jnp.tanh(x @ w)


            def head(w, h):
                return jnp.sin(h @ w).sum()


            def loss(w, x):
                h = trunk(w, x)
                return jax.checkpoint(head)(w, h)  # !


            step = jax.jit(jax.value_and_grad(loss))
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def trunk(w, x):
                return jnp.tanh(x @ w)


            def head(w, h):
                return jnp.sin(h @ w).sum()


            def loss(w, x):
                h = trunk(w, x)
                return head(w, h)


            step = jax.jit(jax.value_and_grad(loss))
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            @jax.remat  # !
            def head(w, h):
                return jnp.sin(h @ w)


            def step(w, x):
                def loss(w):
                    h = jnp.tanh(x @ w)
                    logits = head(w, h)
                    return jnp.mean(logits)

                return jax.grad(loss)(w)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def head(w, h):
                return jnp.sin(h @ w)


            def step(w, x):
                def loss(w):
                    h = jnp.tanh(x @ w)
                    logits = head(w, h)
                    return jnp.mean(logits)

                return jax.grad(loss)(w)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            class Model:
                def head(self, w, h):
                    return jnp.sin(h @ w).sum()

                def forward(self, w, x):
                    h = jnp.tanh(x @ w)
                    return jax.checkpoint(self.head)(w, h)  # !

                def loss(self, w, x):
                    return self.forward(w, x)

                def step(self, w, x):
                    return jax.value_and_grad(self.loss)(w, x)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            class Model:
                def head(self, w, h):
                    return jnp.sin(h @ w).sum()

                def forward(self, w, x):
                    h = jnp.tanh(x @ w)
                    return self.head(w, h)

                def loss(self, w, x):
                    return self.forward(w, x)

                def step(self, w, x):
                    return jax.value_and_grad(self.loss)(w, x)
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp
            import optax


            class Trainer:
                def make_loss(self, network, static):
                    def loss(w, x):
                        w = {**static, "w": jnp.tanh(w)}

                        @jax.checkpoint  # !
                        def run(w, x):
                            return network(w, x)

                        return jnp.mean(run(w, x))

                    return loss

                def make_step(self, network, tx, static):
                    loss = self.make_loss(network, static)

                    def step(carry, x):
                        w, state = carry
                        value, gradient = jax.value_and_grad(lambda w: loss(w, x))(w)
                        updates, state = tx.update(gradient, state, w)
                        return (optax.apply_updates(w, updates), state), value

                    return step

                def train(self, network, tx, carry, xs):
                    return jax.lax.scan(self.make_step(network, tx, {}), carry, xs)
            """,
            fixed="""
            import jax
            import jax.numpy as jnp
            import optax


            class Trainer:
                def make_loss(self, network, static):
                    def loss(w, x):
                        w = {**static, "w": jnp.tanh(w)}

                        def run(w, x):
                            return network(w, x)

                        return jnp.mean(run(w, x))

                    return loss

                def make_step(self, network, tx, static):
                    loss = self.make_loss(network, static)

                    def step(carry, x):
                        w, state = carry
                        value, gradient = jax.value_and_grad(lambda w: loss(w, x))(w)
                        updates, state = tx.update(gradient, state, w)
                        return (optax.apply_updates(w, updates), state), value

                    return step

                def train(self, network, tx, carry, xs):
                    return jax.lax.scan(self.make_step(network, tx, {}), carry, xs)
            """,
        ),
        Example(
            """
            import dataclasses

            import jax
            import jax.numpy as jnp


            @jax.tree_util.register_dataclass
            @dataclasses.dataclass
            class Output:
                logits: jax.Array
                hidden: jax.Array


            def head(w, h):
                return jnp.sin(h @ w)


            def forward(w, x):
                h = jnp.tanh(x @ w)
                logits = jax.checkpoint(head)(w, h)  # !
                return Output(logits=logits, hidden=h)


            def loss(w, x, y):
                output = forward(w, x)
                return jnp.mean((output.logits - y) ** 2)


            step = jax.jit(jax.value_and_grad(loss))
            """,
            fixed="""
            import dataclasses

            import jax
            import jax.numpy as jnp


            @jax.tree_util.register_dataclass
            @dataclasses.dataclass
            class Output:
                logits: jax.Array
                hidden: jax.Array


            def head(w, h):
                return jnp.sin(h @ w)


            def forward(w, x):
                h = jnp.tanh(x @ w)
                logits = head(w, h)
                return Output(logits=logits, hidden=h)


            def loss(w, x, y):
                output = forward(w, x)
                return jnp.mean((output.logits - y) ** 2)


            step = jax.jit(jax.value_and_grad(loss))
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def head(w, h):
                return jnp.sin(h @ w)


            def forward(w, x):
                h = jnp.tanh(x @ w)
                return {"hidden": h, "logits": jax.checkpoint(head)(w, h)}  # !


            def loss(w, x, y):
                return jnp.mean((forward(w, x)["logits"] - y) ** 2)


            step = jax.jit(jax.value_and_grad(loss))
            """,
            fixed="""
            import jax
            import jax.numpy as jnp


            def head(w, h):
                return jnp.sin(h @ w)


            def forward(w, x):
                h = jnp.tanh(x @ w)
                return {"hidden": h, "logits": head(w, h)}


            def loss(w, x, y):
                return jnp.mean((forward(w, x)["logits"] - y) ** 2)


            step = jax.jit(jax.value_and_grad(loss))
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def loss(trunk, head, w, x):
                h = jax.checkpoint(trunk)(w, x)
                return head(w, h)


            step = jax.grad(loss, argnums=2)
            """
        ),
        Example(
            """
            import jax


            def loss(w, trunk, head, x):
                h = trunk(w, x)
                cp = jax.checkpoint_policies
                return jax.checkpoint(head, policy=cp.dots_saveable)(w, h)


            step = jax.grad(loss)
            """
        ),
        Example(
            """
            import jax


            def stage(w, trunk, head, x):
                h = trunk(w, x)
                return jax.checkpoint(head)(w, h)


            def loss(w, trunk, head, x):
                return head(w, stage(w, trunk, head, x))


            step = jax.grad(loss)
            """
        ),
        Example(
            """
            import jax


            def loss(ws, layer, x):
                for w in ws:
                    x = jax.checkpoint(layer)(w, x)
                return x.sum()


            step = jax.grad(loss)
            """
        ),
        Example(
            """
            import jax


            @jax.checkpoint
            def layer(w, x):
                return jax.numpy.sin(x @ w)


            def loss(w, x):
                h = layer(w, x)
                return layer(w, h).sum()


            step = jax.grad(loss)
            """
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def head(w, h):
                return jnp.sin(h @ w)


            def forward(w, x):
                h = jnp.tanh(x @ w)
                return {"hidden": h, "logits": jax.checkpoint(head)(w, h)}


            def loss(w, x, y):
                return jnp.mean((forward(w, x)["hidden"] - y) ** 2)


            step = jax.jit(jax.value_and_grad(loss))
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def head(w, h):
                return jnp.sin(h @ w)


            def forward(w, x):
                h = jnp.tanh(x @ w)
                return {"hidden": h, "logits": jax.checkpoint(head)(w, h)}


            def loss(w, x, y):
                return jnp.mean((jnp.sin(forward(w, x)["logits"] @ w) - y) ** 2)


            step = jax.jit(jax.value_and_grad(loss))
            """,
        ),
        Example(
            """
            import jax
            import jax.numpy as jnp


            def head(w, h):
                return jnp.sin(h @ w)


            def forward(w, x):
                h = jnp.tanh(x @ w)
                return jax.checkpoint(head)(w, h), h


            def loss(w, x):
                _, hidden = forward(w, x)
                return jnp.mean(hidden)


            step = jax.jit(jax.value_and_grad(loss))
            """,
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            if site.api.loop or not facts.policy(site).saves_nothing:
                continue
            found = _last_stage(facts, site)
            if found is not None:
                function, derivative = found
                name = getattr(function, "name", "the differentiated function")
                yield self.report(
                    facts,
                    site.node,
                    f"{stages.site_text(facts, site)} is the last stage of `{name}`, which is "
                    "differentiated: what it drops is recomputed at once, so the peak stays",
                    fix=remove_checkpoint(facts, site),
                    related=stages.related_place(facts, derivative.node, "differentiated here"),
                )


def _last_stage(facts: Facts, site: Site) -> tuple[FunctionNode, Use] | None:
    """The function whose last stage a site is, and what differentiates it."""
    uses = facts.site_uses(site)
    if len(uses) != 1 or uses[0].kind != "call" or uses[0].through:
        return None  # a function that is called elsewhere too is a stage there
    if site.definition is not None and facts.remote_uses(site.definition):
        return None
    call = uses[0].node
    function = facts.names.function(call)
    if not isinstance(call, ast.Call) or function is None:
        return None
    parts = results.parts(facts, function, call)
    if not parts or not _has_earlier_stage(facts, function, call):
        return None
    derivative = stages.differentiating(facts, function, whole=False, parts=parts)
    return (function, derivative) if derivative is not None else None


def _has_earlier_stage(facts: Facts, function: FunctionNode, call: ast.Call) -> bool:
    """Whether what the call gets was computed in the function: by a call, or by a matmul."""
    for argument in (*call.args, *(k.value for k in call.keywords)):
        if not results.sets_up(facts, argument):
            return True
        for node in ast.walk(argument):
            for binding in facts.names.bindings(node) if isinstance(node, ast.Name) else ():
                made = binding.value if binding.kind == "assign" else None
                if (
                    made is not None
                    and facts.names.function(made) is function
                    and not results.sets_up(facts, made)
                ):
                    return True
    return False
