from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.patterns import array_functions, checkpoint_calls
from jaxresid.linter.patterns import nn_modules as modules
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.callees import Role
    from jaxresid.linter.resolve.facts import Facts, Use

_LIFTED = ("flax.linen.", "flax.linen.transforms.", "flax.linen.partitioning.")
_TRANSFORMS = frozenset({"remat", "checkpoint", "remat_scan", "scan", "jit", "vmap"})
_KEYWORDS = frozenset({"policy", "prevent_cse"})


class LinenTransformOfArrayFunction(Rule):
    """A transform of flax.linen is given a function of arrays.

    ## What it does
    Finds `nn.remat`, and beside checkpoints `nn.scan`, `nn.vmap` and `nn.jit`, of a function or
    lambda whose first argument is an array: by its annotation, by what the function does with it, or
    because the function is one of `jax.numpy`, `jax.nn` or a module's `apply`.

    ## Why is this bad?
    The transforms of linen lift a class, or a function whose first argument is a module: they read
    the state of that argument. Given an array this is `AttributeError: ... no attribute '_state'`,
    inside a module's method and outside, as soon as the result is called. The arguments of a
    function without parameters are missing: a TypeError.

    ## Use instead
    `jax.checkpoint(f)(x)`, `jax.vmap`, `jax.lax.scan` where no module is involved; with one,
    `nn.remat(lambda mdl, x: mdl.dense(x))(self, x)`, or `nn.remat(Block)()(x)`.

    ## When is this fine?
    Never; a first argument that may be a module is not reported.

    ## Is the fix safe?
    No: it calls `jax.checkpoint`, so that code that raised now runs.
    """

    code = "JXR604"
    name = "linen-transform-of-array-function"
    severity = "error"
    why = "It takes the first argument for a module and reads its state: this raises when called."
    help = "use JAX's own transform, or give it a class or a function of a module"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import flax.linen as nn
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(x @ w)


            def run(w, x):
                return nn.remat(layer)(w, x).sum()  # !
            """,
            fixed="""
            import flax.linen as nn
            import jax
            import jax.numpy as jnp


            def layer(w, x):
                return jnp.sin(x @ w)


            def run(w, x):
                return jax.checkpoint(layer)(w, x).sum()
            """,
        ),
    )
    good = (
        Example(
            """
            import flax.linen as nn


            class Model(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.remat(lambda mdl, h: nn.Dense(4)(nn.gelu(h)))(self, x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for call in facts.names.calls:
            role = _lifted(facts, call.func)
            target = facts.arguments(call, role).get(0, "target") if role is not None else None
            if (
                role is not None
                and target is not None
                and array_functions.is_of_arrays(facts, target)
                and not _gets_module(facts, facts.uses(call))
                and not checkpoint_calls.is_error_expected(facts, call)
            ):
                yield self._reported(facts, call, f"`{ast.unparse(target)}`", _fix(facts, call))
        for function in facts.names.functions:
            for decorator in getattr(function, "decorator_list", ()):
                if (
                    isinstance(function, ast.FunctionDef)
                    and _lifted(facts, decorator) is not None
                    and function.decorator_list[-1] is decorator
                    and array_functions.takes_array_first(facts, function)
                    and not _gets_module(facts, facts.uses_above(function, decorator))
                ):
                    yield self._reported(facts, decorator, f"`{function.name}`", None)

    def _reported(self, facts: Facts, node: ast.expr, target: str, fix: Fix | None) -> Violation:
        name = checkpoint_calls.callee(facts, node)
        shown = target if len(target) <= 40 else "the function"
        message = f"`{name}` lifts functions of a module, and {shown} takes an array first"
        return self.report(facts, node, message, fix=fix)


def _lifted(facts: Facts, callee: ast.expr) -> Role | None:
    """The transform of flax.linen that a callee certainly is."""
    if len(facts.names.origins(callee)) != 1:
        return None
    roles = facts.roles(callee)
    if len(roles) != 1 or not roles[0].qualname.startswith(_LIFTED):
        return None
    return roles[0] if roles[0].qualname.rpartition(".")[2] in _TRANSFORMS else None


def _gets_module(facts: Facts, uses: tuple[Use, ...]) -> bool:
    """Whether some visible call gives a module, or what may be one, first."""
    for use in uses:
        call = use.node
        if use.kind != "call" or not isinstance(call, ast.Call) or not call.args:
            continue
        first = call.args[0]
        if isinstance(first, (ast.Starred, ast.Attribute)) or _is_module(facts, first):
            return True
    return False


def _is_module(facts: Facts, node: ast.expr) -> bool:
    if isinstance(node, ast.Name) and node.id in {"self", "module", "mdl"}:
        return True
    return modules.instance_class(facts, node) is not None


def _fix(facts: Facts, call: ast.Call) -> Fix | None:
    site = facts.site_of(call)
    if site is None or site.api.loop:
        return None
    return modules.swap_checkpoint_api(facts, site, "jax.checkpoint", _KEYWORDS)
