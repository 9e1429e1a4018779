from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.patterns import nn_modules as modules
from jaxresid.linter.resolve import apis, stages
from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.resolve.uses import PLAIN
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site


class JaxCheckpointOfNnxModule(Rule):
    """`jax.checkpoint` around an nnx module that changes its own state.

    ## What it does
    Finds `jax.checkpoint` of a function that takes an `nnx.Module` as an argument, or of a bound
    method or an instance, where the class is visible and calling it updates a variable: a
    BatchNorm, a Dropout, `self.sow`, or an assignment to an attribute. It finds `jax.checkpoint`
    and `nnx.remat` of an instance, and of a function that closes over one, `lambda x:
    self.block(x)`, too.

    ## Why is this bad?
    `jax.checkpoint` gives the function a copy of the module. What it changes there (running
    statistics, counters of random keys, sown values) is silently dropped. A bound method, an
    instance or a module that is closed over is not an argument at all, and raises
    `TraceContextError`.

    ## Use instead
    `nnx.remat`, of a function or an unbound method that takes the module: it carries the updates.

    ## When is this fine?
    Where the module does not change: with inference settings, or with parameters alone. The rule is
    silent where it sees no update, and where the function returns the module or its state.

    ## Is the fix safe?
    No: with `nnx.remat` the state changes, as it does without a checkpoint.
    """

    code = "JXR601"
    name = "jax-checkpoint-of-nnx-module"
    severity = "error"
    why = "`jax.checkpoint` works on a copy of the module, whose updates are lost."
    help = "use `nnx.remat` of a function that takes the module"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax
            from flax import nnx


            class Block(nnx.Module):
                def __init__(self, rngs):
                    self.norm = nnx.BatchNorm(4, rngs=rngs)

                def __call__(self, x):
                    return jax.numpy.sin(self.norm(x))


            class Model(nnx.Module):
                def __init__(self, rngs):
                    self.block = Block(rngs)

                def __call__(self, x):
                    return jax.checkpoint(lambda m, x: m(x))(self.block, x)  # !
            """,
            fixed="""
            import jax
            from flax import nnx


            class Block(nnx.Module):
                def __init__(self, rngs):
                    self.norm = nnx.BatchNorm(4, rngs=rngs)

                def __call__(self, x):
                    return jax.numpy.sin(self.norm(x))


            class Model(nnx.Module):
                def __init__(self, rngs):
                    self.block = Block(rngs)

                def __call__(self, x):
                    return nnx.remat(lambda m, x: m(x))(self.block, x)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax
            from flax import nnx


            class Block(nnx.Module):
                def __init__(self, rngs):
                    self.norm = nnx.BatchNorm(4, rngs=rngs)

                def __call__(self, x):
                    return jax.numpy.sin(self.norm(x))


            class Model(nnx.Module):
                def __init__(self, rngs):
                    self.block = Block(rngs)

                def __call__(self, x):
                    return nnx.remat(lambda m, x: m(x))(self.block, x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            if site.api.library not in {"jax", "nnx"}:
                continue
            is_jax = site.api.library == "jax"
            what = _dropped(facts, site) if is_jax else None
            bound = _bound(facts, site) if what is None else None
            if what is None and bound is None:
                bound = _closed_over(facts, site)
            spelled = stages.site_text(facts, site)
            if what is not None:
                yield self.report(
                    facts,
                    site.node,
                    f"{spelled} drops what the nnx module updates in `{what}`",
                    fix=modules.swap_checkpoint_api(
                        facts, site, "flax.nnx.remat", apis.CHECKPOINTS["flax.nnx.remat"].keywords
                    ),
                )
            elif bound is not None:
                yield self.report(
                    facts,
                    site.node,
                    f"{spelled} closes over an nnx module that updates `{bound}`: this raises "
                    "TraceContextError",
                )


def _dropped(facts: Facts, site: Site) -> str | None:
    """What a site's function updates in a module that is one of its arguments."""
    function = facts.target(site)
    if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
        return None
    cls = modules.owner(facts, function)
    if cls is not None and modules.library(facts, cls) == "nnx":
        if site.definition is None and not _is_unbound(facts, site):
            return None
        return modules.update(facts, function, function.args.args[0].arg, cls)
    for index, arg in enumerate(function.args.args):
        given = _class_of_argument(facts, site, function, index)
        if isinstance(given, ast.ClassDef) and modules.library(facts, given) == "nnx":
            found = modules.update(facts, function, arg.arg, given)
            if found is not None:
                return found
    return None


def _is_unbound(facts: Facts, site: Site) -> bool:
    """Whether a method is named through its class: `Block.__call__`."""
    target = site.target
    return isinstance(target, ast.Attribute) and isinstance(
        facts.names.single_origin(target.value), ast.ClassDef
    )


def _class_of_argument(
    facts: Facts, site: Site, function: FunctionNode, index: int
) -> modules.ModuleClass | None:
    """The class that an argument of a checkpointed function has by its annotation, or in all calls
    that are visible.
    """
    annotation = function.args.args[index].annotation
    if isinstance(annotation, (ast.Name, ast.Attribute)):
        cls = facts.names.single_origin(annotation)
        return cls if isinstance(cls, ast.ClassDef) else None
    found: set[modules.ModuleClass | None] = set()
    for use in facts.site_uses(site):
        call = use.node
        if use.kind != "call" or not isinstance(call, ast.Call) or "vmap" in use.through:
            return None
        if not PLAIN.issuperset(use.through) or len(call.args) <= index:
            return None
        found.add(modules.instance_class(facts, call.args[index]))
    return found.pop() if len(found) == 1 else None


def _closed_over(facts: Facts, site: Site) -> str | None:
    """What a site's function updates in a module that it closes over."""
    function = facts.target(site)
    if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
        return None
    return modules.update_in_closure(facts, function)


def _bound(facts: Facts, site: Site) -> str | None:
    """What an instance, or a bound method, that a site is given updates.

    `nnx.remat` of a bound method is another mistake (JXR602).
    """
    target, is_jax = site.target, site.api.library == "jax"
    if is_jax and isinstance(target, ast.Attribute) and target.attr == "__call__":
        target = target.value
    if not isinstance(target, (ast.Name, ast.Attribute)):
        return None
    function = facts.names.single_origin(target)
    cls = modules.owner(facts, function) if isinstance(function, ast.FunctionDef) else None
    if isinstance(function, ast.FunctionDef):
        is_self = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
        if cls is None or not is_jax or not is_self or modules.library(facts, cls) != "nnx":
            return None
        return modules.update(facts, function, function.args.args[0].arg, cls)
    return modules.update_in_call(facts, modules.instance_class(facts, target))
