"""Tell where a checkpoint is as far as common-subexpression elimination is concerned.

Shared by the rules on `prevent_cse` (JXR4). XLA merges equal expressions within one computation;
the body of a staged loop and the branches of a conditional are computations of their own, but jit,
vmap and another checkpoint are not.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.base.violations import Fix
from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import conditions
from jaxresid.linter.patterns.unrolling import is_unrolled, unrolling_choice
from jaxresid.linter.resolve.uses import PLAIN, RemoteAround, RemoteCheckpoint

if TYPE_CHECKING:
    from jaxresid.linter.patterns.conditions import Condition
    from jaxresid.linter.resolve.context import Around
    from jaxresid.linter.resolve.facts import Facts, Loop, Site, Use

# About how many functions and classes other modules are asked for one checkpoint.
_MAX_ASKED = 32
_MAX_CALLERS = 3


def false_prevent_cse(facts: Facts, site: Site) -> ast.expr | None:
    """Return the `False` that a site gives `prevent_cse`, where it is written there, else None."""
    value = site.keyword("prevent_cse")
    if site.api.loop or not isinstance(value, ast.Constant) or value.value is not False:
        return None
    return value


def without_prevent_cse(facts: Facts, site: Site, value: ast.expr) -> Fix | None:
    """Return the fix that removes `prevent_cse`, None where the same call serves other sites."""
    call = next((c for c in site.calls if any(k.value is value for k in c.keywords)), None)
    if call is None or not (call is site.node or site.node in facts.names.ancestors(call)):
        return None
    bare = facts.is_partial(call) and len(call.args) == 1 and len(call.keywords) == 1
    if bare and isinstance(call.args[0], (ast.Name, ast.Attribute)):
        edit = edits.replace(facts.source, call, ast.unparse(call.args[0]))
    else:
        found = edits.remove_argument(facts.source, call, value)
        if found is None:
            return None
        edit = found
    return Fix("Leave `prevent_cse` at True", (edit,), "unsafe")


def loop_at(facts: Facts, node: ast.AST) -> Loop | None:
    """Return the loop that a use of kind `loop` names."""
    return next((loop for loop in facts.loops if loop.node is node), None)


def loop_callee(facts: Facts, loop: Loop) -> str:
    """Return the loop's function as the user wrote it: `nn.scan`, also in `partial(nn.scan)`."""
    node = loop.node
    while isinstance(node, ast.Call):
        node = node.args[0] if facts.is_partial(node) and node.args else node.func
    return ast.unparse(node)


class Choice(NamedTuple):
    """A condition under which a staged loop runs a checkpoint, which is called without one else.

    Attributes:
      loop: the loop.
      call: a call outside it.
      condition: what holds where the loop runs.
      is_known: whether the condition can be asked where the checkpoint is made.
    """

    loop: Loop
    call: Use
    condition: Condition
    is_known: bool


def only_if(facts: Facts, site: Site) -> Choice | None:
    """Return the condition under which loops run a site, with a call of it where it does not hold.

    None is returned where something else becomes of the site as well.
    """
    loops: list[Loop] = []
    calls: list[Use] = []
    for use in facts.site_uses(site):
        if not PLAIN.issuperset(use.through):
            return None
        loop = loop_at(facts, use.node) if use.kind == "loop" else None
        if loop is not None and loop.api.kind in {"loop", "map"} and not is_unrolled(facts, loop):
            loops.append(loop)
        elif use.kind == "call":
            calls.append(use)
        else:
            return None
    if not loops or not calls:
        return None
    pairs = [(loop, use) for loop in loops for use in calls]
    known = [[*conditions.excluding(facts, loop.node, use.node)] for loop, use in pairs]
    for condition in known[0]:
        same = (ast.dump(condition.test), condition.holds)
        if all(any((ast.dump(c.test), c.holds) == same for c in others) for others in known):
            is_known = conditions.is_known_at(facts, condition.test, site.node)
            return Choice(loops[0], calls[0], condition, is_known)
    return None


class Unrolled(NamedTuple):
    """A loop that is unrolled completely: always, or where a condition holds."""

    loop: Loop
    condition: Condition | None


def enclosing_unrolled_loop(facts: Facts, site: Site) -> Unrolled | None:
    """Return the unrolled loop whose body a site makes, or is called in.

    None is returned where anything else becomes of the site, or where another loop is visible
    around.
    """
    found: Unrolled | None = None
    for use in facts.site_uses(site):
        for loop in running_loops(facts, use):
            if loop is None:
                return None
            choice = unrolling_choice(facts, loop)
            if choice is None and not is_unrolled(facts, loop):
                return None
            context = facts.context(loop.node)
            if context.loop or context.branch or context.rule or context.unknown:
                return None
            condition = conditions.plain(*choice) if choice is not None else None
            found = found or Unrolled(loop, condition)
    return found


def running_loops(facts: Facts, use: Use, depth: int = 0) -> tuple[Loop | None, ...]:
    """Return the loops that run what a use is, with None among them where something else may.

    They run it as their body, or in what their body calls. What a decorator made of it runs nothing
    more.
    """
    if "derived" in use.through:
        return ()
    if not PLAIN.issuperset(use.through) or depth > _MAX_CALLERS:
        return (None,)
    if use.kind == "loop":
        return (loop_at(facts, use.node),)
    function = facts.names.function(use.node) if use.kind == "call" else None
    if function is None:
        return (None,)
    owner = facts.names.class_of(function)
    is_module = owner is not None and getattr(function, "name", "") == "__call__"
    uses = facts.uses(owner) if owner is not None and is_module else facts.uses(function)
    if not uses or facts.remote_uses(owner if owner is not None and is_module else function):
        return (None,)
    return tuple(loop for u in uses for loop in running_loops(facts, u, depth + 1))


def enclosing_checkpoint(facts: Facts, site: Site) -> Site | RemoteCheckpoint | None:
    """Return the checkpoint whose body contains every call of a site's function.

    It may stand in another module, which checkpoints the function or the class that the calls are
    in, or one that calls these. None is returned where a staged loop or a branch is in between, or
    where a call is or may be elsewhere.
    """
    found: Site | RemoteCheckpoint | None = None
    for use in facts.site_uses(site):
        around = facts.around(use)
        if around is None or site in around.sites:
            return None
        outers: list[Site | RemoteCheckpoint] = [*around.sites]
        if not _ask(facts, around, facts.path, outers, set()):
            return None
        if not outers or not all(_may_both(facts, site, outer) for outer in outers):
            return None
        found = found or outers[0]
    return found


def _ask(
    facts: Facts,
    around: Around | RemoteAround,
    home: Path | None,
    found: list[Site | RemoteCheckpoint],
    seen: set[str],
) -> bool:
    """Find the checkpoints that other modules have around what contains a call.

    False is returned where one of these uses is or may be outside a checkpoint, and where a
    function or a class that its own module does not use is used nowhere.

    Args:
      facts: the facts of the module that is linted.
      around: what contains the call.
      home: the file that it is in.
      found: where the checkpoints are added.
      seen: the names that were asked about before.
    """
    for name in around.names:
        if name in seen:
            continue
        seen.add(name)
        elsewhere = facts.project.remote_uses(name, home) if facts.project is not None else ()
        uses = [use for use in elsewhere if not use.replaces_checkpoint]
        if len(seen) > _MAX_ASKED or (name in around.unused and not uses):
            return False
        for use in uses:
            if use.kind == "checkpoint" and PLAIN.issuperset(use.through):
                found.append(use.checkpoint)
            elif use.around is None or not _ask(facts, use.around, use.around.home, found, seen):
                return False
            elif use.around.checkpoint is not None:
                found.append(use.around.checkpoint)
    return True


def _may_both(facts: Facts, inner: Site, outer: Site | RemoteCheckpoint) -> bool:
    """Return whether no flag decides between two checkpoints, as far as is certain."""
    one = _condition(facts, inner.node)
    if one is None:
        return True
    if isinstance(outer, RemoteCheckpoint):
        return False
    other = _condition(facts, outer.node)
    return other is None or one == other


def _condition(facts: Facts, node: ast.AST) -> tuple[str, bool] | None:
    """Return the innermost test around a node in its function, with whether it has to hold."""
    child = node
    for parent in facts.names.ancestors(node):
        match parent:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return None
            case ast.If(test=test, body=body):
                return ast.dump(test), child in body
            case ast.IfExp(test=test, body=chosen) if child is not test:
                return ast.dump(test), child is chosen
        child = parent
    return None
