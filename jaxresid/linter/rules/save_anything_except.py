from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

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
    Never: no version of JAX from 0.7 to 0.12 respects the exception.
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
        Example(
            """
            from functools import partial

            from jax import checkpoint_policies as cp
            from jax import remat as ckpt

            but = cp.save_anything_except_these_names
            make = partial(but, "hidden")  # !


            def run(layer, w, x, names):
                return ckpt(layer, policy=but(*names))(w, x)  # !
            """
        ),
        Example(
            """
            import jax.ad_checkpoint

            TABLE = {
                "but": jax.ad_checkpoint.checkpoint_policies.save_anything_except_these_names("out"),  # !
            }
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
        Example(
            """
            import jax

            factory = jax.checkpoint_policies.save_anything_except_these_names
            NAMES = {"save_anything_except_these_names": factory}
            """
        ),
        Example(
            """
            import jax


            def is_it(policy):
                return policy is jax.checkpoint_policies.save_anything_except_these_names
            """
        ),
        Example(
            """
            def save_anything_except_these_names(*names):
                return names


            policy = save_anything_except_these_names("hidden")
            """
        ),
        Example("""
            def make(cp):
                return cp.save_anything_except_these_names("checkpoint")
            """),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for made in policies.made(facts):
            if made.name == "save_anything_except_these_names":
                what = policies.written(facts, made.call)
                yield self.report(
                    facts, made.call, f"`{what}` saves everything, including the names it excludes"
                )
