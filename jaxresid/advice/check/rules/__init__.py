"""Define the rules that need a trace, one in each module.

The linter's index holds their codes.
"""

from __future__ import annotations

import importlib
from functools import cache

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rules import TRACED


@cache
def traced_rule(name: str) -> type[TracedRule]:
    """Return the traced rule with a given name.

    Raises:
      ImportError: Its module is missing or cannot be imported.
      AttributeError: Its module lacks the class.
    """
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    rule: type[TracedRule] = getattr(module, "".join(w.capitalize() for w in name.split("-")))
    return rule


def traced_rules() -> tuple[type[TracedRule], ...]:
    """Return every traced rule, in the order of their codes."""
    return tuple(traced_rule(entry.name) for entry in TRACED)
