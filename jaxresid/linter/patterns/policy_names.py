"""Find where policies are named, made and given; shared by the policy rules (JXR2)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.linter.resolve import apis
from jaxresid.linter.resolve.names import External

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class FactoryCall(NamedTuple):
    """A call of a policy factory, or a `functools.partial` of one."""

    call: ast.Call
    name: str
    args: tuple[ast.expr, ...]

    def keyword(self, name: str) -> ast.expr | None:
        """Return the value given to a keyword, None where it is not given."""
        return next((k.value for k in self.call.keywords if k.arg == name), None)


def name_of(facts: Facts, node: ast.expr) -> str | None:
    """Return the member of `jax.checkpoint_policies` that an expression certainly is, by its name.

    The name, such as `dots_saveable`, need not exist in jax. None is returned for anything else.
    """
    policies = {
        apis.policy_name(origin.qualname) if isinstance(origin, External) else None
        for origin in facts.names.origins(node)
    }
    return policies.pop() if len(policies) == 1 else None


def leaves(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions that a conditional expression chooses from."""
    match node:
        case ast.IfExp():
            yield from leaves(node.body)
            yield from leaves(node.orelse)
        case ast.BoolOp():
            for value in node.values:
                yield from leaves(value)
        case _:
            yield node


def policy_arguments(facts: Facts) -> Iterator[ast.expr]:
    """Yield the expressions given to `policy=` of the checkpoint family or of its partials."""
    arguments: dict[ast.expr, None] = {}
    for site in facts.sites:
        node = site.keyword("policy")
        if node is not None:
            arguments[node] = None
    for call in facts.names.calls:
        for keyword in call.keywords:
            if (
                keyword.arg == "policy"
                and keyword.value not in arguments
                and _is_checkpoint_call(facts, call)
            ):
                arguments[keyword.value] = None
    yield from arguments


def _is_checkpoint_call(facts: Facts, call: ast.Call) -> bool:
    callee = call.args[0] if call.args and facts.callees.is_partial(call) else call.func
    return facts.callees.role(callee, "checkpoint") is not None


def factory_calls(facts: Facts) -> Iterator[FactoryCall]:
    """Yield the calls of policy factories."""
    for call, _ in facts.policy_calls:
        name = name_of(facts, call.func)
        if name in apis.FACTORIES:
            yield FactoryCall(call, name, tuple(call.args))
    if not any(name in apis.FACTORIES for _, name in facts.policy_names):
        return
    for call in facts.names.calls:
        if call.args and isinstance(call.args[0], (ast.Name, ast.Attribute)):
            name = name_of(facts, call.args[0])
            if name in apis.FACTORIES and facts.callees.is_partial(call):
                yield FactoryCall(call, name, tuple(call.args[1:]))


def source_text(facts: Facts, node: ast.expr) -> str:
    """Return an expression as the user wrote it, on one line."""
    text = facts.source.segment(facts.source.span(node))
    return text if "\n" not in text else " ".join(ast.unparse(node).split())
