"""The facts of one module that rules ask for.

A *site* is one use of the checkpoint family. The *uses* of a value (a function, a checkpointed
function, a gradient function) are the places it reaches. The *context* of a place is the context
that its code runs in.

`Facts` has the sites, policies, names and loops of its module (`sites`), and asks other parts:
`facts.names` what a name refers to, `facts.callees` what a callee is (`callees`), `facts.flows`
where a value goes (`uses`), `facts.contexts` under what code runs (`context`).
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from jaxresid.linter.resolve.callees import CallArguments, Callees, Role
from jaxresid.linter.resolve.context import Callers, Context, Contexts
from jaxresid.linter.resolve.names import Definition, External, Names, Origin
from jaxresid.linter.resolve.sites import Loop, Named, Policy, Site, Sites
from jaxresid.linter.resolve.uses import Flows, Use

__all__ = [
    "CallArguments",
    "Context",
    "Facts",
    "Loop",
    "Named",
    "Policy",
    "Role",
    "Site",
    "Use",
]

if TYPE_CHECKING:
    from jaxresid.linter.text.source import SourceText


_T = TypeVar("_T")


class OtherModules(Callers, Protocol):
    """The other modules of the project, as rules ask for them: `project.Project`."""

    @property
    def complete(self) -> bool:
        """Return whether every file is known and parses, as far as it mentions names."""

    def of_naming(self, make: Callable[[Facts], _T]) -> tuple[_T, ...]:
        """Return what a function makes of each module that mentions `checkpoint_name`."""

    def of_policies(self, make: Callable[[Facts], _T]) -> tuple[_T, ...]:
        """Return what a function makes of each module that mentions a policy over names."""

    def strings(self, value: str) -> int:
        """Return how many times a string occurs as a literal in the modules."""

    def definition(
        self, qualname: str, importer: Path | None = None
    ) -> tuple[Facts, Definition] | None:
        """Return what a name of another module is there, with the facts of that module."""


class Facts(Sites):
    """Everything that one module shows about its checkpoints.

    Args:
      module: its dotted name; "" where it is not known.
      project: answers for other modules; None where only this file is known.
      target_jax: the jax that the code is written for; None for the newest.
      names: the names of the tree, where they are known.
      remote: whether the module is looked at only to answer a question of another; it then asks no
        further itself.
    """

    def __init__(
        self,
        source: SourceText,
        tree: ast.Module,
        *,
        module: str = "",
        is_package: bool = False,
        project: OtherModules | None = None,
        target_jax: tuple[int, int] | None = None,
        path: Path | None = None,
        names: Names | None = None,
        remote: bool = False,
    ) -> None:
        names = names or Names(tree, module, is_package)
        super().__init__(source, names, Callees(names, project, path))
        self.path = path
        self.remote = remote
        self.project = project
        self.target_jax = target_jax
        own = weakref.proxy(self)  # without a cycle trees go at once, not when Python looks for one
        self.flows = Flows(own)
        self.contexts = Contexts(own, self.flows, project, path, remote=remote)

    def jax_is(self, at_least: tuple[int, int], below: tuple[int, int] | None = None) -> bool:
        """Return whether the targeted jax is in a range of versions; no target means the newest."""
        target = self.target_jax or (999, 0)
        return at_least <= target and (below is None or target < below)

    def definition(self, origin: Origin) -> tuple[Facts, Definition] | None:
        """Return the function or class that an origin is, with the facts of its module.

        It is looked up in the other modules of the project where it is imported from one. None is
        returned for what is defined several times, or not in the project.
        """
        if isinstance(origin, Definition):
            return self, origin
        if not isinstance(origin, External) or self.project is None or self.remote:
            return None
        return self.project.definition(origin.qualname, self.path)
