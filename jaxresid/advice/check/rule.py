"""What only a trace can tell, as rules that have no finder in the linter."""

from __future__ import annotations

from jaxresid.linter.rule import Documented


class TracedRule(Documented):
    """Base of the rules that `jaxresid check` alone finds.

    A finding of `jaxresid.inspector` with the rule's name is a case of it. In the examples the
    function to check is `loss`, and `loss_inputs` makes its inputs.
    """

    traced = True

    @classmethod
    def is_default(cls) -> bool:
        """Always: a finding of `check` comes with its figures, infos too."""
        return True
