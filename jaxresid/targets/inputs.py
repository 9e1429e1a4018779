"""The arguments of one call, as a user passes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxresid.base.text.short_repr import Shown


@dataclass(frozen=True, slots=True, repr=False)
class Inputs(Shown):
    """Positional and keyword arguments of the target; an `--inputs` function may return this.

    Attributes:
      args: the positional arguments.
      kwargs: the keyword arguments.
    """

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
