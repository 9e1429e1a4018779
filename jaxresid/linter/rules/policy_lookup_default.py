from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Fix, Violation
from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import apis
from jaxresid.linter.resolve.names import External
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_MODULES = frozenset(m.removesuffix(".") for m in apis.POLICY_MODULES)
_TESTS = (ast.If, ast.IfExp, ast.While, ast.Assert)


class PolicyLookupDefault(Rule):
    """A policy is looked up by a computed name, and an unknown name goes unnoticed.

    ## What it does
    Finds `getattr(jax.checkpoint_policies, name, default)` and `TABLE.get(name)` of a table of
    policies that has an entry of its own for saving nothing.

    ## Why is this bad?
    A misspelt name in a configuration, or a policy of another version of JAX, gives the
    default. With None that is full recomputation: the program runs, slower, and nothing says why.

    ## Use instead
    `getattr(jax.checkpoint_policies, name)` and `TABLE[name]`, which raise for an unknown name.

    ## When is this fine?
    Where the name is a literal, comes from a list in the code or was looked up before, or where the
    result is compared with None: that is not reported. Nor is a table without an entry for saving
    nothing, because an absent name may be the way to say that.

    ## Is the fix safe?
    No: an unknown name now raises.
    """

    code = "JXR213"
    name = "policy-lookup-default"
    severity = "warning"
    why = "A misspelt name gives the default, without an error: None recomputes everything."
    help = "look the name up without a default, so that an unknown one raises"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax


            def block(layer, name):
                policy = getattr(jax.checkpoint_policies, name, None)  # !
                return jax.checkpoint(layer, policy=policy)
            """,
            fixed="""
            import jax


            def block(layer, name):
                policy = getattr(jax.checkpoint_policies, name)
                return jax.checkpoint(layer, policy=policy)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def block(layer, name):
                policy = getattr(jax.checkpoint_policies, name)
                return jax.checkpoint(layer, policy=policy)
            """
        ),
        Example(
            """
            import jax


            def block(layer, name):
                policy = getattr(jax.checkpoint_policies, name, None)
                if policy is None:
                    raise ValueError(name)
                return jax.checkpoint(layer, policy=policy)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for call in facts.names.calls:
            name = _looked_up(facts, call)
            if name is None or _is_settled(facts, name) or _is_checked(facts, call, name):
                continue
            default = ast.unparse(call.args[-1]) if _is_getattr(call) else "None"
            what = policies.source_text(facts, call)
            message = f"`{what}` gives {default} for an unknown name"
            yield self.report(facts, call, message, fix=_without_default(facts, call))


def _is_getattr(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name)


def _looked_up(facts: Facts, call: ast.Call) -> ast.expr | None:
    """The name that a call looks a policy up by, with a default."""
    match call:
        case ast.Call(func=ast.Name(id="getattr"), args=[module, name, _], keywords=[]):
            if facts.names.qualnames(call.func) != ("getattr",):
                return None
            origin = facts.names.single_origin(module)
            return name if isinstance(origin, External) and origin.qualname in _MODULES else None
        case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[name, *rest], keywords=[]):
            nothing = all(isinstance(d, ast.Constant) and d.value is None for d in rest)
            return name if nothing and _is_table(facts, table) else None
    return None


def _is_table(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is a dictionary of policies with an entry that saves nothing."""
    origin = facts.names.single_origin(node)
    if not isinstance(origin, ast.Dict) or None in origin.keys:
        return False
    found = [facts.policy_of(value) for value in origin.values]
    return any(p.saves_nothing for p in found) and any(p.name is not None for p in found)


def _is_settled(facts: Facts, name: ast.expr) -> bool:
    """Whether a name is a literal, or one of several that the code lists."""
    if isinstance(facts.names.constant(name), str):
        return True
    if not isinstance(name, ast.Name):
        return False
    return any(b.kind == "for" for b in facts.names.bindings(name))


def _is_checked(facts: Facts, call: ast.Call, name: ast.expr) -> bool:
    """Whether the code around asks for the result, or has asked for the name."""
    shown = ast.unparse(name)
    function = facts.names.function(call)
    results = {*_bound_names(facts, call)}
    for node in ast.walk(function if function is not None else facts.names.tree):
        match node:
            case ast.Call(func=ast.Name(id="hasattr"), args=[_, asked]):
                if ast.unparse(asked) == shown:
                    return True
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()]):
                if ast.unparse(left) == shown:
                    return True
            case ast.Compare(left=ast.Name(id=left), ops=[ast.Is() | ast.IsNot()]):
                if left in results:
                    return True
            case ast.If(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
                tested = test.operand if isinstance(test, ast.UnaryOp) else test
                if isinstance(tested, ast.Name) and tested.id in results:
                    return True
    return _is_asked(facts, call)


def _bound_names(facts: Facts, call: ast.Call) -> Iterator[str]:
    match facts.names.parents.get(call):
        case ast.Assign(targets=targets):
            yield from (t.id for t in targets if isinstance(t, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.NamedExpr(target=ast.Name(id=name)):
            yield name


def _is_asked(facts: Facts, call: ast.Call) -> bool:
    """Whether the result itself is compared, tested, or replaced where it is None."""
    parent = facts.names.parents.get(call)
    if isinstance(parent, ast.NamedExpr):
        parent = facts.names.parents.get(parent)
    if isinstance(parent, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
        return True
    return isinstance(parent, _TESTS) and parent.test is call


def _without_default(facts: Facts, call: ast.Call) -> Fix | None:
    if _is_getattr(call):
        edit = edits.remove_argument(facts.source, call, call.args[-1])
    else:
        assert isinstance(call.func, ast.Attribute)
        source = facts.source
        table, name = (source.segment(source.span(n)) for n in (call.func.value, call.args[0]))
        edit = edits.replace(source, call, f"{table}[{name}]")
    return Fix("Look it up without a default", (edit,), "unsafe") if edit is not None else None
