"""Find the names that policies are given, and list known names from outside the project."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.linter.resolve import apis

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts
    from jaxresid.linter.resolve.sites import Policy

# What libraries name inside themselves, so that a policy may use it though no `checkpoint_name` of
# the project has it.
LIBRARY_NAMES = frozenset(
    {
        # Transformer Engine's fused attention, in its forward rules; also the name that callers
        # usually have the splash attention kernels use (`residual_checkpoint_name`).
        "context",
        # Layers of praxis.
        *"combined_qkv_proj query_proj key_proj value_proj logits out_proj".split(),
        *"ffn1 ffn2 iteration_input transformer_layer_out".split(),
        # Quantized matmuls of AQT.
        *"qlhs qrhs lhs_scale rhs_scale".split(),
        # The flash attention of axlearn.
        "flash_residuals",
    }
)

SAVING = frozenset({"save_only_these_names", "save_and_offload_only_these_names"})
EXCLUDING = (
    (apis.NAME_FACTORIES | apis.OFFLOAD_FACTORIES) - SAVING - {"offload_dot_with_no_batch_dims"}
)
_LISTS = frozenset({"names_which_can_be_saved", "names_which_can_be_offloaded"})


class Mention(NamedTuple):
    """A literal name that a policy is given.

    Attributes:
      node: the argument or element as written.
      literal: the string itself, which may be written elsewhere.
    """

    node: ast.expr
    literal: ast.Constant
    name: str
    factory: str


def names_given(facts: Facts, call: ast.Call, factory: str) -> tuple[Mention | None, ...]:
    """Return the names that one call of a policy factory gets, None for what is not literal."""
    names: list[Mention | None] = []
    for keyword in call.keywords:
        if keyword.arg in _LISTS:
            names += _elements(facts, keyword.value, factory)
        elif keyword.arg is None or factory != "save_and_offload_only_these_names":
            names.append(None)
    for arg in call.args:
        if isinstance(arg, ast.Starred):
            names += _elements(facts, arg.value, factory)
        else:
            names.append(_literal(facts, arg, factory))
    return tuple(names)


def _elements(facts: Facts, node: ast.expr, factory: str) -> Iterator[Mention | None]:
    """Yield the names in a list, which may be written elsewhere; None for what is not literal."""
    origin = facts.names.single_origin(node)
    if isinstance(origin, ast.Subscript):  # `NAMES["minimal"]`, `NAMES[config.remat]`
        for value in _entries(facts, origin):
            yield from _elements(facts, value, factory)
        return
    if not isinstance(origin, (ast.List, ast.Tuple, ast.Set)):
        yield None
        return
    for element in origin.elts:
        if isinstance(element, ast.Starred):
            yield from _elements(facts, element.value, factory)
        else:
            yield _literal(facts, element, factory)


def _entries(facts: Facts, node: ast.Subscript) -> list[ast.expr]:
    """Return the lists in a table that a subscript of it may be, none where it is not visible."""
    table = facts.names.single_origin(node.value)
    if not isinstance(table, ast.Dict):
        return []
    word = facts.names.constant(node.slice)
    return [
        value
        for key, value in zip(table.keys, table.values, strict=True)
        if word is ... or facts.names.constant(key) == word
    ]


def _literal(facts: Facts, node: ast.expr, factory: str) -> Mention | None:
    origin = facts.names.single_origin(node)
    if isinstance(origin, ast.Constant) and isinstance(origin.value, str):
        return Mention(node, origin, origin.value, factory)
    return None


def mentions(facts: Facts) -> tuple[Mention | None, ...]:
    """Return the names that a module's policies are given, None for each that is not literal."""
    return tuple(
        mention
        for call, factory in facts.policy_calls
        if factory in SAVING | EXCLUDING
        for mention in names_given(facts, call, factory)
    )


class PolicyNames(NamedTuple):
    """What the policies of one module do with names.

    Attributes:
      handed_on: whether a factory over names goes where its call is not visible.
      given: the names that policies are given, each with the factory; None for what is not literal.
      nliterals: how many string literals each of the names is written as.
    """

    factories: frozenset[str]
    handed_on: bool
    given: frozenset[tuple[str, str] | None]
    nliterals: Mapping[str, int]


def policy_names(facts: Facts) -> PolicyNames:
    """Return what the policies of a module do with names."""
    callees = {call.func for call, _ in facts.policy_calls}
    mentioned = mentions(facts)
    literals = {mention.literal: mention.name for mention in mentioned if mention is not None}
    return PolicyNames(
        frozenset(factory for _, factory in facts.policy_calls),
        any(
            name in SAVING | apis.NAME_FACTORIES and node not in callees
            for node, name in facts.policy_names
        ),
        frozenset((m.name, m.factory) if m is not None else None for m in mentioned),
        Counter(literals.values()),
    )


def defined_names(facts: Facts) -> Mapping[str | None, int]:
    """Return the names that a module's calls of `checkpoint_name` give.

    Each is counted as often as there are literals of it; the computed ones are None.
    """
    origins: dict[str | None, set[object]] = {}
    for named in facts.named:
        origins.setdefault(named.name, set()).add(facts.names.single_origin(named.argument))
    return {name: len(found) for name, found in origins.items()}


def computed_names(facts: Facts) -> frozenset[tuple[str, str]]:
    """Return how the names begin and end that a module's calls of `checkpoint_name` compute.

    `f"layer_{i}"` begins with `layer_`; both are empty where nothing is known.
    """
    ends_of_names = set()
    for named in facts.named:
        if named.name is None:
            origin = facts.names.single_origin(named.argument)
            parts = origin.values if isinstance(origin, ast.JoinedStr) else []
            ends = (parts[0], parts[-1]) if parts else ()
            texts = [e.value if isinstance(e, ast.Constant) else "" for e in ends] or ["", ""]
            ends_of_names.add((str(texts[0]), str(texts[-1])))
    return frozenset(ends_of_names)


def saved_names(facts: Facts, policy: Policy) -> frozenset[str]:
    """Return the literal names that a policy saves or offloads, as far as they are visible."""
    if policy.kind != "factory" or policy.call is None or policy.name is None:
        return frozenset()
    if policy.name == "save_from_both_policies":
        both = (saved_names(facts, facts.policy_of(arg)) for arg in policy.call.args)
        return frozenset().union(*both)
    if policy.name not in SAVING:
        return frozenset()
    return frozenset(m.name for m in names_given(facts, policy.call, policy.name) if m is not None)
