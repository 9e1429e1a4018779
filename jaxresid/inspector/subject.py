"""Hold what was traced, and what was found out about it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.errors import InputsError
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.memory import profile as storage
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.step import step_program
from jaxresid.inspector.trace import meshes
from jaxresid.inspector.trace.function import Trace
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.model import (
    JaxInfo,
    Mesh,
    Report,
    Target,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A function as it was traced: what a report is made of, and its variants.

    Attributes:
      fun: the function.
      name: what it is called in a report.
      trace: its trace, as a function or as a training step.
      frames: reads the tracebacks of its eqns.
      profile: the profile of the compiler that its peak is estimated for.
      warnings: what is to be said of it.
      is_dead: whether it is a training step that does nothing with its gradients; it has no
        backward pass then, and nothing is said of what it takes or of its checkpoints.
      assumes_gpu: whether it was traced as on a GPU that is not here.
    """

    fun: Callable[..., Any]
    name: str
    trace: Trace | StepTrace
    frames: Frames
    profile: storage.Profile
    warnings: tuple[str, ...]
    is_dead: bool = False
    assumes_gpu: bool = False

    def tracing(self) -> contextlib.AbstractContextManager[None]:
        """Return the context to trace it in again, or parts of it."""
        return jax_compat.as_on_gpu() if self.assumes_gpu else contextlib.nullcontext()

    def judged(self) -> None:
        """Refuse what cannot be judged.

        Raises:
          InputsError: it is a training step that does nothing with its gradients.
        """
        if self.is_dead:
            raise InputsError(dead_gradients(self.name))

    @property
    def mesh(self) -> Mesh | None:
        """The mesh that it is split over, before any compiler was asked how.

        None: it is of one device.
        """
        return meshes.described(self.trace.arguments.mesh)

    @property
    def target(self) -> Target:
        """The name of the function, what is differentiated, and whether it is a training step."""
        call = self.trace.arguments
        if isinstance(self.trace, StepTrace):
            return Target(self.name, differentiated_in(step_program(self.trace)), "step")
        return Target(self.name, tuple(call.paths[i] for i in call.having("differentiated")))

    @property
    def jax(self) -> JaxInfo:
        """The installed JAX: its version, flags and compilers."""
        return JaxInfo(jax_compat.jax_version(), jax_compat.flags(), jax_compat.compilers())


@dataclass(frozen=True, slots=True)
class Inspection:
    """A report together with the function and the jaxprs that it was made from.

    Attributes:
      fun: the function.
      report: the report.
      trace: the trace of the function, with its jaxprs.
      frames: reads the tracebacks of its eqns.
      is_dead: as that of a `Subject`.
    """

    fun: Callable[..., Any]
    report: Report
    trace: Trace | StepTrace
    frames: Frames
    is_dead: bool = False


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector.

    With 48 layers it took two thirds of the time, going again and again over hundreds of thousands
    of objects that all stay.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def differentiated_in(step: Program) -> tuple[str, ...]:
    """Return the arguments of a training step that it takes gradients of, where they are known."""
    return tuple(r.path or "" for r in step.inputs if r.kind == "parameters")


def dead_gradients(name: str) -> str:
    """Return the message for a function that does nothing with its gradients."""
    return (
        f"nothing that {name} returns or changes depends on its gradients, so compilers remove the"
        " whole backward pass; also return the updated parameters and optimizer state (or the"
        " gradients), or use mode function to differentiate it as it is"
    )
