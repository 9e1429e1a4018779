"""The rules, one module each, found by listing this package.

A module that cannot be imported, or that holds no rule, fails the run: a rule that is silently
missing would look like clean code.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from jaxresid.linter.rule import Rule


@cache
def all_rules() -> tuple[type[Rule], ...]:
    """Every rule, by code.

    Raises:
      ImportError, TypeError: a module of this package is broken.
    """
    found: list[type[Rule]] = []
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        rules = [
            v
            for v in vars(loaded).values()
            if isinstance(v, type) and issubclass(v, Rule) and v.__module__ == loaded.__name__
        ]
        if not rules:
            raise TypeError(f"{loaded.__name__} defines no rule")
        found += rules
    return tuple(sorted(found, key=lambda r: r.code))
