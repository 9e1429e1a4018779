"""What the command line asks about: a target, and what it is called with, as they were given."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any

from jaxresid.base.option_types import MeshMode, Mode
from jaxresid.cli.options.batches import Sizes


@dataclass(frozen=True, slots=True)
class Request:
    """The options as given; a command without --mode and --on looks at the function itself.

    `on_origin` says who chose the places in `on`; `folder` is the one whose modules a named target
    may name, and `name` its name; `words` are those that were typed for them, for another command.
    """

    target: str
    inputs: str | None
    concrete_inputs: bool
    arg: tuple[str, ...]
    kwarg: tuple[str, ...]
    build: bool
    argnums: tuple[int, ...] | None
    has_aux: bool
    mode: Mode = "loss"
    on: tuple[str, ...] = ()
    on_origin: str = "given with --on"
    memory_fraction: float | None = None
    margin: int | None = None
    mesh: tuple[str, ...] = ()
    mesh_mode: MeshMode | None = None
    batch: Sizes = field(default_factory=Sizes)
    trips: int | None = None
    loss: str | None = None
    optimizer: str | None = None
    method: str | None = None
    init_arg: tuple[str, ...] = ()
    folder: str | None = None
    name: str | None = None
    words: tuple[str, ...] = field(default=(), compare=False)

    @property
    def reference(self) -> str:
        """How a shell's command line names the target: by its name, or by the function."""
        return self.name or shlex.quote(self.target)


@dataclass(frozen=True, slots=True)
class Specs:
    """The SPECs of a request, parsed, with the size of --batch, and the mesh that they may name."""

    args: list[Any]
    kwargs: dict[str, Any]
    init: list[Any]
    axes: dict[str, int] | None
