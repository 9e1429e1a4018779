from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
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
    The backward pass keeps the residuals that it keeps without the checkpoint, and the optimization
    barrier remains. Around other checkpoints it even cancels what they save.

    ## Use instead
    The function without a checkpoint, or a policy that leaves something to recompute.

    ## When it is right after all
    As one choice of several: in a table, as a default, or in a branch beside other policies, where
    there is no violation. Where the barrier itself is wanted.

    ## Is the fix safe?
    No: values stay the same, but without the barrier the compiler may schedule differently.
    """

    code = "JXR205"
    name = "everything-saveable-policy"
    severity = "warning"
    lenient_in_tests = True
    why = "It keeps what would be kept without a checkpoint, and adds an optimization barrier."
    help = "remove the checkpoint, or choose a policy that leaves something to recompute"
    fixes = "unsafe"
    bad = (
        Example(
            "import jax\n\n\ndef block(w, x):\n"
            "    return jax.numpy.sin(jax.numpy.cos(x @ w))\n\n\ndef run(w, x):\n"
            "    return jax.checkpoint(block, policy=jax.checkpoint_policies.everything_saveable)(w, x)  # !\n",
            fixed="import jax\n\n\ndef block(w, x):\n"
            "    return jax.numpy.sin(jax.numpy.cos(x @ w))\n\n\ndef run(w, x):\n"
            "    return block(w, x)\n",
        ),
        Example(
            "import functools\n\nimport jax\nfrom jax import checkpoint_policies as cp\n\n\n"
            "@functools.partial(jax.remat, policy=cp.everything_saveable, prevent_cse=False)  # !\n"
            "def block(w, x):\n    return jax.numpy.sin(x @ w)\n",
            fixed="import functools\n\nimport jax\nfrom jax import checkpoint_policies as cp\n\n\n"
            "def block(w, x):\n    return jax.numpy.sin(x @ w)\n",
        ),
        Example(
            "import flax.linen as nn\nfrom jax.ad_checkpoint import checkpoint_policies\n\n\n"
            "class Stack(nn.Module):\n    @nn.compact\n    def __call__(self, x):\n"
            "        dense = nn.remat(\n            nn.Dense,\n"
            "            policy=checkpoint_policies.everything_saveable,  # !\n        )\n"
            '        return dense(8, name="dense")(x)\n'
        ),
    )
    good = (
        Example(
            'import jax\n\nTABLE = {\n    "all": jax.checkpoint_policies.everything_saveable,\n'
            '    "none": jax.checkpoint_policies.nothing_saveable,\n}\n\n\n'
            "def run(layer, w, x, name):\n"
            "    return jax.checkpoint(layer, policy=TABLE[name])(w, x)\n"
        ),
        Example(
            "import jax\n\n\n"
            "def run(layer, w, x, policy=jax.checkpoint_policies.everything_saveable):\n"
            "    return jax.checkpoint(layer, policy=policy)(w, x)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef run(layer, w, x, save):\n"
            "    policy = cp.everything_saveable if save else cp.nothing_saveable\n"
            "    x = jax.checkpoint(layer, policy=policy)(w, x)\n"
            "    return jax.checkpoint(layer, policy=cp.everything_saveable if save else None)(w, x)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef wrap(layer, config):\n"
            '    if config.remat == "full":\n'
            "        return jax.checkpoint(layer, policy=cp.nothing_saveable)\n"
            '    elif config.remat == "none":\n'
            "        return jax.checkpoint(layer, policy=cp.everything_saveable)\n"
            "    return layer\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef wrap(layer, save):\n"
            "    if save:\n"
            "        return jax.checkpoint(layer, policy=cp.everything_saveable)\n"
            "    return jax.checkpoint(layer)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef wrap(layer, policy):\n"
            "    if policy is cp.everything_saveable:\n        return layer\n"
            "    return jax.checkpoint(layer, policy=policy)\n"
        ),
        Example(
            "import jax\n\nPOLICY = jax.checkpoint_policies.everything_saveable\n\n\n"
            "def run(layer, w, x):\n    return jax.checkpoint(layer, policy=POLICY)(w, x)\n"
        ),
        Example(
            "import jax\n\n\ndef run(layer, w, x):\n"
            "    return jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)(w, x)\n"
        ),
        Example(
            "from remat import RematSpec\n\nimport jax\n\n"
            "spec = RematSpec(policy=jax.checkpoint_policies.everything_saveable)\n"
        ),
        Example(
            "from torch.utils.checkpoint import checkpoint\n\nfrom policies import cp\n\n\n"
            "def run(layer, x):\n"
            "    return checkpoint(layer, policy=cp.everything_saveable)(x)\n"
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
            message = f"`{policies.written(facts, node)}` keeps what is kept without the checkpoint"
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
        edit = edits.remove_decorator(facts, site.node)
        return Fix(title, (edit,), "unsafe") if edit is not None else None
    if isinstance(site.node, ast.Call) and len(site.node.args) == 1 and site.target is not None:
        return Fix(title, (edits.unwrap(facts, site.node, site.target),), "unsafe")
    return None
