"""Define the base of the rules that need a trace, and so have no finder in the linter."""

from __future__ import annotations

from jaxresid.linter.rule import Documented


class TracedRule(Documented):
    """Base of the rules that `jaxresid check` alone finds.

    A finding of `jaxresid.inspector` with the rule's name is a case of the rule. In the examples
    the function to check is `loss`, and `loss_inputs` makes its inputs.
    """

    traced = True

    @classmethod
    def is_default(cls) -> bool:
        """Return True: a finding of `check` comes with its figures, so infos are shown too."""
        return True
