"""Tell which layers of the libraries are one operation that keeps its input anyway.

Convolutions, matrix products and lookups are linear in each of their arguments, and so are average
pools; a max pool finds its maxima again from its input. Normalizations, attention, recurrent cells
and dropout keep more, and are not among them.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import nn_modules
from jaxresid.linter.resolve.names import External

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_LAYERS = {
    "flax.linen": "Dense DenseGeneral Embed Conv ConvTranspose Einsum",
    "flax.nnx": "Linear LinearGeneral Embed Conv ConvTranspose Einsum",
    "haiku": """
        Linear Embed Conv1D Conv2D Conv3D ConvND Conv1DTranspose Conv2DTranspose Conv3DTranspose
        ConvNDTranspose DepthwiseConv1D DepthwiseConv2D DepthwiseConv3D AvgPool MaxPool Bias
    """,
    "equinox.nn": """
        Linear Embedding Conv Conv1d Conv2d Conv3d ConvTranspose ConvTranspose1d ConvTranspose2d
        ConvTranspose3d AvgPool1d AvgPool2d AvgPool3d MaxPool1d MaxPool2d MaxPool3d Identity
    """,
    "haliax.nn": "Linear Embedding Conv ConvTranspose",
}
SINGLE_OPERATIONS = frozenset(
    f"{m}.{name}" for m, names in _LAYERS.items() for name in names.split()
)


def layer(facts: Facts, node: ast.expr) -> tuple[str, ...]:
    """Return the classes of layers of one operation that an expression is an instance of.

    They are given by their own names, `Conv`, in the order of the source; there are several where a
    flag chooses, and none where the expression may be anything else.
    """
    origins = facts.names.origins(node)
    classes = [
        facts.names.single_origin(o.func) if isinstance(o, ast.Call) else None for o in origins
    ]
    if None in classes:
        classes = [nn_modules.instance_class(facts, node)]
    names = dict.fromkeys(c.qualname for c in classes if isinstance(c, External))
    if all(isinstance(c, External) for c in classes) and SINGLE_OPERATIONS.issuperset(names):
        return tuple(dict.fromkeys(name.rpartition(".")[2] for name in names))
    return ()
