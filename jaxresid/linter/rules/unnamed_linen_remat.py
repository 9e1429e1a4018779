from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import nn_modules as modules
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.names import External
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

_HEAD = "import flax.linen as nn\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    @nn.compact\n    def __call__(self, x):\n"
    "        return nn.Dense(4)(x)\n\n\n"
)
_MODEL = "class Model(nn.Module):\n    remat: bool = False\n\n"


class UnnamedLinenRemat(Rule):
    """The names of a linen module's parameters depend on whether it is checkpointed.

    ## What it does
    Finds the instantiation, in a method under `nn.compact`, of a class that is `nn.remat(Block)`
    under some condition and `Block` otherwise, where no `name=` is given.

    ## Why is this bad?
    A submodule without a name is called after its class, and the checkpointed class is another:
    `CheckpointBlock_0` instead of `Block_0`. Parameters that were saved with one setting do not load
    with the other.

    ## Use instead
    A name: `Layer(name=f"block_{i}")(x)`. Assigned in `setup` a submodule is called after the
    attribute, so nothing is needed there.

    ## When it is right after all
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
            f"{_HEAD}{_BLOCK}{_MODEL}    @nn.compact\n    def __call__(self, x):\n"
            "        Layer = nn.remat(Block) if self.remat else Block\n"
            "        for _ in range(2):\n            x = Layer()(x)  # !\n        return x\n",
        ),
        Example(
            "from flax.linen import Dense, Module, checkpoint, compact\n\n\n"
            "class Block(Module):\n    @compact\n    def __call__(self, x):\n"
            "        return Dense(4)(x)\n\n\n"
            "class Model(Module):\n    remat: bool = False\n\n    @compact\n"
            "    def __call__(self, x):\n        block = Block\n        if self.remat:\n"
            "            block = checkpoint(block, prevent_cse=False)\n"
            "        return block()(x)  # !\n",
        ),
        Example(
            "from functools import partial\n\nimport flax.linen as nn\n"
            "from flax.linen import partitioning as nn_partitioning\n\n"
            f"remat = partial(nn_partitioning.remat, prevent_cse=True)\n\n\n{_BLOCK}{_MODEL}"
            "    @nn.compact\n    def __call__(self, x):\n        if self.remat:\n"
            "            layer = remat(Block)\n        else:\n            layer = Block\n"
            "        return layer()(x)  # !\n",
        ),
    )
    good = (
        Example(
            f"{_HEAD}{_BLOCK}{_MODEL}    @nn.compact\n    def __call__(self, x):\n"
            "        Layer = nn.remat(Block) if self.remat else Block\n"
            '        for i in range(2):\n            x = Layer(name=f"block_{i}")(x)\n'
            "        return x\n"
        ),
        Example(  # setup names them
            f"{_HEAD}{_BLOCK}{_MODEL}    def setup(self):\n"
            "        Layer = nn.remat(Block) if self.remat else Block\n"
            "        self.layers = [Layer() for _ in range(2)]\n\n"
            "    def __call__(self, x):\n        for layer in self.layers:\n"
            "            x = layer(x)\n        return x\n"
        ),
        Example(  # always
            f"{_HEAD}{_BLOCK}{_MODEL}    @nn.compact\n    def __call__(self, x):\n"
            "        Layer = nn.remat(Block)\n        return Layer()(x)\n"
        ),
        Example(  # checkpointed either way
            f"{_HEAD}{_BLOCK}{_MODEL}    @nn.compact\n    def __call__(self, x):\n"
            "        Layer = nn.remat(Block) if self.remat else nn.remat(Block, prevent_cse=False)\n"
            "        return Layer()(x)\n"
        ),
        Example(  # two classes
            f"{_HEAD}{_BLOCK}{_MODEL}    @nn.compact\n    def __call__(self, x):\n"
            "        Layer = nn.remat(Block) if self.remat else nn.Dense\n"
            "        return Layer(4)(x)\n"
        ),
        Example(  # the arguments may hold a name
            f"{_HEAD}{_BLOCK}{_MODEL}    @nn.compact\n    def __call__(self, x, **options):\n"
            "        Layer = nn.remat(Block) if self.remat else Block\n"
            "        return Layer(**options)(x)\n"
        ),
        Example(  # nnx has no such names
            "from flax import nnx as nn\n\n\nclass Block(nn.Module):\n"
            "    def __call__(self, x):\n        return x\n\n\n"
            "def run(x, remat):\n    call = nn.remat(Block.__call__) if remat else Block.__call__\n"
            "    return call(Block(), x)\n"
        ),
        Example(  # a lifted function: the class keeps its name
            f"{_HEAD}{_BLOCK}{_MODEL}    @nn.compact\n    def __call__(self, x):\n"
            "        run = lambda m, x: m(x)\n"
            "        return (nn.remat(run) if self.remat else run)(Block(), x)\n"
        ),
        Example(  # outside a module
            f"{_HEAD}{_BLOCK}def make(remat):\n"
            "    Layer = nn.remat(Block) if remat else Block\n    return Layer()\n"
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
                    f"`{ast.unparse(call.func)}` is {stages.spelled(facts, site)} or `{plain}`: "
                    "without `name=` the names of its parameters depend on which",
                    related=stages.at(facts, site.node, "checkpointed here"),
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
