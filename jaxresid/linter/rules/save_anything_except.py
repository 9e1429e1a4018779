from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class SaveAnythingExcept(Rule):
    """A policy meant to save everything except some names saves those too.

    ## What it does
    Finds calls of `save_anything_except_these_names`.

    ## Why is this bad?
    The value is saved before it gets its name, so the exception changes nothing: the policy keeps
    what `everything_saveable` keeps, and what is kept without a checkpoint. Since jax 0.10.2 the
    names are not even read.

    ## Use instead
    `save_only_these_names` with the names that should be saved, or
    `save_any_names_but_these`, which saves named values only.

    ## When is this fine?
    Where there are no names: the rule is silent in the `else` of `if names:`. No version of JAX
    from 0.7 to 0.12 respects the exception.
    """

    code = "JXR208"
    name = "save-anything-except"
    severity = "error"
    why = "A value is saved before it gets its name, so it keeps what everything_saveable keeps."
    help = "name what to save: save_only_these_names, or save_any_names_but_these"
    bad = (
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @functools.partial(
                jax.checkpoint,
                policy=jax.checkpoint_policies.save_anything_except_these_names("hidden"),  # !
            )
            def block(w, x):
                return jnp.cos(checkpoint_name(jnp.sin(x @ w), "hidden")).sum()
            """
        ),
    )
    good = (
        Example(
            """
            import jax

            policy = jax.checkpoint_policies.save_any_names_but_these("hidden")
            """
        ),
        Example("""
            import jax

            policy = jax.checkpoint_policies.save_only_these_names("hidden")
            """),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for made in policies.factory_calls(facts):
            if made.name == "save_anything_except_these_names" and not _is_empty(facts, made.call):
                what = policies.source_text(facts, made.call)
                yield self.report(
                    facts, made.call, f"`{what}` saves everything, including the names it excludes"
                )


def _is_empty(facts: Facts, call: ast.Call) -> bool:
    """Whether the names are a list that a test has found empty: `else` of `if len(names) > 0`."""
    match call.args:
        case [ast.Starred(value=ast.Name(id=names))]:
            pass
        case _:
            return False
    full = {names, *(f"len({names}){more}" for more in ("", " > 0", " >= 1", " != 0"))}
    child: ast.AST = call
    for parent in facts.names.ancestors(call):
        if isinstance(parent, ast.If) and child in parent.orelse:
            inside = [n for statement in parent.orelse for n in ast.walk(statement)]
            changed = any(
                isinstance(n, ast.Name)
                and n.id == names
                and not isinstance(facts.names.parents[n], ast.Starred)
                for n in inside
            )
            if ast.unparse(parent.test) in full and not changed:
                return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        child = parent
    return False
