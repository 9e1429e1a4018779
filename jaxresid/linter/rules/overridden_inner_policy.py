from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Related, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Policy, Site

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_MANY = (*_LOOPS, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class OverriddenInnerPolicy(Rule):
    """The policy of a checkpoint is overridden by the checkpoint around it.

    ## What it does
    Finds a checkpointed function with a policy that is called only in functions that are themselves
    checkpointed, with another policy or none.

    ## Why is this bad?
    The outer checkpoint decides what is kept from the forward pass for the backward pass. What the
    inner policy saves is recomputed with the rest; it has a say in that recomputation only, and
    none at all in the implementation behind `jax_remat3`.

    ## Use instead
    One policy, on the outer checkpoint. A policy over names there reaches the values named inside.

    ## When it is right after all
    Where the recomputation itself is too large, as in a loop of checkpointed layers inside a
    checkpoint: no violation then.
    """

    code = "JXR206"
    name = "overridden-inner-policy"
    severity = "warning"
    why = "The outer checkpoint decides what is kept for the backward pass."
    help = "give the outer checkpoint the policy"
    bad = (
        Example(
            "import jax\nimport jax.numpy as jnp\n\ncp = jax.checkpoint_policies\n\n\n"
            "def layer(w, x):\n    return jnp.sin(x @ w)\n\n\n@jax.checkpoint\n"
            "def block(w, x):\n"
            "    y = jax.checkpoint(layer, policy=cp.dots_saveable)(w, x)  # !\n"
            "    return jnp.cos(y @ w)\n"
        ),
        Example(
            "import functools\n\nimport jax\nimport jax.numpy as jnp\n"
            "from jax import checkpoint as ckpt\n"
            "from jax.ad_checkpoint import checkpoint_name, checkpoint_policies\n\n\n"
            '@functools.partial(ckpt, policy=checkpoint_policies.save_only_these_names("inner"))  # !\n'
            "def layer(w, x):\n"
            '    return jnp.sin(checkpoint_name(jnp.sin(x @ w), "inner"))\n\n\n'
            '@functools.partial(ckpt, policy=checkpoint_policies.save_only_these_names("outer"))\n'
            "def block(w, x):\n"
            '    return jnp.cos(checkpoint_name(jnp.cos(layer(w, x) @ w), "outer"))\n'
        ),
        Example(
            "import jax\nimport jax.numpy as jnp\n\n\ndef loss(w, x):\n"
            "    attend = jax.remat(\n        lambda w, x: jnp.sin(x @ w),\n"
            "        policy=jax.checkpoint_policies.everything_saveable,  # !\n    )\n"
            "    return jnp.cos(attend(w, x) @ w).sum()\n\n\n"
            "block = jax.remat(loss, policy=jax.checkpoint_policies.nothing_saveable)\n"
        ),
    )
    good = (
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\n@jax.checkpoint\n"
            "def block(layer, other, w, x):\n    return other(w, jax.checkpoint(layer)(w, x))\n"
        ),
        Example(
            "import functools\n\nimport jax\n\ncp = jax.checkpoint_policies\n\n\n"
            "@functools.partial(jax.checkpoint, policy=cp.dots_saveable)\n"
            "def block(layer, w, x):\n"
            "    return jax.checkpoint(layer)(w, jax.checkpoint(layer, policy=cp.dots_saveable)(w, x))\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\n@jax.checkpoint\n"
            "def stack(ws, x):\n    for w in ws:\n"
            "        x = jax.checkpoint(jax.numpy.dot, policy=cp.dots_saveable)(x, w)\n"
            "    return x\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\n@jax.checkpoint\n"
            "def stack(layer, ws, x):\n"
            "    step = jax.checkpoint(layer, policy=cp.dots_saveable)\n"
            "    return jax.lax.scan(step, x, ws)[0]\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef layer(w, x):\n"
            "    return jax.numpy.sin(x @ w)\n\n\n"
            "block = jax.checkpoint(layer, policy=cp.dots_saveable)\n\n\n@jax.checkpoint\n"
            "def two(w, x):\n    return block(w, x)\n\n\ndef model(w, x):\n"
            "    return two(w, block(w, x))\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef inner(layer, w, x):\n"
            "    return jax.checkpoint(layer, policy=cp.dots_saveable)(w, x)\n\n\n"
            "def outer(layer, w, x, remat):\n"
            "    wrapped = jax.checkpoint(inner, static_argnums=0) if remat else inner\n"
            "    return wrapped(layer, w, x)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\n"
            "def run(layer, w, x, policy, names):\n    @jax.checkpoint\n    def body(w, x):\n"
            "        y = jax.checkpoint(layer, policy=policy)(w, x)\n"
            "        return jax.checkpoint(layer, policy=cp.save_only_these_names(*names))(w, y)\n\n"
            "    return body(w, x)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef run(layer, w, x, **options):\n"
            "    def body(w, x):\n"
            "        return jax.checkpoint(layer, policy=cp.dots_saveable)(w, x)\n\n"
            "    return jax.checkpoint(body, **options)(w, x)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\n@jax.checkpoint\n"
            "def block(layer, w, x):\n"
            "    return jax.checkpoint(layer, policy=cp.nothing_saveable)(w, x)\n"
        ),
        Example(
            "import functools\n\nimport jax\n\ncp = jax.checkpoint_policies\n\n\n"
            "@functools.partial(jax.checkpoint, policy=cp.dots_saveable)\n"
            "def block(layer, w, x):\n    x = jax.checkpoint(layer, policy=None)(w, x)\n"
            "    return jax.checkpoint(layer, policy=cp.nothing_saveable)(w, x)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\n@jax.checkpoint\n"
            "def stack(layer, ws, x):\n"
            "    step = jax.checkpoint(layer, policy=cp.dots_saveable)\n    for w in ws:\n"
            "        x = step(w, x)\n    return x\n"
        ),
        Example(
            "import orbax.checkpoint as ocp\n\nimport jax\n\n\n@ocp.checkpoint\n"
            "def block(layer, w, x):\n"
            "    return jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)(w, x)\n"
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            policy = facts.policy(site)
            mine = _literal(policy)
            node = policy.node
            if mine is None or policy.saves_nothing or node is None or facts.is_class(site):
                continue
            outer = _overriding(facts, site, mine)
            if outer is not None:
                around = Related(
                    "checkpointed here as well", facts.source.path, facts.source.span(outer.node)
                )
                yield self.report(
                    facts,
                    node,
                    f"`{policies.written(facts, node)}` has no say in what is kept for the backward pass: "
                    "the checkpoint around this one decides",
                    related=(around,),
                )


def _literal(policy: Policy) -> str | None:
    """What identifies a policy; None where it is computed."""
    match policy.kind:
        case "none":
            return "nothing_saveable"
        case "plain":
            return policy.name
        case "factory" if policy.call is not None and policy.name is not None:
            values = [*policy.call.args, *(k.value for k in policy.call.keywords)]
            if all(isinstance(v, ast.Constant) for v in values):
                return f"{policy.name} {' '.join(sorted(ast.dump(v) for v in values))}"
    return None


def _overriding(facts: Facts, site: Site, mine: str) -> Site | None:
    """The checkpoint around every visible call of a checkpointed function, with another policy."""
    uses = facts.site_uses(site)
    definition = site.definition
    if definition is not None and facts.remote_uses(definition):
        return None
    found = None
    for use in uses:
        function = facts.names.function(use.node) if use.kind == "call" else None
        outer = _checkpoint_of(facts, function) if function is not None else None
        if outer is None or _in_python_loop(facts, use.node) or _in_python_loop(facts, site.node):
            return None
        theirs = _literal(facts.policy(outer))
        if theirs is None or theirs == mine:
            return None
        found = outer
    return found


def _checkpoint_of(facts: Facts, function: FunctionNode) -> Site | None:
    """The checkpoint that every visible use of a function goes through."""
    for decorator in getattr(function, "decorator_list", ()):
        site = facts.site_of(decorator)
        if site is not None:
            return site
    uses = facts.uses(function)
    if not isinstance(function, ast.Lambda) and facts.remote_uses(function):
        return None
    sites = {facts.site_of(u.node) if u.kind == "checkpoint" else None for u in uses}
    return sites.pop() if len(sites) == 1 else None


def _in_python_loop(facts: Facts, node: ast.AST) -> bool:
    function = facts.names.function(node)
    for parent in facts.names.ancestors(node):
        if parent is function:
            return False
        if isinstance(parent, _MANY):
            return True
    return False
