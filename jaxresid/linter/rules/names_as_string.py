from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_LISTS = ("names_which_can_be_saved", "names_which_can_be_offloaded")


class NamesAsString(Rule):
    """A string is given where a list of names is expected.

    ## What it does
    Finds `names_which_can_be_saved="hidden"` and `names_which_can_be_offloaded="hidden"`.

    ## Why is this bad?
    A string is taken for the list of its letters. Values named `h`, `i`, `d` match, `hidden` does
    not, and nobody says so.

    ## Use instead
    A list of one name: `names_which_can_be_offloaded=["hidden"]`.

    ## When it is right after all
    A string of one letter is the list of that letter, so it is left alone.

    ## Is the fix safe?
    No: the name begins to match, so the value is saved or offloaded. None is offered where the
    string may hold several names.
    """

    code = "JXR204"
    name = "names-as-string"
    severity = "error"
    why = "A string is taken for the list of its letters, and nothing of the name itself matches."
    help = "put it in a list"
    fixes = "unsafe"
    bad = (
        Example(
            "import jax\n\n"
            "policy = jax.checkpoint_policies.save_and_offload_only_these_names(\n"
            '    names_which_can_be_saved="hidden",  # !\n'
            '    names_which_can_be_offloaded=[],\n    offload_src="device",\n'
            '    offload_dst="pinned_host",\n)\n',
            fixed="import jax\n\n"
            "policy = jax.checkpoint_policies.save_and_offload_only_these_names(\n"
            '    names_which_can_be_saved=["hidden"],\n    names_which_can_be_offloaded=[],\n'
            '    offload_src="device",\n    offload_dst="pinned_host",\n)\n',
        ),
        Example(
            "from functools import partial\n\n"
            'from jax.ad_checkpoint import checkpoint_policies as cp\n\nNAME = "hidden"\n'
            "offload = cp.save_and_offload_only_these_names\nmake = partial(\n    offload,\n"
            '    names_which_can_be_saved=[],\n    offload_src="device",\n)\n'
            "policy = offload(\n    names_which_can_be_saved=[],\n"
            '    names_which_can_be_offloaded=NAME,  # !\n    offload_src="device",\n'
            '    offload_dst="pinned_host",\n)\n',
            fixed="from functools import partial\n\n"
            'from jax.ad_checkpoint import checkpoint_policies as cp\n\nNAME = "hidden"\n'
            "offload = cp.save_and_offload_only_these_names\nmake = partial(\n    offload,\n"
            '    names_which_can_be_saved=[],\n    offload_src="device",\n)\n'
            "policy = offload(\n    names_which_can_be_saved=[],\n"
            '    names_which_can_be_offloaded=[NAME],\n    offload_src="device",\n'
            '    offload_dst="pinned_host",\n)\n',
        ),
        Example(
            "import functools\n\nimport jax\n\nmake = functools.partial(\n"
            "    jax.checkpoint_policies.save_and_offload_only_these_names,\n"
            '    names_which_can_be_saved="attn, mlp",  # !\n)\n'
        ),
    )
    good = (
        Example(
            "import jax\n\n"
            "policy = jax.checkpoint_policies.save_and_offload_only_these_names(\n"
            '    names_which_can_be_saved=["hidden"],\n'
            '    names_which_can_be_offloaded=("out",),\n    offload_src="device",\n'
            '    offload_dst="pinned_host",\n)\n'
        ),
        Example(
            "import jax\n\n\ndef kept(saved, config):\n"
            "    return jax.checkpoint_policies.save_and_offload_only_these_names(\n"
            "        names_which_can_be_saved=saved,\n"
            "        names_which_can_be_offloaded=config.offloaded,\n"
            '        offload_src="device",\n        offload_dst="pinned_host",\n    )\n'
        ),
        Example(
            'import jax\n\nNAMES = "attn mlp".split()\n'
            "policy = jax.checkpoint_policies.save_and_offload_only_these_names(\n"
            "    names_which_can_be_saved=NAMES,\n    names_which_can_be_offloaded=list(),\n"
            '    offload_src="device",\n    offload_dst="pinned_host",\n)\n'
        ),
        Example(
            "import jax\n\n"
            "policy = jax.checkpoint_policies.save_and_offload_only_these_names(\n"
            '    names_which_can_be_saved="h",\n    names_which_can_be_offloaded="",\n'
            '    offload_src="device",\n    offload_dst="pinned_host",\n)\n'
        ),
        Example('import jax\n\npolicy = jax.checkpoint_policies.save_only_these_names("hidden")\n'),
        Example(
            "def save_and_offload_only_these_names(names_which_can_be_saved):\n"
            "    return names_which_can_be_saved\n\n\n"
            'policy = save_and_offload_only_these_names(names_which_can_be_saved="hidden")\n'
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for made in policies.made(facts):
            if made.name != "save_and_offload_only_these_names":
                continue
            for keyword in _LISTS:
                node = made.keyword(keyword)
                value = facts.names.constant(node) if node is not None else None
                if node is None or not isinstance(value, str) or len(value) < 2:
                    continue
                what = policies.written(facts, node)
                message = f"`{keyword}` gets the string `{what}`, which counts as its letters"
                yield self.report(facts, node, message, fix=_in_list(facts, node, value))


def _in_list(facts: Facts, node: ast.expr, value: str) -> Fix | None:
    if re.search(r"[\s,;|]", value):
        return None
    text = facts.source.segment(facts.source.span(node))
    return Fix("Put it in a list", (edits.replace(facts.source, node, f"[{text}]"),), "unsafe")
