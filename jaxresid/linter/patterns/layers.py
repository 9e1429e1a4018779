"""Tell which layers of the libraries are one operation that keeps its input anyway.

Convolutions, matrix products and lookups are linear in each of their arguments, and so are average
pools; a max pool finds its maxima again from its input. Normalizations, attention, recurrent cells
and dropout keep more, and are not among them. A product in another type than that of its weights
and its input keeps copies of them.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import nn_modules
from jaxresid.linter.resolve.names import External

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

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

# Those among them that multiply nothing, by their own names or the beginnings of these.
_WITHOUT_PRODUCT = ("Embed", "AvgPool", "MaxPool", "Bias", "Identity")
# What makes a layer compute with copies of its weights and its input, which a checkpoint drops.
_COPYING = frozenset(
    """
    dtype param_dtype promote_dtype preferred_element_type dot_general dot_general_cls
    conv_general_dilated conv_general_dilated_cls
    """.split()
)
# What a class goes through on the way to calls that are all visible.
_VISIBLE = frozenset({"class", "instance", "element", "iterated"})


def layer(facts: Facts, node: ast.expr) -> tuple[str, ...]:
    """Return the classes of layers of one operation that an expression is an instance of.

    They are given by their own names, `Conv`, in the order of the source; there are several where a
    flag chooses, and none where the expression may be anything else.
    """
    instances = nn_modules.instances(facts, node)
    names = []
    for instance in instances:
        qualname = instance.cls.qualname if isinstance(instance.cls, External) else ""
        if qualname not in SINGLE_OPERATIONS or any(_copies(qualname, c) for c in instance.calls):
            return ()
        names.append(qualname.rpartition(".")[2])
    return tuple(dict.fromkeys(names))


def is_trivial_class(facts: Facts, site: Site, qualname: str) -> bool:
    """Return whether all that becomes of a checkpointed class is layers of one operation.

    It is not where code that is not visible may instantiate it, with a `dtype` perhaps.
    """
    if qualname not in SINGLE_OPERATIONS:
        return False
    if _multiplies_nothing(qualname):
        return True
    calls = [c for c in facts.names.calls if site.node in facts.names.origins(c.func)]
    if not calls or any(_copies(qualname, call) for call in calls):
        return False
    uses = facts.flows.site_uses(site)
    return all(use.kind == "call" and _VISIBLE.issuperset(use.through) for use in uses)


def _multiplies_nothing(qualname: str) -> bool:
    return qualname.rpartition(".")[2].startswith(_WITHOUT_PRODUCT)


def _copies(qualname: str, call: ast.Call) -> bool:
    """Return whether a layer may compute with copies of what it gets, for example with `dtype=`."""
    if _multiplies_nothing(qualname):
        return False
    for keyword in call.keywords:
        unset = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
        if keyword.arg is None or (keyword.arg in _COPYING and not unset):
            return True
    return any(isinstance(a, ast.Starred) or _is_dtype(a) for a in call.args)


def _is_dtype(node: ast.expr) -> bool:
    """Return whether an argument by position is a dtype, as far as its spelling tells."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    return "dtype" in name or name.startswith(("float", "bfloat"))
