"""Tell which parameters `static_argnums` of a checkpoint refers to.

That is: the parameters of the function as the API counts them, and the positions that the visible
calls fill.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.linter.patterns import branches, checkpoint_calls, nn_modules
from jaxresid.linter.resolve.callees import MAX_DEPTH
from jaxresid.linter.resolve.names import External, FunctionNode, Origin

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site, Use

_LINEN = frozenset({"linen", "partitioning"})
# What a function may go through on the way to its call without its arguments being shifted.
_TRANSPARENT = frozenset({"class", "instance", "element", "iterated", "jit", "vmap", "argument"})
# What of flax.linen runs a class or a function with the arguments that it is given itself.
_LIFTED = ("flax.linen.", "flax.linen.transforms.", "flax.linen.partitioning.")
# Decorators that leave a signature as it is.
_PLAIN_DECORATORS = frozenset(
    {"flax.linen.compact", "flax.linen.nowrap", "jax.named_call", "jax.named_scope"}
)
_ARRAY_NAMES = frozenset(
    """
    x h y inputs hidden_states hidden attention_mask mask bias attention_bias position_ids
    encoder_hidden_states encoder_attention_mask positions segment_ids
    """.split()
)


class StaticArguments(NamedTuple):
    """The static arguments of a site.

    Attributes:
      value: its value, where it is a literal.
      indices: the value as integers, () where it is none of the forms that the API takes.
    """

    site: Site
    node: ast.expr
    value: object
    indices: tuple[int, ...]


class Signature(NamedTuple):
    """The parameters of a checkpointed function, as the API counts them from 0.

    Attributes:
      home: the facts of the module that defines the function.
      parameters: the parameters that can be given by position and are counted.
      open: whether it takes `*args` too.
    """

    home: Facts
    function: FunctionNode
    parameters: tuple[ast.arg, ...]
    defaults: dict[str, ast.expr]
    open: bool


class VisibleCall(NamedTuple):
    """A visible call of a checkpointed function.

    Attributes:
      shift: how many counted arguments come before the first that the call gives.
    """

    call: ast.Call
    shift: int

    def reaches(self, index: int) -> bool:
        """Return whether the argument with an index is given by position."""
        return index - self.shift < len(self.call.args)

    def names(self, name: str) -> bool:
        """Return whether the argument with a name is given by keyword."""
        return any(k.arg == name for k in self.call.keywords)


def literal_static_arguments(facts: Facts) -> Iterator[StaticArguments]:
    """Yield the static arguments, where they are literal, of the sites whose API is certain."""
    for site in facts.sites:
        if site.api.library not in {"jax", "nnx", *_LINEN} or site.api.loop:
            continue
        node = _given(site)
        if node is None or checkpoint_calls.definite_site_api(facts, site) is None:
            continue
        if checkpoint_calls.is_error_expected(facts, site.node):
            continue
        value = facts.names.constant(node)
        if value is not ...:
            yield StaticArguments(site, node, value, _indices(value))


def _given(site: Site) -> ast.expr | None:
    position = 5 if site.api.library in _LINEN else None
    return site.arguments.get(position, "static_argnums")


def static_indices(facts: Facts, site: Site) -> tuple[int, ...] | None:
    """Return the positions that a site marks, None where they are not literal."""
    node = _given(site)
    if node is None:
        return ()
    value = facts.names.constant(node)
    indices = _indices(value)
    return indices if indices or value in ((), []) else None


def _indices(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        return ()
    return tuple(values)


def signature(facts: Facts, site: Site) -> Signature | None:
    """Return the parameters of what a site checkpoints, None where they are not visible."""
    origin = site.definition or _inside_lifted(facts, site.target)
    home, definition = facts.definition(origin) or (facts, origin)
    if home is not facts and facts.is_class(site) != isinstance(definition, ast.ClassDef):
        return None
    own_attribute = (
        isinstance(site.target, ast.Attribute)
        and isinstance(site.target.value, ast.Name)
        and site.target.value.id in {"self", "cls"}
    )
    if isinstance(definition, ast.ClassDef):
        if site.api.library not in _LINEN or "methods" in site.arguments.keywords:
            return None
        definition = facts.names.method(definition, "__call__")
    elif isinstance(definition, ast.Call) and site.target is not None:
        cls = nn_modules.instance_class(facts, site.target)
        if not isinstance(cls, ast.ClassDef) or nn_modules.library(facts, cls) != "haiku":
            return None
        definition, own_attribute = facts.names.method(cls, "__call__"), True
    elif own_attribute and site.api.library not in {"jax", "haiku"}:
        return None
    if not isinstance(definition, (ast.FunctionDef, ast.Lambda)) or not _is_plain(
        home, site, definition
    ):
        return None
    args = definition.args
    parameters = [*args.posonlyargs, *args.args]
    if own_attribute and home.names.class_of(definition) is not None:
        parameters = parameters[1:]
    defaulted = [*args.posonlyargs, *args.args][-len(args.defaults) or None :]
    defaults = {a.arg: d for a, d in zip(defaulted, args.defaults, strict=False)}
    keywords = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    defaults |= {a.arg: d for a, d in keywords if d is not None}
    return Signature(
        home, definition, tuple(parameters[site.api.implicit :]), defaults, args.vararg is not None
    )


def _is_plain(facts: Facts, site: Site, function: FunctionNode) -> bool:
    """Return whether the decorators below the checkpoint leave the signature as it is."""
    if isinstance(function, ast.Lambda):
        return True
    decorators = function.decorator_list
    if site.definition is function:
        decorators = decorators[decorators.index(site.node) + 1 :]
    for decorator in decorators:
        origin = facts.names.single_origin(decorator)
        if not isinstance(origin, External):
            return False
        roles = facts.callees.roles(decorator)
        transform = len(roles) == 1 and roles[0].kind == "transform" and roles[0].entry == "jit"
        if origin.qualname not in _PLAIN_DECORATORS and not transform:
            return False
    return True


def _inside_lifted(facts: Facts, node: ast.expr | None) -> Origin:
    """Return what an expression is, for `nn.scan(Block, ...)` and the like the class inside."""
    origin = facts.names.single_origin(node)
    for _ in range(MAX_DEPTH):
        if not isinstance(origin, ast.Call) or not _is_lifted(facts, origin) or not origin.args:
            break
        origin = facts.names.single_origin(origin.args[0])
    return origin


def _is_lifted(facts: Facts, call: ast.Call) -> bool:
    roles = facts.callees.roles(call.func)
    return len(roles) == 1 and (
        roles[0].qualname.startswith(_LIFTED) and roles[0].kind in {"loop", "transform"}
    )


def visible_calls(facts: Facts, site: Site) -> list[VisibleCall]:
    """Return the visible calls of a checkpointed function, of its loop and of its derivative.

    Calls with positional arguments that are not all visible are left out.
    """
    uses = facts.flows.site_uses(site)
    if facts.is_class(site) or not isinstance(_inside_lifted(facts, site.target), ast.ClassDef):
        return list(_calls(facts, site, uses))
    return list(_calls_of_instances(facts, site, uses))  # `nn.remat(nn.scan(Block))()(x)`


def _calls_of_instances(facts: Facts, site: Site, uses: tuple[Use, ...]) -> Iterator[VisibleCall]:
    for use in uses:
        if use.kind == "call" and _TRANSPARENT.issuperset(use.through):
            yield from _calls(facts, site, facts.flows.uses(use.node), instance=True)


def _calls(
    facts: Facts, site: Site, uses: tuple[Use, ...], *, instance: bool = False, depth: int = 0
) -> Iterator[VisibleCall]:
    for use in uses:
        call = use.node
        if not isinstance(call, ast.Call) or not _TRANSPARENT.issuperset(use.through):
            continue
        if use.kind == "loop" and _is_lifted(facts, call):
            inner = facts.flows.uses(call)
            if "class" in use.through:
                yield from _calls_of_instances(facts, site, inner)
            elif depth < MAX_DEPTH:
                yield from _calls(facts, site, inner, depth=depth + 1)
        elif use.kind == "derivative" and facts.callees.role(call.func, "derivative") is not None:
            yield from _calls(facts, site, facts.flows.uses(call), depth=depth + 1)
        elif (
            use.kind == "call"
            and not any(isinstance(a, ast.Starred) for a in call.args)
            and getattr(call.func, "attr", "") not in {"apply", "init"}
        ):
            shift = _shift(facts, site, call, use.through) + int(instance)
            yield VisibleCall(call, shift)


def _shift(facts: Facts, site: Site, call: ast.Call, through: tuple[str, ...]) -> int:
    implicit = "instance" in through or (
        site.definition is not None
        and facts.names.class_of(site.definition) is not None
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "self"
    )
    return int(implicit) - site.api.implicit


def is_under_condition(facts: Facts, node: ast.AST) -> bool:
    """Return whether a call is made in one of several branches of its function."""
    around = facts.names.path(node, inside=True)
    return any(isinstance(p, (ast.If, ast.IfExp, ast.Try, ast.Match)) for p, _ in around)


def is_array(signature: Signature, parameter: ast.arg) -> bool:
    """Return whether a parameter is an array by its annotation, or without one by its name."""
    if parameter.annotation is not None:
        text = ast.unparse(parameter.annotation).strip("'\"").removesuffix(" | None")
        return text.rstrip("]").endswith(("Array", "ndarray"))
    return parameter.arg in _ARRAY_NAMES and parameter.arg not in signature.defaults


def is_flag(signature: Signature, parameter: ast.arg) -> bool:
    """Return whether a parameter is a bool that the function branches on."""
    default = signature.defaults.get(parameter.arg)
    literal = isinstance(default, ast.Constant) and isinstance(default.value, bool)
    annotated = parameter.annotation is not None and ast.unparse(parameter.annotation) == "bool"
    if not literal and not annotated:
        return False
    return branches.decision(signature.home, signature.function, parameter.arg) is not None
