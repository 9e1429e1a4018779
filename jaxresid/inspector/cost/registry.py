"""Register the functions that count the cost of each primitive."""

from __future__ import annotations

from collections.abc import Callable

from jaxresid.jax_compat.jaxpr_types import Eqn
from jaxresid.results import Cost

Rule = Callable[[Eqn], Cost]


class Rules(dict[str, Rule]):
    """Rules by primitive name; call it with names to register a function for them."""

    def __call__(self, *names: str) -> Callable[[Rule], Rule]:
        """Return a decorator that registers a function as the rule for these primitives."""

        def register(function: Rule) -> Rule:
            self.update(dict.fromkeys(names, function))
            return function

        return register
