"""Which function costs which primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxresid.model import Cost

Rule = Callable[[Any], Cost]


class Rules(dict[str, Rule]):
    """Rules by primitive name; calling it with names registers a function for them."""

    def __call__(self, *names: str) -> Callable[[Rule], Rule]:
        def register(function: Rule) -> Rule:
            self.update(dict.fromkeys(names, function))
            return function

        return register
