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
    A string is taken as the list of its letters. Values named `h`, `i`, `d` match, `hidden` does
    not, and there is no warning.

    ## Use instead
    A list of one name: `names_which_can_be_offloaded=["hidden"]`.

    ## When is this fine?
    A string of one letter is the list of that letter, so it is left alone.

    ## Is the fix safe?
    No: the name begins to match, so the value is saved or offloaded. None is offered where the
    string may hold several names.
    """

    code = "JXR204"
    name = "names-as-string"
    severity = "error"
    why = "A string is taken as the list of its letters, and the name itself does not match."
    help = "put it in a list"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax

            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved="hidden",  # !
                names_which_can_be_offloaded=[],
                offload_src="device",
                offload_dst="pinned_host",
            )
            """,
            fixed="""
            import jax

            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=["hidden"],
                names_which_can_be_offloaded=[],
                offload_src="device",
                offload_dst="pinned_host",
            )
            """,
        ),
    )
    good = (
        Example(
            """
            import jax

            policy = jax.checkpoint_policies.save_and_offload_only_these_names(
                names_which_can_be_saved=["hidden"],
                names_which_can_be_offloaded=("out",),
                offload_src="device",
                offload_dst="pinned_host",
            )
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for made in policies.factory_calls(facts):
            if made.name != "save_and_offload_only_these_names":
                continue
            for keyword in _LISTS:
                node = made.keyword(keyword)
                value = facts.names.constant(node) if node is not None else None
                if node is None or not isinstance(value, str) or len(value) < 2:
                    continue
                what = policies.source_text(facts, node)
                message = (
                    f"`{keyword}` gets the string `{what}`, which counts as a list of its letters"
                )
                yield self.report(facts, node, message, fix=_in_list(facts, node, value))


def _in_list(facts: Facts, node: ast.expr, value: str) -> Fix | None:
    if re.search(r"[\s,;|]", value):
        return None
    text = facts.source.segment(facts.source.span(node))
    return Fix("Put it in a list", (edits.replace(facts.source, node, f"[{text}]"),), "unsafe")
