"""The arrays that go into a program and that come out of it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.report.peak import LiveKind
from jaxresid.results.values import Aval


@dataclass(frozen=True, slots=True, repr=False)
class ProgramArray(Shown):
    """An argument or an output of a program that takes no gradient.

    Attributes:
      path: its path in the arguments, or in what is returned: `cache['k']`, `[1]['k']`. That of
        all that is returned is '', and so is that of a constant.
      aval: its shape, dtype and memory.
      kind: of an argument `state` where it is returned updated, else `argument` or `constant`; of
        an output `state` where it takes over a donated argument, else `output`.
      is_donated: whether an argument is given away.
      counterpart: of an argument that is returned updated the path of its next value, and of that
        the path of the argument; None for all others.
    """

    path: str
    aval: Aval
    kind: LiveKind
    is_donated: bool = False
    counterpart: str | None = None

    @property
    def nbytes(self) -> int:
        """Its bytes, as in `Aval.nbytes`."""
        return self.aval.nbytes
