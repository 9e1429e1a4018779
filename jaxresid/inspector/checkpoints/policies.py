"""Describe checkpoint policies, read the names they want, and ask them about eqns.

A policy is an opaque callable. It is asked as JAX asks it; only its description and the names that
it was made with are read off it, to tell a user which of the names never occur.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, summary
from jaxresid.jax_compat.jaxpr_types import Eqn

# Factories whose names are those to save or offload; the others' are exceptions.
_WANT = frozenset({"save_only_these_names", "save_and_offload_only_these_names"})
_NOTHING = "nothing_saveable"


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of a policy about the eqns of a checkpoint's body.

    Attributes:
      saves: whether it saves or offloads any of them.
      offloads: whether it offloads any.
      names: the checkpoint_names in the body.
      saved_names: those of them that it saves or offloads.
    """

    saves: bool
    offloads: bool
    names: frozenset[str]
    saved_names: frozenset[str]


def description(policy: Any) -> str | None:
    """Return the policy as a user writes it, as far as it can be told; None without a policy."""
    if policy is None:
        return None
    if policy is False:
        return "False"
    builtin = _builtins().get(_identity(policy))
    if builtin is not None:
        return builtin
    while isinstance(policy, functools.partial):
        policy = policy.func
    factory = _factory(policy)
    if factory is None:
        name = getattr(policy, "__qualname__", None) or type(policy).__name__
        return (
            name.replace(".<locals>", "").rpartition(".")[2] if "lambda" not in name else "lambda"
        )
    inner = [description(p) for p in _closure_values(policy, callable)]
    listed = [*(repr(n) for n in sorted(_names_of(policy))), *(i for i in inner if i)]
    return f"{factory}({', '.join(listed)})" if listed else factory


def wanted_names(policy: Any) -> frozenset[str]:
    """Return the names that a policy was made to save or offload, where they can be told."""
    found = set(_names_of(policy)) if _factory(policy) in _WANT else set()
    for inner in _closure_values(policy, callable):
        found |= wanted_names(inner)
    return frozenset(found)


def means_nothing(policy: Any) -> bool:
    """Return whether saving nothing is the purpose of the policy."""
    return policy is None or policy is False or description(policy) == _NOTHING


def answers(policy: Any, eqns: Iterable[Eqn], site: str) -> Answers:
    """Ask a policy about eqns.

    Args:
      policy: the policy; None saves nothing, nor does False, which is what
        `nothing_saveable()` is.
      eqns: the eqns in the checkpoint, see `nesting.eqns_in`.
      site: the checkpoint, for a message: `model.py:12 block`.

    Returns:
      The policy's answers, summed up.

    Raises:
      InputsError: the policy raises, or answers with something that is no answer.
    """
    names, saved = set(), set()
    saves = offloads = False
    for eqn in eqns:
        name = (
            str(jax_compat.params(eqn)["name"])
            if jax_compat.primitive_name(eqn) == "name"
            else None
        )
        answer = False if policy is None or policy is False else _ask(policy, eqn, site)
        if name is not None:
            names.add(name)
            saved |= {name} if answer else set()
        saves = saves or bool(answer)
        offloads = offloads or answer == "offload"
    return Answers(saves, offloads, frozenset(names), frozenset(saved))


def _ask(policy: Any, eqn: Eqn, site: str) -> Any:
    primitive, params = jax_compat.as_policies_see(eqn)
    try:
        answer = policy(primitive, *(v.aval for v in eqn.invars), **params)
    except Exception as e:
        raise InputsError(
            f"the policy {description(policy)} of the checkpoint at {site} fails:"
            f" {summary(e)}{_uncalled(policy)}"
        ) from e
    if isinstance(answer, bool) or type(answer).__name__ == "bool_":
        return bool(answer)
    case = answer.__name__ if isinstance(answer, type) else type(answer).__name__
    if case in ("SaveableType", "Saveable"):
        return True
    if case in ("RecomputeType", "Recompute", "NotSaveable"):
        return False
    if case in ("OffloadableType", "Offloadable"):
        return "offload"
    what = "returns None" if answer is None else f"returns {_described(answer)}"
    hint = _uncalled(policy) or ("; it makes a policy, so call it" if callable(answer) else "")
    raise InputsError(
        f"the policy {description(policy)} of the checkpoint at {site} {what}; it must return"
        f" True or False{hint}"
    )


def _described(answer: Any) -> str:
    return "a function" if callable(answer) else f"{answer!r:.40}"


def _uncalled(policy: Any) -> str:
    name = getattr(policy, "__name__", "")
    if name and name in _factories():
        return f"; {name} makes a policy, so call it: {name}(...)"
    return ""


def _identity(policy: Any) -> Any:
    # Some versions make a new bound method at each access: equal, not identical.
    try:
        hash(policy)
    except TypeError:
        return id(policy)
    return policy


def builtins() -> dict[str, Any]:
    """Return JAX's policies that need no parameters, by name, each once."""
    policies = jax_compat.import_jax().checkpoint_policies
    return {name: getattr(policies, name) for name in dict.fromkeys(_builtins().values())}


@functools.cache
def _builtins() -> dict[Any, str]:
    found: dict[Any, str] = {}
    policies = jax_compat.import_jax().checkpoint_policies
    for name in dir(policies):
        value = getattr(policies, name)
        is_policy = callable(value) and not isinstance(value, type)  # 0.11 has classes there
        if not name.startswith("_") and is_policy and name not in _factories():
            found.setdefault(_identity(value), name)
    # Of two names for one policy the one that says what it does.
    for name in ("dots_saveable", "dots_with_no_batch_dims_saveable"):
        value = getattr(policies, name, None)
        if value is not None:
            found[_identity(value)] = name
    return found


@functools.cache
def _factories() -> frozenset[str]:
    """Return the names in jax.checkpoint_policies that make policies."""
    names = dir(jax_compat.import_jax().checkpoint_policies)
    return frozenset(n for n in names if n.startswith(("save_", "offload_")))


def _factory(policy: Any) -> str | None:
    """Return the name of the factory of jax.checkpoint_policies that made a policy.

    Such a policy is a function inside the factory, or since JAX 0.11 an instance of a class named
    like it. None where no factory made the policy.
    """
    outer, inside, _ = getattr(policy, "__qualname__", "").partition(".")
    if inside and outer in _factories():
        return outer
    made = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(policy).__name__).lstrip("_")
    return made if made in _factories() else None


def _closure_values(policy: Any, is_wanted: Callable[[Any], bool]) -> list[Any]:
    """Return what a policy was made with: the variables of its closure, or its attributes."""
    cells = [c.cell_contents for c in getattr(policy, "__closure__", None) or ()]
    cells += list(getattr(policy, "__dict__", {}).values())
    for slot in getattr(type(policy), "__slots__", ()):
        cells.append(getattr(policy, slot, None))
    return [c for c in cells if is_wanted(c)]


def _names_of(policy: Any) -> Set[str]:
    found: set[str] = set()
    for value in _closure_values(policy, lambda v: isinstance(v, str | tuple | list | Set)):
        if isinstance(value, str):
            continue  # memory kinds
        found |= {v for v in value if isinstance(v, str)}
    return found
