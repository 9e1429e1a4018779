"""The rules that only a trace can tell, one module each; their codes are in the linter's index."""

from __future__ import annotations

import importlib
from functools import cache

from jaxresid.advice.check.rule import TracedRule
from jaxresid.linter.rules import TRACED


@cache
def traced_rule(name: str) -> type[TracedRule]:
    """The rule of a name.

    Raises:
      ImportError, AttributeError: its module is broken.
    """
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    found: type[TracedRule] = getattr(module, "".join(w.capitalize() for w in name.split("-")))
    return found


def traced_rules() -> tuple[type[TracedRule], ...]:
    """Every one, by code."""
    return tuple(traced_rule(entry.name) for entry in TRACED)
