"""Take settings (flags, names, numbers of a SPEC) out of inputs, so that only arrays are passed."""

from __future__ import annotations

from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.call.arguments import StaticNumber
from jaxresid.inspector.call.leaves import is_array
from jaxresid.targets.inputs import Inputs


def only_arrays(inputs: Inputs) -> Inputs:
    """Return inputs in which None stands for each setting."""
    jax = jax_compat.import_jax()
    args, kwargs = jax.tree.map(
        lambda leaf: leaf if is_array(leaf) else None, (tuple(inputs.args), dict(inputs.kwargs))
    )
    return Inputs(args, kwargs)


def with_settings(inputs: Inputs, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return arrays, in the places of `only_arrays`, together with the settings of the inputs."""
    jax = jax_compat.import_jax()
    own, treedef = jax.tree.flatten((tuple(inputs.args), dict(inputs.kwargs)), is_leaf=_is_none)
    arrays = jax.tree.leaves((tuple(args), dict(kwargs)), is_leaf=_is_none)
    leaves = [
        array if array is not None else leaf.value if isinstance(leaf, StaticNumber) else leaf
        for leaf, array in zip(own, arrays, strict=True)
    ]
    return jax.tree.unflatten(treedef, leaves)  # type: ignore[no-any-return]


def _is_none(value: Any) -> bool:
    return value is None
