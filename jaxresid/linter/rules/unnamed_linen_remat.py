from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.patterns import nn_modules as modules
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.names import External
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site


class UnnamedLinenRemat(Rule):
    """The names of a linen module's parameters depend on whether it is checkpointed.

    ## What it does
    Finds the instantiation, in a method under `nn.compact`, of a class that is `nn.remat(Block)`
    under some condition and `Block` otherwise, where no `name=` is given.

    ## Why is this bad?
    A submodule without a name is named after its class, and the checkpointed class has another
    name: `CheckpointBlock_0` instead of `Block_0`. Parameters that were saved with one setting do
    not load with the other.

    ## Use instead
    A name: `Layer(name=f"block_{i}")(x)`. A submodule that is assigned in `setup` is named after
    the attribute, so nothing is needed there.

    ## When is this fine?
    Where parameters are never saved, or never loaded under the other setting. For parameters that
    exist already, give the name that they have.
    """

    code = "JXR603"
    name = "unnamed-linen-remat"
    severity = "warning"
    why = "Parameters saved with one setting do not load with the other."
    help = 'give a name, such as `name="block"`'
    bad = (
        Example(
            """
            import flax.linen as nn


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(4)(x)


            class Model(nn.Module):
                remat: bool = False

                @nn.compact
                def __call__(self, x):
                    Layer = nn.remat(Block) if self.remat else Block
                    for _ in range(2):
                        x = Layer()(x)  # !
                    return x
            """,
        ),
    )
    good = (
        Example(
            """
            import flax.linen as nn


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(4)(x)


            class Model(nn.Module):
                remat: bool = False

                @nn.compact
                def __call__(self, x):
                    Layer = nn.remat(Block) if self.remat else Block
                    for i in range(2):
                        x = Layer(name=f"block_{i}")(x)
                    return x
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if not any(s.api.library in {"linen", "partitioning"} for s in facts.sites):
            return
        for call in facts.names.calls:
            if not isinstance(call.func, (ast.Name, ast.IfExp, ast.Attribute)):
                continue
            found = _optional(facts, call)
            if found is None or any(k.arg in {None, "name", "parent"} for k in call.keywords):
                continue
            site, plain = found
            if _is_compact(facts, call):
                yield self.report(
                    facts,
                    call,
                    f"`{ast.unparse(call.func)}` is {stages.site_text(facts, site)} or `{plain}`: "
                    "without `name=` the names of its parameters depend on which it is",
                    related=stages.related_place(facts, site.node, "checkpointed here"),
                )


def _optional(facts: Facts, call: ast.Call) -> tuple[Site, str] | None:
    """The site whose class is instantiated where it is optional, and the name of the class."""
    origins = facts.names.origins(call.func)
    if len(origins) < 2 or None in origins:
        return None
    for origin in origins:
        site = facts.site_of(origin) if isinstance(origin, ast.Call) else None
        if site is None or site.api.loop or not facts.is_class(site):
            continue
        if site.api.library not in {"linen", "partitioning"}:
            continue
        for target in facts.targets(site):
            if target is not None and target in origins:
                if isinstance(target, ast.ClassDef):
                    return site, target.name
                if isinstance(target, External):
                    return site, target.qualname.rpartition(".")[2]
    return None


def _is_compact(facts: Facts, node: ast.AST) -> bool:
    """Whether code runs in a method under `nn.compact` of a linen module."""
    function = facts.names.function(node)
    cls = modules.owner(facts, function) if function is not None else None
    if not isinstance(function, ast.FunctionDef) or cls is None:
        return False
    if modules.library(facts, cls) != "linen":
        return False
    return any(
        name.startswith("flax.linen.") and name.endswith("compact")
        for d in function.decorator_list
        for name in facts.names.qualnames(d)
    )
