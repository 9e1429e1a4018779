from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.fixes.unwrapping import remove_decorator, unwrap
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Policy, Site

_UNWRAPPED = frozenset({"jax", "haiku", "equinox"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_MANY = (*_LOOPS, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class IneffectivePolicy(Rule):
    """A policy under which a checkpoint drops nothing, or which another checkpoint overrides.

    ## What it does
    Finds `policy=jax.checkpoint_policies.everything_saveable`, spelled out where the function is
    checkpointed, and a checkpointed function with a policy that is called only in functions that
    are themselves checkpointed, with another policy or none.

    ## Why is this bad?
    With `everything_saveable` the backward pass keeps the same residuals as without the checkpoint,
    and the optimization barrier remains. Around other checkpoints it even undoes what they save.

    Of two checkpoints the outer one decides what is kept from the forward pass for the backward
    pass. What the inner policy saves is recomputed with the rest; it affects only that
    recomputation, and nothing at all in the implementation behind `jax_remat3`.

    ## Use instead
    A policy that leaves something to recompute, or no checkpoint; of two checkpoints one policy, on
    the outer one. A policy over names there reaches the values named inside.

    ## When is this fine?
    Where `everything_saveable` is one choice of several: in a table, as a default, or in a branch
    beside other policies; and where the recomputation itself is too large, as in a loop of
    checkpointed layers inside a checkpoint. These are not reported. Where the barrier itself is
    wanted.

    ## Is the fix safe?
    No: values stay the same, but without the barrier the compiler may schedule differently.
    """

    code = "JXR205"
    name = "ineffective-policy"
    severity = "warning"
    lenient_in_tests = True
    why = "It keeps the same residuals as no checkpoint, and adds an optimization barrier."
    help = "remove the checkpoint, or choose a policy that leaves something to recompute"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax


            def block(w, x):
                return jax.numpy.sin(jax.numpy.cos(x @ w))


            def run(w, x):
                return jax.checkpoint(block, policy=jax.checkpoint_policies.everything_saveable)(w, x)  # !
            """,
            fixed="""
            import jax


            def block(w, x):
                return jax.numpy.sin(jax.numpy.cos(x @ w))


            def run(w, x):
                return block(w, x)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def run(layer, w, x):
                return jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)(w, x)
            """
        ),
        Example(
            """
            import jax

            TABLE = {
                "all": jax.checkpoint_policies.everything_saveable,
                "none": jax.checkpoint_policies.nothing_saveable,
            }


            def run(layer, w, x, name):
                return jax.checkpoint(layer, policy=TABLE[name])(w, x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            node = site.keyword("policy")
            if (
                isinstance(node, ast.Attribute)
                and policies.name_of(facts, node) == "everything_saveable"
                and not _is_choice(facts, site)
            ):
                what = policies.source_text(facts, node)
                message = f"`{what}` keeps the same residuals as no checkpoint"
                yield self.report(facts, node, message, fix=_removal(facts, site))
            else:
                yield from self._overridden(facts, site)

    def _overridden(self, facts: Facts, site: Site) -> Iterator[Violation]:
        policy = facts.policy(site)
        mine = _literal(policy)
        node = policy.node
        if mine is None or policy.saves_nothing or node is None or facts.is_class(site):
            return
        outer = _overriding(facts, site, mine)
        if outer is not None:
            yield self.report(
                facts,
                node,
                f"`{policies.source_text(facts, node)}` does not affect what is kept for the "
                "backward pass: the checkpoint around this one decides",
                related=stages.related_place(facts, outer.node, "checkpointed here as well"),
                why="The outer checkpoint decides what is kept for the backward pass.",
                help="give the outer checkpoint the policy",
            )


def _is_choice(facts: Facts, site: Site) -> bool:
    """Whether it is one branch, and the function checkpoints differently in another."""
    names = facts.names
    function = names.function(site.node)
    conditional = any(
        isinstance(parent, (ast.If, ast.Match, ast.IfExp)) and names.function(parent) is function
        for parent in names.ancestors(site.node)
    )
    return conditional and any(
        other is not site and names.function(other.node) is function for other in facts.sites
    )


def _removal(facts: Facts, site: Site) -> Fix | None:
    if site.api.library not in _UNWRAPPED:
        return None  # a module that is not wrapped has another name, or another type
    title = "Remove the checkpoint"
    if isinstance(site.definition, ast.FunctionDef):
        edit = remove_decorator(facts, site.node)
        return Fix(title, (edit,), "unsafe") if edit is not None else None
    if isinstance(site.node, ast.Call) and len(site.node.args) == 1 and site.target is not None:
        edit = unwrap(facts, site.node, site.target)
        return Fix(title, (edit,), "unsafe") if edit is not None else None
    return None


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
