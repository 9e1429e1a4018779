from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import apis, results
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_DEPTH = 3


class UncalledPolicyFactory(Rule):
    """A function that makes policies is used as a policy.

    ## What it does
    Finds a factory such as `save_only_these_names` that is given as the policy without being
    called, or stored beside finished policies in a table.

    ## Why is this bad?
    JAX calls it as if it were the policy. The forward pass works; differentiation raises a
    `TypeError` about an unexpected keyword argument. The implementation behind `jax_remat3` may
    save nothing instead of raising.

    ## Use instead
    Call it: `policy=jax.checkpoint_policies.save_only_these_names("attention")`.

    ## When is this fine?
    In a table whose entries are called later (all of them are factories), and where it is passed to
    something that calls it, such as `functools.partial`; these are not reported.
    """

    code = "JXR201"
    name = "uncalled-policy-factory"
    severity = "error"
    why = "JAX calls it as the policy, which raises a TypeError once it is differentiated."
    help = "call it with its arguments"
    bad = (
        Example(
            """
            import jax


            def layer(w, x):
                return jax.numpy.sin(x @ w)


            block = jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names)  # !
            """
        ),
    )
    good = (
        Example(
            """
            import jax

            cp = jax.checkpoint_policies


            def run(layer, w, x):
                return jax.checkpoint(layer, policy=cp.save_only_these_names("out"))(w, x)
            """
        ),
        Example(
            """
            import jax

            FACTORIES = {
                "only": jax.checkpoint_policies.save_only_these_names,
                "but": jax.checkpoint_policies.save_any_names_but_these,
            }


            def policy_for(kind, names):
                return FACTORIES[kind](*names)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        found = {*_as_policy(facts), *_in_tables(facts)}
        for node in sorted(found, key=lambda n: (n.lineno, n.col_offset)):
            what = policies.source_text(facts, node)
            message = f"`{what}` makes policies, but is used as a policy without being called"
            yield self.report(facts, node, message)


def _is_factory(facts: Facts, node: ast.expr) -> bool:
    return (
        isinstance(node, (ast.Name, ast.Attribute))
        and policies.name_of(facts, node) in apis.FACTORIES
    )


def _as_policy(facts: Facts) -> Iterator[ast.expr]:
    """Factories given as the policy, or as one of two that are united."""
    expected = list(policies.policy_arguments(facts))
    for made in policies.factory_calls(facts):
        if made.name == "save_from_both_policies":
            expected += [*made.args, *(k.value for k in made.call.keywords)]
    for node in expected:
        yield from (leaf for leaf in policies.leaves(node) if _is_factory(facts, leaf))


def _in_tables(facts: Facts) -> Iterator[ast.expr]:
    """Factories that stand beside finished policies where nothing calls them."""
    for node, name in facts.policy_names:
        if name not in apis.FACTORIES or not _is_factory(facts, node):
            continue
        owner, siblings = _siblings(facts, node)
        if (
            owner is not None
            and any(_is_finished(facts, s) for s in siblings)
            and not _entries_are_called(facts, owner, node)
        ):
            yield node


def _is_finished(facts: Facts, node: ast.expr) -> bool:
    return facts.policy_of(node).kind in {"plain", "factory"}


def _siblings(facts: Facts, node: ast.expr) -> tuple[ast.AST | None, list[ast.expr]]:
    """The table, or the function that returns `node`, and everything in it."""
    parent = facts.names.parents.get(node)
    above = facts.names.parents.get(parent) if parent is not None else None
    match parent:
        case ast.Dict() if node in parent.values:
            return parent, parent.values
        case ast.List() | ast.Tuple() | ast.Set():
            return parent, parent.elts
        case ast.keyword() if isinstance(above, ast.Call) and _is_dict(facts, above):
            return above, [k.value for k in above.keywords]
        case ast.Return():
            function = facts.names.function(parent)
            if isinstance(function, ast.FunctionDef):
                returned = results.returned(function)
                return function, [leaf for value in returned for leaf in policies.leaves(value)]
    return None, []


def _is_dict(facts: Facts, call: ast.Call) -> bool:
    func = call.func
    return isinstance(func, ast.Name) and func.id == "dict" and not facts.names.bindings(func)


def _entries_are_called(facts: Facts, owner: ast.AST, node: ast.expr) -> bool:
    """Whether what the table gives is called, or may be."""
    if isinstance(owner, ast.FunctionDef):
        return any(_is_called(facts, use.node) for use in facts.uses(owner) if use.kind == "call")
    if _is_called(facts, node):
        return True
    for load in (owner, *_loads(facts, owner)):
        parent = facts.names.parents.get(load)
        match parent:
            case ast.Subscript() if parent.value is load and _is_called(facts, parent):
                return True
            case ast.Attribute(attr="items" | "values"):
                return True
            case ast.Compare() if isinstance(owner, (ast.List, ast.Tuple, ast.Set)):
                return True  # what policies are told apart by
            case ast.Attribute(attr="get" | "pop"):
                call = facts.names.parents.get(parent)
                if isinstance(call, ast.Call) and _is_called(facts, call):
                    return True
    return False


def _loads(facts: Facts, table: ast.AST) -> Iterator[ast.AST]:
    """Where the name or the attribute that holds a table is read."""
    statement = facts.names.parents.get(table)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    for target in targets:
        if isinstance(target, (ast.Name, ast.Attribute)):
            name = target.id if isinstance(target, ast.Name) else target.attr
            yield from facts.names.loads.get(name, ())
            yield from (a for a in facts.names.attributes if a.attr == name)


def _is_called(facts: Facts, value: ast.AST, depth: int = 0) -> bool:
    """Whether a value is called, here or where a function returns it to."""
    for use in facts.flow(value):
        if use.kind == "call":
            return True
        function = facts.names.function(use.node) if use.kind == "returned" else None
        if function is not None and depth < _DEPTH:
            calls = (u.node for u in facts.uses(function) if u.kind == "call")
            if any(_is_called(facts, call, depth + 1) for call in calls):
                return True
    return False
