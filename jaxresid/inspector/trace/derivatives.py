"""Find the gradients that a function takes itself, and the user's lines that take them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.frames import Frame, Frames
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.jaxpr_types import Eqn, Jaxpr
from jaxresid.model import Derivative

_TAG = re.compile(r"\b(transpose|jvp)\(")


def lines_of_gradients(jaxpr: Jaxpr, frames: Frames) -> tuple[Derivative, ...]:
    """Return the gradients that an open jaxpr takes, in the order of the lines that take them.

    Those that one line takes, in a loop of Python's or by `jax.hessian`, are one. A gradient that
    another derivative is taken of is part of that one: `jvp of grad`. What is differentiated
    forward alone is none.

    Args:
      jaxpr: the jaxpr, which is not itself differentiated.
      frames: reads the tracebacks of its eqns.
    """
    kinds: dict[Frame | None, set[tuple[str, ...]]] = {}
    first: dict[Frame | None, Eqn] = {}
    for eqn, taken in _differentiated(jaxpr):
        call = frames.derivative_call(eqn)
        kinds.setdefault(call, set()).add(taken)
        first.setdefault(call, eqn)
    if any("grad" in taken for call, of_call in kinds.items() if call for taken in of_call):
        # With jax_remat3 the body of a checkpoint has no frames of who differentiates it.
        kinds.pop(None, None)
    found = []
    for call, of_call in kinds.items():
        kind = _together(of_call)
        if "grad" in kind:
            line = frames.innermost_user(frames.of(first[call]).frames)
            found.append(Derivative(kind, frames.location(call) if call else line))
    return tuple(found)


def in_words(taken: Sequence[Derivative]) -> str:
    """Return which gradients are taken where: `grad at train.py:12`."""
    listed = [
        f"{each.kind} at {each.location.file}:{each.location.line}" if each.location else each.kind
        for each in taken
    ]
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more


def _differentiated(jaxpr: Jaxpr) -> Iterator[tuple[Eqn, tuple[str, ...]]]:
    """Yield the outermost eqns that a derivative made, with the derivatives."""
    for eqn in jaxpr.eqns:
        tags = jax_compat.whole_name_stack(eqn)
        taken = _derivatives(tags)
        # The backward pass of a checkpoint begins with its forward pass, and is tagged so.
        is_checkpoint = jax_compat.primitive_name(eqn) == "remat" or "rematted_computation" in tags
        if is_checkpoint and taken[:2] == ("grad", "jvp"):
            taken = ("grad", *taken[2:])
        if taken:
            yield eqn, taken
        else:
            for nest in nests(eqn):
                yield from _differentiated(nest.jaxpr)


@functools.cache
def _derivatives(name_stack: str) -> tuple[str, ...]:
    """Return the derivatives that a name stack tells, outermost first.

    `transpose(jvp(` is one, the second half of a gradient; `transpose(` alone is none.
    """
    found: list[str] = []
    for tag in _TAG.findall(name_stack):
        if tag == "jvp" and found and found[-1] == "transpose":
            found[-1] = "grad"
        else:
            found.append(tag)
    return tuple(tag for tag in found if tag != "transpose")


def _together(taken: set[tuple[str, ...]]) -> str:
    """Return in words what was taken where eqns have these derivatives.

    The forward pass of a gradient looks like that of a jvp.
    """
    at_depths = [
        {each[depth] for each in taken if len(each) > depth}
        for depth in range(max(map(len, taken)))
    ]
    return " of ".join("grad" if "grad" in kinds else "jvp" for kinds in at_depths)
