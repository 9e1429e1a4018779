from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.patterns import nn_modules as modules
from jaxresid.linter.resolve import apis, stages
from jaxresid.linter.resolve.names import External
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

_ARRAYS = frozenset({"jax.Array", "jax.numpy.ndarray", "jaxtyping.Array"})
_LAYERS = frozenset(
    """
    Linear MLP Conv Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LayerNorm
    RMSNorm GroupNorm BatchNorm Embedding GRUCell LSTMCell MultiheadAttention
    """.split()
)
_MAX_DEPTH = 5


class JaxCheckpointOfModule(Rule):
    """A module, or its method, is checkpointed in a way that its library does not support.

    ## What it does
    Finds `jax.checkpoint` as the decorator of a linen module or of a method of one, `jax.checkpoint`
    of an instance of a linen or Equinox module with arrays, `nn.remat` of an instance or of a bound
    method, and `nnx.remat` of a bound method.

    ## Why is this bad?
    Each raises. `jax.checkpoint` takes arrays, not linen modules; it hashes the function,
    and a module that holds arrays has no hash; `nn.remat` wants the class, or a function whose first
    argument is the module; `nnx.remat` wants the unbound method.

    ## Use instead
    linen: `nn.remat(Block)()(x)`, or `@nn.remat` on the method. Equinox:
    `eqx.filter_checkpoint(module)`. nnx: `nnx.remat(Block.__call__)(block, x)`.

    ## When is this fine?
    An Equinox module without arrays is accepted, as is `@jax.checkpoint` on a method of one that
    has only arrays, and `jax.checkpoint(self.method)` in a linen module; the rule is silent there.

    ## Is the fix safe?
    No: it calls the library's own checkpoint, so that code that raised now runs.
    """

    code = "JXR602"
    name = "jax-checkpoint-of-module"
    severity = "error"
    why = "The checkpoint cannot take the module: this raises when it is called."
    help = "use the library's own checkpoint: `nn.remat(Class)`, `eqx.filter_checkpoint`"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import flax.linen as nn
            import jax


            class Model(nn.Module):
                @jax.checkpoint  # !
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(4)(x)
            """,
            fixed="""
            import flax.linen as nn
            import jax


            class Model(nn.Module):
                @nn.remat
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(4)(x)
            """,
        ),
    )
    good = (
        Example(
            """
            import flax.linen as nn
            import jax


            class Model(nn.Module):
                @nn.remat
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(4)(x)
            """
        ),
        Example(
            """
            import flax.linen as nn
            import jax


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(4)(x)


            class Model(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.remat(Block)()(x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            spelled = stages.site_text(facts, site)
            match site.api.library:
                case "jax":
                    trouble, fix = _jax(facts, site)
                case "linen" | "partitioning":
                    trouble, fix = _linen(facts, site), None
                case "nnx":
                    trouble, fix = _nnx(facts, site), None
                case _:
                    continue
            if trouble is not None:
                yield self.report(facts, site.node, f"{spelled} {trouble}", fix=fix)


def _jax(facts: Facts, site: Site) -> tuple[str | None, Fix | None]:
    """What is wrong with a `jax.checkpoint`, and the fix."""
    definition = site.definition
    target = facts.target(site)
    if isinstance(target, ast.ClassDef) and modules.library(facts, target) == "linen":
        return "checkpoints the class of a linen module: making one raises TypeError", None
    if definition is not None:
        cls = modules.owner(facts, definition)
        if cls is None or modules.library(facts, cls) != "linen":
            return None, None
        fix = None
        if definition.decorator_list[0] is site.node:
            fix = modules.swap_checkpoint_api(facts, site, "flax.linen.remat", frozenset())
        return "takes the linen module `self` for an array: calling it raises TypeError", fix
    if site.target is None:
        return None, None
    made = modules.instance_class(facts, site.target)
    match modules.library(facts, made):
        case "linen":
            return "takes an instance of a linen module, which has no hash: TypeError", None
        case "equinox" if made is not None and _holds_arrays(facts, made):
            keywords = apis.CHECKPOINTS["equinox.filter_checkpoint"].keywords
            fix = modules.swap_checkpoint_api(facts, site, "equinox.filter_checkpoint", keywords)
            return "takes an Equinox module with arrays, which has no hash: TypeError", fix
    return None, None


def _linen(facts: Facts, site: Site) -> str | None:
    """What is wrong with an `nn.remat`."""
    if site.target is None or site.api.loop:
        return None
    if modules.library(facts, modules.instance_class(facts, site.target)) == "linen":
        return "takes an instance rather than the class: TransformTargetError"
    cls = _bound_owner(facts, site.target)
    if cls is not None and modules.library(facts, cls) == "linen":
        return "takes a bound method, whose first argument is not the module: AttributeError"
    return None


def _nnx(facts: Facts, site: Site) -> str | None:
    """What is wrong with an `nnx.remat`."""
    target = site.target
    if target is None:
        return None
    cls: modules.ModuleClass | None = _bound_owner(facts, target)
    if cls is None and isinstance(target, ast.Attribute) and target.attr == "__call__":
        cls = modules.instance_class(facts, target.value)
    if modules.library(facts, cls) == "nnx":
        return "takes a bound method: ValueError"
    return None


def _bound_owner(facts: Facts, target: ast.expr) -> ast.ClassDef | None:
    """The class of `self` in `self.method`."""
    match target:
        case ast.Attribute(value=ast.Name(id="self")):
            function = facts.names.single_origin(target)
            return modules.owner(facts, function) if isinstance(function, ast.FunctionDef) else None
    return None


def _holds_arrays(facts: Facts, cls: modules.ModuleClass, depth: int = 0) -> bool:
    """Whether the instances of an Equinox class certainly hold arrays and hash by their fields."""
    if isinstance(cls, External):
        prefix, _, name = cls.qualname.rpartition(".")
        return prefix == "equinox.nn" and name in _LAYERS
    if modules.library(facts, cls) != "equinox" or facts.names.method(cls, "__hash__") is not None:
        return False
    for statement in cls.body:
        if not isinstance(statement, ast.AnnAssign) or statement.value is not None:
            continue
        origin = facts.names.single_origin(statement.annotation)
        if isinstance(origin, External) and origin.qualname in _ARRAYS:
            return True
        if not isinstance(origin, (External, ast.ClassDef)) or depth > _MAX_DEPTH:
            continue
        if _holds_arrays(facts, origin, depth + 1):
            return True
    return False
