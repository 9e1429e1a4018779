"""Tell whether all that the checkpoints of a module run is in the module, or in libraries."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

from jaxresid.linter.resolve.names import Definition, External

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

# Libraries that name no values inside themselves, unless they are given a name.
_LIBRARIES = frozenset(
    "jax jaxlib flax haiku equinox optax numpy scipy chex einops jaxtyping ml_dtypes".split()
)
# What a module of Flax or Haiku has without defining it.
_MODULE_METHODS = frozenset(
    """
    param variable sow perturb make_rng is_initializing is_mutable_collection has_variable
    get_variable put_variable
    """.split()
)


def is_closed(facts: Facts) -> bool:
    """Return whether a module checkpoints its own functions alone, and these call nothing unknown.

    What is called may be defined in the module, or belong to JAX and the libraries around it. The
    policies that the module makes are for these checkpoints.
    """
    if facts.names.star_imports or not facts.sites:
        return False
    known = _LIBRARIES | sys.stdlib_module_names
    if any(name.partition(".")[0] not in known for name in _imports(facts)):
        return False
    arguments = [site.keyword("policy") for site in facts.sites]
    origins = [o for node in arguments if node is not None for o in facts.names.origins(node)]
    taken = {inner for o in origins if isinstance(o, ast.AST) for inner in ast.walk(o)}
    if not taken.issuperset(call for call, _ in facts.policy_calls):
        return False
    targets = [target for site in facts.sites for target in facts.targets(site)]
    if not all(isinstance(target, Definition | External) for target in targets):
        return False
    return not any(_is_unknown(facts, call) for call in facts.names.calls)


def _imports(facts: Facts) -> list[str]:
    modules = []
    for node in facts.names.imports:
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        else:
            modules.append("." * node.level + (node.module or ""))
    return modules


def _is_unknown(facts: Facts, call: ast.Call) -> bool:
    """Return whether a call runs a function that the module is given: a parameter, or a field."""
    if not isinstance(call.func, ast.Name) and not (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "self"
    ):
        return False
    return any(_is_given(facts, origin, call.func) for origin in facts.names.origins(call.func))


def _is_given(facts: Facts, origin: object, func: ast.expr) -> bool:
    if origin is not None:
        return False
    if not isinstance(func, ast.Name):
        return getattr(func, "attr", "") not in _MODULE_METHODS
    bindings = facts.names.bindings(func)
    if not bindings:
        return False  # a builtin
    return not any(b.kind == "for" and b.value is not None for b in bindings)
