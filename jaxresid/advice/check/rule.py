"""Define the base of the rules that need a trace, and so have no finder in the linter."""

from __future__ import annotations

from jaxresid.linter.rule import Documented
from jaxresid.linter.rules import TRACED

_ENTRIES = {entry.name: entry for entry in TRACED}


class TracedRule(Documented):
    """Base of the rules that `jaxresid check` alone finds.

    A finding of `jaxresid.inspector` with the rule's name is a case of the rule. In the examples
    the function to check is `loss`, and `loss_inputs` makes its inputs. The rule's name is that of
    its module; its code and its severity are those of the linter's table.
    """

    traced = True

    def __init_subclass__(cls) -> None:
        entry = _ENTRIES[cls.__module__.rpartition(".")[2].replace("_", "-")]
        cls.name, cls.code = entry.name, entry.code
        cls.severity = entry.severity  # type: ignore[assignment]

    @classmethod
    def is_default(cls) -> bool:
        """Return True: a finding of `check` comes with its figures, so infos are shown too."""
        return True
