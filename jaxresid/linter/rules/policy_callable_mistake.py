from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve.names import FunctionNode
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Fix, Related, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_EQUAL = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
_IN = (ast.In, ast.NotIn)


class PolicyCallableMistake(Rule):
    """A policy of one's own that raises, or never saves what it means to.

    ## What it does
    Looks at the functions and lambdas given as `policy=`: whether they accept what JAX calls them
    with, compare the primitive with a string, or return something that is no answer.

    ## Why is this bad?
    JAX calls `policy(prim, *avals, **params)`. The primitive is an object, which equals no string:
    such a comparison is false for all of them, and silently nothing is saved. Without `**params`,
    or with a result that is not a bool, differentiation raises.

    ## Use instead
    `lambda prim, *avals, **params: prim.name == "dot_general"`, or one of JAX's own policies:
    writing callables is considered internal.

    ## When it is right after all
    Never; a function that is a policy under a condition that cannot be seen is left alone.

    ## Is the fix safe?
    No: it compares `prim.name`, so values begin to be saved.
    """

    code = "JXR207"
    name = "policy-callable-mistake"
    severity = "error"
    why = "JAX calls policy(prim, *avals, **params) with a Primitive object and wants a bool."
    help = "take `prim, *avals, **params`, look at `prim.name`, and return True or False"
    fixes = "unsafe"
    bad = (
        Example(
            "import jax\nimport jax.numpy as jnp\n\n\ndef layer(w, x):\n"
            "    return jnp.cos(jnp.sin(x @ w)).sum()\n\n\nblock = jax.checkpoint(\n"
            '    layer,\n    policy=lambda prim, *_, **__: prim == "dot_general",  # !\n)\n',
            fixed="import jax\nimport jax.numpy as jnp\n\n\ndef layer(w, x):\n"
            "    return jnp.cos(jnp.sin(x @ w)).sum()\n\n\nblock = jax.checkpoint(\n"
            '    layer,\n    policy=lambda prim, *_, **__: prim.name == "dot_general",\n)\n',
        ),
        Example(
            "from functools import partial\n\nimport jax.numpy as jnp\n"
            "from jax import remat as ckpt\n\n\n"
            "@partial(ckpt, policy=lambda prim: False)  # !\ndef block(w, x):\n"
            "    return jnp.cos(jnp.sin(x @ w)).sum()\n\n\n"
            "@partial(ckpt, policy=lambda prim, **params: False)  # !\ndef narrow(w, x):\n"
            "    return jnp.cos(jnp.sin(x @ w)).sum()\n"
        ),
        Example(
            "import jax\nimport jax.numpy as jnp\n\n\ndef keep(p, *args, **params):\n"
            '    if p not in ("dot_general", "exp"):  # !\n        return False\n'
            "    return True\n\n\n@jax.checkpoint\ndef plain(w, x):\n"
            "    return jnp.cos(jnp.sin(x @ w)).sum()\n\n\ndef block(w, x):\n"
            "    return jax.checkpoint(plain, policy=keep)(w, x)\n",
            fixed="import jax\nimport jax.numpy as jnp\n\n\ndef keep(p, *args, **params):\n"
            '    if p.name not in ("dot_general", "exp"):\n        return False\n'
            "    return True\n\n\n@jax.checkpoint\ndef plain(w, x):\n"
            "    return jnp.cos(jnp.sin(x @ w)).sum()\n\n\ndef block(w, x):\n"
            "    return jax.checkpoint(plain, policy=keep)(w, x)\n",
        ),
        Example(
            "import jax\nimport jax.numpy as jnp\n\n\ndef keep(prim, *args, **params):\n"
            '    if prim.name == "dot_general":\n        return "save"  # !\n'
            '    if prim.name == "exp":\n        return  # !\n    return None  # !\n\n\n'
            'def silent(prim, *args, **params):\n    params.get("name") == "hidden"\n\n\n'
            "@jax.jit\ndef layer(w, x):\n    return jnp.cos(jnp.sin(x @ w)).sum()\n\n\n"
            "block = jax.checkpoint(layer, policy=keep)\n"
            "other = jax.checkpoint(layer, policy=silent)  # !\n"
        ),
        Example(
            'import jax\n\nWANTED = ["dot_general"]\n\n\ndef matmuls(prim, *args, **params):\n'
            '    dots = prim in WANTED  # !\n    return dots or "conv" in prim  # !\n\n\n'
            "def run(layer, w, x):\n    return jax.remat(layer, policy=matmuls)(w, x)\n",
            fixed='import jax\n\nWANTED = ["dot_general"]\n\n\ndef matmuls(prim, *args, **params):\n'
            '    dots = prim.name in WANTED\n    return dots or "conv" in prim.name\n\n\n'
            "def run(layer, w, x):\n    return jax.remat(layer, policy=matmuls)(w, x)\n",
        ),
    )
    good = (
        Example(
            "import jax\n\n\ndef run(layer, w, x):\n"
            '    policy = lambda prim, *_, **__: prim.name == "dot_general"\n'
            "    return jax.checkpoint(layer, policy=policy)(w, x)\n"
        ),
        Example(
            "import jax\n\n\ndef run(layer, w, x):\n"
            '    return jax.checkpoint(layer, policy=lambda p, *_, **__: str(p) in {"dot_general"})(w, x)\n'
        ),
        Example(
            "import jax\nfrom jax.extend.core.primitives import dot_general_p, exp_p\n\n\n"
            "def keep(prim, *args, **params):\n"
            "    return prim is dot_general_p or prim in (exp_p,)\n\n\ndef run(layer, w, x):\n"
            "    return jax.checkpoint(layer, policy=keep)(w, x)\n"
        ),
        Example(
            'import jax\n\n\ndef keep(*args, **params):\n    if args[0] == "dot_general":\n'
            "        raise ValueError\n    return False\n\n\ndef run(layer, w, x):\n"
            "    return jax.checkpoint(layer, policy=keep)(w, x)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef keep(prim, *args, **params):\n"
            "    prim = prim.name\n"
            '    return prim == "dot_general" or cp.dots_saveable(prim, *args, **params)\n\n\n'
            "def run(layer, w, x):\n    return jax.checkpoint(layer, policy=keep)(w, x)\n"
        ),
        Example(
            "import jax\n\n\ndef keep(prim, lhs, rhs=None, **params):\n"
            "    return lhs.ndim > 1\n\n\ndef run(layer, w, x):\n"
            "    return jax.checkpoint(layer, policy=keep)(w, x)\n"
        ),
        Example(
            'import jax\n\n\ndef keep(kind):\n    if kind == "dots":\n'
            "        return jax.checkpoint_policies.dots_saveable\n    return None\n\n\n"
            "def run(layer, w, x):\n"
            '    return jax.checkpoint(layer, policy=keep("dots"))(w, x)\n'
        ),
        Example(
            "import jax\n\n\nclass Trainer:\n    def keep(self, prim, *args, **params):\n"
            '        return prim.name == "dot_general"\n\n    def run(self, layer, w, x):\n'
            "        return jax.checkpoint(layer, policy=self.keep)(w, x)\n"
        ),
        Example(
            "import jax\nfrom policies import adapted\n\n\n@adapted\ndef keep(prim):\n"
            '    return prim == "dot_general"\n\n\ndef run(layer, w, x):\n'
            "    return jax.checkpoint(layer, policy=keep)(w, x)\n"
        ),
        Example(
            "def run(remat, layer):\n"
            '    return remat(layer, policy=lambda prim: prim == "checkpoint")\n'
        ),
        Example(
            "import jax\n\n\ndef keep(prim, *args, **params):\n    def wanted(prim):\n"
            '        return prim == "dot_general"\n\n    def nothing():\n'
            "        return None\n\n    return wanted(prim.name) or nothing() is not None\n\n\n"
            "def run(layer, w, x):\n    return jax.checkpoint(layer, policy=keep)(w, x)\n"
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        reported: set[ast.AST] = set()
        for node in policies.given(facts):
            for leaf in policies.leaves(node):
                function = facts.policy_of(leaf).function
                if function is None or _is_decorated(function):
                    continue
                found = [*self._calling(facts, leaf, function)]
                if function not in reported:
                    found += [*self._comparing(facts, function), *self._returning(facts, function)]
                reported.add(function)
                yield from found

    def _calling(self, facts: Facts, leaf: ast.expr, function: FunctionNode) -> Iterator[Violation]:
        args = function.args
        positional = len(args.posonlyargs) + len(args.args)
        if facts.names.class_of(function) is not None:
            positional -= 1
        no_params = args.kwarg is None and not args.kwonlyargs
        no_avals = args.vararg is None and positional == 1
        what = _called(facts, leaf)
        if no_params or no_avals:
            lacking = "`**params`" if no_params else "`*avals`"
            message = f"{what} is given as a policy but does not accept {lacking}"
            yield self.report(facts, leaf, message, related=_defined(facts, leaf, function))
        elif isinstance(function, ast.FunctionDef) and _never_returns(facts, function):
            message = f"{what} is given as a policy but returns nothing"
            yield self.report(facts, leaf, message, related=_defined(facts, leaf, function))

    def _comparing(self, facts: Facts, function: FunctionNode) -> Iterator[Violation]:
        prim = _first(facts, function)
        for node in ast.walk(function) if prim is not None else ():
            if not isinstance(node, ast.Compare) or len(node.ops) != 1:
                continue
            name = _compared(facts, node, function, prim)
            if name is not None:
                what = policies.written(facts, node)
                message = f"`{what}` compares a primitive with a string, which it never equals"
                if node.comparators[0] is name and isinstance(node.ops[0], _IN):
                    message = f"`{what}` looks for a string in a primitive, which raises"
                yield self.report(facts, node, message, fix=_by_name(facts, node, name))

    def _returning(self, facts: Facts, function: FunctionNode) -> Iterator[Violation]:
        for value, node in _results(facts, function):
            if isinstance(value, ast.Constant) and not isinstance(value.value, bool):
                what = "None" if value.value is None else policies.written(facts, value)
                yield self.report(
                    facts, node, f"a policy returns True or False, and this one returns `{what}`"
                )


def _is_decorated(function: FunctionNode) -> bool:
    return not isinstance(function, ast.Lambda) and bool(function.decorator_list)


def _called(facts: Facts, leaf: ast.expr) -> str:
    return "the lambda" if isinstance(leaf, ast.Lambda) else f"`{policies.written(facts, leaf)}`"


def _defined(facts: Facts, leaf: ast.expr, function: FunctionNode) -> tuple[Related, ...]:
    if leaf is function:
        return ()
    return (Related("defined here", facts.source.path, facts.source.span(function)),)


def _first(facts: Facts, function: FunctionNode) -> str | None:
    """The name of the parameter that gets the primitive."""
    args = [*function.args.posonlyargs, *function.args.args]
    if facts.names.class_of(function) is not None:
        args = args[1:]
    return args[0].arg if args else None


def _compared(
    facts: Facts, node: ast.Compare, function: FunctionNode, prim: str | None
) -> ast.Name | None:
    """The primitive, where `node` compares it with a string or looks it up among strings."""

    def is_prim(side: ast.expr) -> bool:
        if not isinstance(side, ast.Name) or side.id != prim:
            return False
        bindings = facts.names.bindings(side)
        return [b.kind for b in bindings] == ["param"] and bindings[0].scope.node is function

    left, right = node.left, node.comparators[0]
    if isinstance(node.ops[0], _EQUAL):
        for one, other in ((left, right), (right, left)):
            if isinstance(one, ast.Name) and is_prim(one) and _is_string(facts, other):
                return one
    elif isinstance(node.ops[0], _IN):
        if isinstance(left, ast.Name) and is_prim(left) and _is_strings(facts, right):
            return left
        if isinstance(right, ast.Name) and is_prim(right) and _is_string(facts, left):
            return right
    return None


def _is_string(facts: Facts, node: ast.expr) -> bool:
    return isinstance(facts.names.constant(node), str)


def _is_strings(facts: Facts, node: ast.expr) -> bool:
    value = facts.names.constant(node)
    return isinstance(value, (list, tuple, set)) and all(isinstance(v, str) for v in value)


def _by_name(facts: Facts, node: ast.Compare, name: ast.Name) -> Fix | None:
    if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        return None
    text = f"{name.id}.name"
    return Fix(f"Look at `{text}`", (edits.replace(facts.source, name, text),), "unsafe")


def _results(
    facts: Facts, function: FunctionNode
) -> Iterator[tuple[ast.expr, ast.expr | ast.stmt]]:
    """What a function gives, with what to point at."""
    if isinstance(function, ast.Lambda):
        yield from ((leaf, leaf) for leaf in _conditional(function.body))
        return
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and facts.names.function(node) is function:
            if node.value is None:
                yield ast.Constant(None), node
            else:
                yield from ((leaf, node) for leaf in _conditional(node.value))


def _conditional(node: ast.expr) -> Iterator[ast.expr]:
    """The branches of a conditional expression; `x and y` is a matter of truth, and left alone."""
    if isinstance(node, ast.IfExp):
        yield from _conditional(node.body)
        yield from _conditional(node.orelse)
    else:
        yield node


def _never_returns(facts: Facts, function: ast.FunctionDef) -> bool:
    """Whether the end of a function is always reached: no return, raise or yield in it, and
    something else than `...`.
    """
    leaving = (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Assert)
    inside = (n for n in ast.walk(function) if isinstance(n, leaving))
    return not any(facts.names.function(n) is function for n in inside) and not (
        isinstance(function.body[-1], ast.Expr)
        and isinstance(function.body[-1].value, ast.Constant)
    )
