"""Refs: arrays that a program writes to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Var
from jaxresid.jax_compat.patches import patched
from jaxresid.jax_compat.reading import open_jaxpr
from jaxresid.jax_compat.version import import_jax


def is_ref(value: Any) -> bool:
    """Return whether a value is a `jax.Ref` or a tracer of one."""
    kind = type(value)
    if isinstance(value, import_jax().core.Tracer):
        return is_ref_type(value.aval)
    return kind.__name__ in _REFS and kind.__module__.partition(".")[0] == "jax"


def is_ref_type(aval: Any) -> bool:
    """Return whether the type of a variable is that of a `jax.Ref`."""
    return type(aval).__name__ == "AbstractRef"


_REFS = ("Ref", "ArrayRef", "MutableArray")  # the second in 0.7.1 to 0.7.2, the last before


def abstract_ref(struct: Any) -> Any:
    """Return a Ref of what a ShapeDtypeStruct describes.

    It holds nothing, and can be traced with.
    """
    from jax._src import core
    from jax._src.state.types import AbstractRef

    jax = import_jax()
    made = object.__new__(next(v for n in _REFS if (v := getattr(core, n, None)) is not None))
    held = open_jaxpr(jax.make_jaxpr(lambda x: x)(struct)).invars[0].aval
    vars(made).update(_aval=AbstractRef(held), _refs=None)
    return made


def held_refs(closed: ClosedJaxpr) -> dict[Var, Any]:
    """Return the Refs that a closed jaxpr closes over, by constvar."""
    pairs = zip(open_jaxpr(closed).constvars, closed.consts, strict=True)
    return {var: value for var, value in pairs if is_ref(value)}


def without_refs(closed: ClosedJaxpr, inputs: Sequence[Var]) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """Return a closed jaxpr of Refs as one of what they hold.

    After its outputs it also returns what the Refs hold in the end.

    Args:
      closed: the closed jaxpr of Refs.
      inputs: the invars of what is made, Refs that it closes over among them.

    Returns:
      that jaxpr, and the indices of the inputs that it returns.
    """
    from jax._src.state import discharge

    known = inspect.signature(discharge.discharge_state).parameters
    discharge_state = discharge.discharge_state
    if "lower" in known:  # 0.9: else checkpoints of jax_remat3 become their bodies
        discharge_state = functools.partial(discharge_state, lower=False)
    jaxpr, inside = open_jaxpr(closed), set(inputs)
    pairs = zip(jaxpr.constvars, closed.consts, strict=True)
    rest = [(var, value) for var, value in pairs if var not in inside]
    consts = [value for _, value in rest]
    changed = {
        "constvars": [var for var, _ in rest],
        "invars": list(inputs),
        "debug_info": jaxpr.debug_info._replace(arg_names=("",) * len(inputs)),
    }
    new: Callable[..., Any] = type(closed)
    with patched({(discharge, "discharge_state"): discharge_state}):
        if open_jaxpr(closed) is closed:
            made = discharge_state(jaxpr.replace(consts=consts, **changed))
        elif "closed_jaxpr" in known:
            made = discharge_state(new(jaxpr.replace(**changed), consts))
        else:
            made = new(*discharge_state(jaxpr.replace(**changed), consts))
    return made, tuple(i for i, v in enumerate(inputs) if is_ref_type(v.aval))
