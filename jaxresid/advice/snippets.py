"""The code that a plan asks for, as text for its reader."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import accumulate

from jaxresid.advice.policy_text import policy_text, string_text
from jaxresid.model import PlannedPart, PlannedSite

_POLICIES = "jax.checkpoint_policies"


def code(site: PlannedSite) -> str:
    """What to write for one place, a line for each thing, each with the line that it is for.

    `jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)(p, x)  # model.py:42`
    """
    lines = _names(site)
    parts = merged(site.parts)
    if len(parts) > 1:
        lines.append(_by_number(site, parts))
    elif site.kind == "whole":
        lines += _whole(site, parts[0])
    else:
        lines.append(_one(site, parts[0]))
    return "\n".join(lines)


def merged(parts: Sequence[PlannedPart]) -> tuple[PlannedPart, ...]:
    """The parts with neighbours that are treated alike as one."""
    found: list[PlannedPart] = []
    for part in parts:
        last = found[-1] if found else None
        if last is not None and treatment(last) == treatment(part):
            calls = last.calls + part.calls
            found[-1] = PlannedPart(calls, part.checkpointed, part.policy, last.values)
        else:
            found.append(part)
    return tuple(found)


def treatment(part: PlannedPart) -> tuple[bool, str | None]:
    """What becomes of a part's calls."""
    return part.checkpointed, part.policy if part.checkpointed else None


def _names(site: PlannedSite) -> list[str]:
    """The expressions to name."""
    named = {
        (v.expression, v.name): f"checkpoint_name({v.expression.code}, {string_text(v.name)})"
        f"  # {v.expression.file}:{v.expression.line}"
        for part in site.parts
        for v in part.values
        if v.expression is not None
    }
    return list(named.values())


def _checkpointed(site: PlannedSite, part: PlannedPart, function: str) -> str:
    """`function` as this part has it."""
    if not part.checkpointed:
        return function
    more = ", prevent_cse=False" if site.kind == "scan" else ""
    if part.policy is not None:
        more += f", policy={policy_text(part.policy, _POLICIES) or part.policy}"
    return f"jax.checkpoint({function}{more})"


def _function(site: PlannedSite) -> str:
    """The function as it is written where it is called, as far as its name tells."""
    owner, _, name = site.function.rpartition(".")
    if name == "__call__" and owner:
        return owner.rpartition(".")[2].lower()
    return "lambda ...: ..." if name == "<lambda>" else name


def _where(site: PlannedSite) -> str:
    return f"{site.location.file}:{site.location.line}" if site.location else site.function


def _one(site: PlannedSite, part: PlannedPart) -> str:
    function, where = _function(site), _where(site)
    made = _checkpointed(site, part, function)
    if not part.checkpointed:
        return f"{function}  # {where}, without its checkpoint"
    written = site.location.code if site.location is not None else ""
    if site.kind == "scan":
        return f"jax.lax.scan({made}, ...)  # {where}"
    if site.kind == "call":
        bound = _with_constants(site, part, written, function)
        if bound is not None:
            return f"{bound}  # {where}"
        called = list(re.finditer(rf"(?<![\w.]){re.escape(function)}\(", written))
        if len(called) == 1:
            start, end = called[0].span()
            return f"{written[:start]}{made}({written[end:]}  # {where}"
    return f"{made}  # {where}"


def _with_constants(
    site: PlannedSite, part: PlannedPart, written: str, function: str
) -> str | None:
    """The line with its call checkpointed, the constants that the function is given kept out of
    it, as a checkpoint takes arrays alone; None where there are none."""
    try:
        tree = ast.parse(written)
    except SyntaxError:
        return None
    calls = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == function
    ]
    if len(calls) != 1:
        return None
    (call,) = calls
    static = [i for i, arg in enumerate(call.args) if _is_constant(arg)]
    bound = [k for k in call.keywords if _is_constant(k.value)]
    if not static and not bound:
        return None
    inner = function
    if bound:
        inner = f"functools.partial({', '.join([function, *map(ast.unparse, bound)])})"
    made = _checkpointed(site, part, inner)
    if static:
        made = f"{made[:-1]}, static_argnums={tuple(static)})"
    call.func = ast.Name(made)
    call.keywords = [k for k in call.keywords if k not in bound]
    return ast.unparse(tree)


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is not None


def _whole(site: PlannedSite, part: PlannedPart) -> list[str]:
    if not part.checkpointed:
        return [f"def {site.function}(...):  # without its checkpoint"]
    policy = part.policy and (policy_text(part.policy, _POLICIES) or part.policy)
    decorator = (
        f"functools.partial(jax.checkpoint, policy={policy})" if policy else "jax.checkpoint"
    )
    return [f"@{decorator}", f"def {site.function}(...):"]


def _by_number(site: PlannedSite, parts: Sequence[PlannedPart]) -> str:
    """`jax.checkpoint(block) if i < 20 else block`, `i` being the call's number."""
    function = _function(site)
    ends = list(accumulate(part.calls for part in parts))
    chosen = [
        f"{_checkpointed(site, part, function)} if i < {end} else "
        for part, end in zip(parts[:-1], ends[:-1], strict=True)
    ]
    last = _checkpointed(site, parts[-1], function)
    which = f"call i of {ends[-1]}, from 0"
    return f"{''.join(chosen)}{last}  # {_where(site)}, {which}"
