from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes.unwrapping import remove_decorator, unwrap
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

_UNWRAPPED = frozenset({"jax", "haiku", "equinox"})


class EverythingSaveablePolicy(Rule):
    """A checkpoint whose policy saves everything.

    ## What it does
    Finds `policy=jax.checkpoint_policies.everything_saveable`, spelled out where the function is
    checkpointed.

    ## Why is this bad?
    The backward pass keeps the same residuals as without the checkpoint, and the optimization
    barrier remains. Around other checkpoints it even undoes what they save.

    ## Use instead
    The function without a checkpoint, or a policy that leaves something to recompute.

    ## When is this fine?
    As one choice of several: in a table, as a default, or in a branch beside other policies; these
    are not reported. Where the barrier itself is wanted.

    ## Is the fix safe?
    No: values stay the same, but without the barrier the compiler may schedule differently.
    """

    code = "JXR205"
    name = "everything-saveable-policy"
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
                not isinstance(node, ast.Attribute)
                or policies.name_of(facts, node) != "everything_saveable"
                or _is_choice(facts, site)
            ):
                continue
            message = (
                f"`{policies.source_text(facts, node)}` keeps the same residuals as no checkpoint"
            )
            yield self.report(facts, node, message, fix=_removal(facts, site))


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
