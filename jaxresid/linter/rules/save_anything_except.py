from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class SaveAnythingExcept(Rule):
    """The policy that should save anything except some names saves these as well.

    ## What it does
    Finds calls of `save_anything_except_these_names`.

    ## Why is this bad?
    The value is saved before it gets its name, so the exception changes nothing: what is kept is
    what `everything_saveable` keeps, and what is kept without a checkpoint. Since jax 0.10.2 the
    names are not even looked at.

    ## Use instead
    `save_only_these_names` with the names that are worth their memory, or
    `save_any_names_but_these`, which saves named values only.

    ## When it is right after all
    No version of JAX from 0.7 to 0.12 makes an exception.
    """

    code = "JXR208"
    name = "save-anything-except"
    severity = "error"
    why = "A value is saved before it gets its name, so it keeps what everything_saveable keeps."
    help = "name what to save: save_only_these_names, or save_any_names_but_these"
    bad = (
        Example(
            "import functools\n\nimport jax\nimport jax.numpy as jnp\n"
            "from jax.ad_checkpoint import checkpoint_name\n\n\n@functools.partial(\n"
            "    jax.checkpoint,\n"
            '    policy=jax.checkpoint_policies.save_anything_except_these_names("hidden"),  # !\n'
            ")\ndef block(w, x):\n"
            '    return jnp.cos(checkpoint_name(jnp.sin(x @ w), "hidden")).sum()\n'
        ),
        Example(
            "from functools import partial\n\nfrom jax import checkpoint_policies as cp\n"
            "from jax import remat as ckpt\n\nbut = cp.save_anything_except_these_names\n"
            'make = partial(but, "hidden")  # !\n\n\ndef run(layer, w, x, names):\n'
            "    return ckpt(layer, policy=but(*names))(w, x)  # !\n"
        ),
        Example(
            "import jax.ad_checkpoint\n\nTABLE = {\n"
            '    "but": jax.ad_checkpoint.checkpoint_policies.save_anything_except_these_names("out"),  # !\n'
            "}\n"
        ),
    )
    good = (
        Example(
            'import jax\n\npolicy = jax.checkpoint_policies.save_any_names_but_these("hidden")\n'
        ),
        Example('import jax\n\npolicy = jax.checkpoint_policies.save_only_these_names("hidden")\n'),
        Example(
            "import jax\n\nfactory = jax.checkpoint_policies.save_anything_except_these_names\n"
            'NAMES = {"save_anything_except_these_names": factory}\n'
        ),
        Example(
            "import jax\n\n\ndef is_it(policy):\n"
            "    return policy is jax.checkpoint_policies.save_anything_except_these_names\n"
        ),
        Example(
            "def save_anything_except_these_names(*names):\n    return names\n\n\n"
            'policy = save_anything_except_these_names("hidden")\n'
        ),
        Example('def make(cp):\n    return cp.save_anything_except_these_names("checkpoint")\n'),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for made in policies.made(facts):
            if made.name == "save_anything_except_these_names":
                what = policies.written(facts, made.call)
                yield self.report(
                    facts, made.call, f"`{what}` saves everything, what it excepts included"
                )
