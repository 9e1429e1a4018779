"""Write the arguments of a checkpoint as it takes them (JXR501)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix
from jaxresid.linter.fixes import edits

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site


def with_function(facts: Facts, call: ast.Call) -> Fix | None:
    """Return the fix of a checkpoint that is called with options only."""
    if not isinstance(call.func, (ast.Name, ast.Attribute)):
        return None
    name = ast.unparse(call.func)
    parent = facts.names.parents.get(call)
    if isinstance(parent, ast.Call) and parent.func is call:
        edit = _inlined(facts, call, parent)
        return Fix(f"Give `{name}` the function", (edit,), "safe") if edit else None
    source = facts.source
    if not call.keywords:
        rest = source.text[source.end(source.span(call.func)) : _end(facts, call)]
        if rest.replace(" ", "") != "()":
            return None
        return Fix("Remove the parentheses", (edits.replace(source, call, name),), "safe")
    return _partial(facts, call, name)


def _end(facts: Facts, call: ast.Call) -> int:
    return facts.source.end(facts.source.span(call))


def _inlined(facts: Facts, call: ast.Call, outer: ast.Call) -> Edit | None:
    """`jax.checkpoint(policy=p)(f)` -> `jax.checkpoint(f, policy=p)`."""
    if len(outer.args) != 1 or outer.keywords or isinstance(outer.args[0], ast.Starred):
        return None
    source = facts.source
    given = source.segment(source.span(outer.args[0]))
    start = source.end(source.span(call.func))
    text = source.text[start : _end(facts, call)]
    tail = source.text[_end(facts, call) : _end(facts, outer)]
    if "#" in tail or not text.startswith("("):
        return None
    text = f"({given}, {text[1:]}" if call.keywords else f"({given})"
    return Edit(source.between(start, _end(facts, outer)), text)


def _partial(facts: Facts, call: ast.Call, name: str) -> Fix | None:
    """`jax.checkpoint(policy=p)` -> `functools.partial(jax.checkpoint, policy=p)`."""
    source = facts.source
    partial = edits.name_for(facts, "functools.partial")
    head = (partial or "functools").partition(".")[0]
    if _is_rebound(facts, head, imported=partial is not None):
        return None
    imports = () if partial else (edits.add_import(facts, "functools"),)
    start, end = source.start(source.span(call)), source.end(source.span(call.func))
    if source.text[end : end + 1] != "(":
        return None
    comma = "," if source.text[end + 1 : end + 2] in {"\n", "\r"} else ", "
    edit = Edit(
        source.between(start, end + 1),
        f"{partial or 'functools.partial'}({name}{comma}",
    )
    return Fix("Use `functools.partial`", (*imports, edit), "safe")


def _is_rebound(facts: Facts, name: str, *, imported: bool) -> bool:
    """Whether a name means, or somewhere in the module may mean, something else."""
    if not imported and name in facts.names.root.bindings:
        return True
    return any(n.id == name and not isinstance(n.ctx, ast.Load) for n in facts.names.names) or any(
        isinstance(n, ast.arg) and n.arg == name for n in ast.walk(facts.names.tree)
    )


def policy_by_keyword(facts: Facts, site: Site) -> Fix | None:
    """Return the fix `jax.checkpoint(f, dots_saveable)` -> `jax.checkpoint(f, policy=...)`."""
    call = site.node
    if site.form != "call" or not isinstance(call, ast.Call) or len(call.args) != 2:
        return None
    policy = call.args[1]
    if len(site.calls) != 1 or facts.policy_of(policy).kind not in {"plain", "factory"}:
        return None
    start = facts.source.start(facts.source.span(policy))
    if call.keywords or facts.source.text[:start].rstrip()[-1:] != ",":
        return None
    edit = Edit(facts.source.between(start, start), "policy=")
    return Fix("Give the policy by keyword", (edit,), "safe")


def called_afterwards(facts: Facts, site: Site) -> Fix | None:
    """Return the fix `jax.checkpoint(f(x))` -> `jax.checkpoint(f)(x)`."""
    call, inner = site.node, site.target
    if not isinstance(call, ast.Call) or not isinstance(inner, ast.Call):
        return None
    parent = facts.names.parents.get(call)
    if inner not in call.args or (isinstance(parent, ast.Call) and parent.func is call):
        return None
    source = facts.source
    if not isinstance(inner.func, (ast.Name, ast.Attribute)):
        return None
    start, end = source.end(source.span(inner.func)), source.end(source.span(inner))
    after = source.end(source.span(call))
    arguments = source.text[start:end]
    if not arguments.startswith("(") or "\n" in arguments:
        return None
    moved = (Edit(source.between(start, end), ""), Edit(source.between(after, after), arguments))
    return Fix("Call what the checkpoint returns", moved, "unsafe")


def static_positions(
    facts: Facts, site: Site, keyword: ast.keyword | ast.expr, names: ast.expr
) -> Fix | None:
    """Return the fix that gives `static_argnums` in place of `static_argnames`."""
    indices = _indices(facts, site, names)
    if not isinstance(keyword, ast.keyword) or site.api.library != "jax" or not indices:
        return None
    if "static_argnums" in site.arguments.keywords or site.arguments.dynamic:
        return None
    text = f"static_argnums=({', '.join(map(str, indices))}{',' if len(indices) == 1 else ''})"
    start = facts.source.start(facts.source.span(keyword))
    end = facts.source.end(facts.source.span(names))
    edit = Edit(facts.source.between(start, end), text)
    return Fix("Give the positions instead of the names", (edit,), "unsafe")


def _indices(facts: Facts, site: Site, node: ast.expr) -> list[int]:
    """Where the named arguments stand in the function, where that is visible."""
    function = site.definition or facts.names.single_origin(site.target)
    if not isinstance(function, (ast.FunctionDef, ast.Lambda)):
        return []
    if facts.names.class_of(function) is not None:
        return []
    names = facts.names.constant(node)
    wanted = [names] if isinstance(names, str) else names
    parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if not isinstance(wanted, (list, tuple)) or any(n not in parameters for n in wanted):
        return []
    return [parameters.index(n) for n in wanted]
