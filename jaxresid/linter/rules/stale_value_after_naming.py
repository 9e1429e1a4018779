from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.resolve import stages
from jaxresid.linter.resolve.names import Binding, External
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Named

_ABSTRACT = frozenset({"shape", "dtype", "ndim", "size", "sharding", "weak_type", "aval"})
# What reads no value of an array, or is not part of what is differentiated.
_HARMLESS = frozenset(
    {
        *(f"jax.numpy.{n}" for n in "shape ndim size zeros_like ones_like full_like".split()),
        *(f"jax.numpy.{n}" for n in "empty_like result_type".split()),
        *(f"jax.lax.{n}" for n in "full_like axis_size stop_gradient".split()),
        *(f"jax.debug.{n}" for n in "print callback breakpoint".split()),
        *(f"jax.{n}" for n in "typeof eval_shape ShapeDtypeStruct".split()),
    }
)
_HARMLESS_BUILTINS = frozenset({"len", "type", "isinstance", "print", "id", "repr"})
_FOLLOWED = 3


class StaleValueAfterNaming(Rule):
    """The value from before checkpoint_name is read, although another variable holds the named one.

    ## What it does
    Finds `z = checkpoint_name(y, "a")` where `y`, a local variable, is read later in the same
    function. Reading its shape or dtype is fine, and so is adding it to what is returned, which
    keeps no residual of it.

    ## Why is this bad?
    Only `z` has the name. Code that reads `y` makes JAX recompute `y`, even if `z` is saved: memory
    is spent and the recomputation stays. If nothing reads `z`, the name does nothing at all.

    ## Use instead
    Bind the result to the same name, `y = checkpoint_name(y, "a")`, or read `z`.

    ## When is this fine?
    Where one path is meant to be recomputed and the other is not; then silence the line.
    """

    code = "JXR304"
    name = "stale-value-after-naming"
    severity = "warning"
    why = "Only the result of checkpoint_name is saved; the value it was given is recomputed."
    help = "bind the result of `checkpoint_name` to the name that is read later"
    bad = (
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @functools.partial(
                jax.checkpoint,
                policy=jax.checkpoint_policies.save_only_these_names("a"),
            )
            def block(w, x):
                y = x @ w
                z = checkpoint_name(y, "a")  # !
                return jnp.sin(jnp.sin(z) @ w + jnp.cos(y))
            """
        ),
    )
    good = (
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @functools.partial(
                jax.checkpoint,
                policy=jax.checkpoint_policies.save_only_these_names("a"),
            )
            def block(w, x):
                y = x @ w
                y = checkpoint_name(y, "a")
                return jnp.sin(jnp.sin(y) @ w + jnp.cos(y))
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for named in facts.named:
            binding = _other_target(facts, named)
            if binding is None:
                continue
            assert isinstance(named.value, ast.Name)
            reads = list(_later_reads(facts, named, named.value))
            is_read = any(True for _ in facts.names.loads_of(binding))
            if is_read:
                reads = [r for r in reads if not _only_returned(facts, r)]
            if reads:
                yield self.report(
                    facts,
                    named.node,
                    _message(named, named.value.id, binding.name, is_read),
                    related=stages.related_place(
                        facts, reads[0], f"`{named.value.id}` is read here"
                    ),
                )


def _message(named: Named, before: str, after: str, is_read: bool) -> str:
    name = f"`{named.name}`" if named.name else "the name"
    if not is_read:
        return (
            f"`{before}` is read later instead of `{after}`, so {name} names nothing that is used"
        )
    return f"`{before}` is read later although only `{after}` has {name}, so it is recomputed"


def _other_target(facts: Facts, named: Named) -> Binding | None:
    """What a named value is bound to, where it is a local of another name than what it was."""
    names = facts.names
    value, statement = named.value, names.parents.get(named.node)
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)):
            function = names.function(statement)
        case _:
            return None
    if not isinstance(value, ast.Name) or value.id == target or function is None:
        return None
    bindings = names.bindings(value)
    if not bindings or any(
        b.kind not in {"assign", "other"} or b.owner is not function for b in bindings
    ):
        return None
    return next((b for b in names.scopes[value].bindings[target] if b.node is statement), None)


def _later_reads(facts: Facts, named: Named, value: ast.Name) -> Iterator[ast.Name]:
    """Where what `value` holds is read after its naming, in a way that needs it."""
    names = facts.names
    statement = names.statement(named.node)
    bindings = names.bindings(value)
    for load in names.loads[value.id]:
        if (
            load is not value
            and names.scopes[load] is names.scopes[value]
            and _follows(facts, statement, load)
            and names.bindings(load) == bindings
            and not _is_harmless(facts, load)
        ):
            yield load


def _follows(facts: Facts, statement: ast.stmt, node: ast.AST) -> bool:
    """Whether `node` stands in, or under, a later statement of the same block."""
    parent = facts.names.parents[statement]
    while isinstance(parent, (ast.With, ast.AsyncWith)):  # its body runs in any case
        if parent in facts.names.ancestors(node):
            break
        statement, parent = parent, facts.names.parents[parent]
    child = node
    for ancestor in facts.names.ancestors(node):
        if ancestor is parent:
            break
        child = ancestor
    for _, block in ast.iter_fields(parent):
        if isinstance(block, list) and statement in block and child in block:
            return block.index(statement) < block.index(child)
    return False


def _is_harmless(facts: Facts, load: ast.expr) -> bool:
    """Whether a read needs no value: of the shape, for a message, in a choice."""
    parent = facts.names.parents[load]
    if isinstance(parent, ast.keyword):
        parent = facts.names.parents[parent]
    match parent:
        case ast.Attribute(attr=attr):
            return attr in _ABSTRACT
        case ast.IfExp() | ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=value) if value is load:
            return True  # an alias: whoever reads that one is not followed
        case ast.Call(func=func) if func is not load:
            return facts.role(func, "name") is not None or _is_harmless_call(facts, func)
    return any(isinstance(a, ast.Assert) for a in facts.names.ancestors(load))


def _is_harmless_call(facts: Facts, func: ast.expr) -> bool:
    if isinstance(func, ast.Name) and func.id in _HARMLESS_BUILTINS:
        return not facts.names.bindings(func)
    if isinstance(func, ast.Attribute) and func.attr == "sow":
        return True  # linen: for whoever inspects the model
    origin = facts.names.single_origin(func)
    return isinstance(origin, External) and (
        origin.qualname in _HARMLESS or origin.qualname.startswith(("chex.assert", "logging."))
    )


def _only_returned(facts: Facts, node: ast.expr, depth: int = 0) -> bool:
    """Whether a value is only added to what the function returns."""
    names = facts.names
    parent = names.parents[node]
    match parent:
        case ast.BinOp(op=ast.Add() | ast.Sub()) | ast.Tuple() | ast.List():
            return _only_returned(facts, parent, depth)
        case ast.Return():
            return True
        case ast.Assign(targets=[ast.Name(id=name) as target]) if depth < _FOLLOWED:
            bindings = names.scopes[target].bindings[name]
            loads = [w for b in bindings if b.node is parent for w in names.loads_of(b)]
            return all(_only_returned(facts, load, depth + 1) for load in loads)
    return False
