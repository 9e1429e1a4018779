"""Tell how the checkpoint family is called.

That is: by which API for certain, with which keywords, and whether the code around a call expects
that it may fail. Shared by the rules on call shape (JXR5).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.linter.resolve.callees import Role

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

# What the calls of the family raise when they are misused or not there.
_FAILURES = frozenset(
    """
    TypeError ValueError NotImplementedError AttributeError ImportError ModuleNotFoundError
    TracerBoolConversionError ConcretizationTypeError Exception BaseException
    """.split()
)


class GivenKeyword(NamedTuple):
    """A keyword that a checkpoint is given.

    Attributes:
      node: the keyword as written; its value alone where it came out of a dictionary.
      call: the call that it is written in.
    """

    site: Site
    value: ast.expr
    node: ast.keyword | ast.expr
    call: ast.Call | None


def definite_api(facts: Facts, callee: ast.expr) -> Role | None:
    """Return the checkpoint API that a callee certainly is, None where it may be anything else."""
    origins = facts.names.origins(callee)
    if len(origins) != 1:
        return None
    roles = facts.callees.roles(callee)
    if len(roles) != 1 or roles[0].kind != "checkpoint":
        return None
    origin = origins[0]
    if isinstance(origin, ast.Call) and facts.callees.is_partial(origin) and origin.args:
        return roles[0] if definite_api(facts, origin.args[0]) is not None else None
    return roles[0]


def definite_site_api(facts: Facts, site: Site) -> Role | None:
    """Return the API of a site where it is certain, else None."""
    if site.form == "call":
        assert isinstance(site.node, ast.Call)
        return definite_api(facts, site.node.func)
    return definite_api(facts, site.node)


def callee(facts: Facts, node: ast.expr) -> str:
    """Return the API as the user wrote it: `jax.checkpoint` in `partial(jax.checkpoint, ...)`."""
    while isinstance(node, ast.Call):
        node = node.args[0] if facts.callees.is_partial(node) and node.args else node.func
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else "jax.checkpoint"


def keywords(facts: Facts, name: str) -> Iterator[GivenKeyword]:
    """Yield the places that give a keyword to a checkpoint whose API is certain, each once.

    It is certain where the site's is, and in a partial of one: `partial(nn.remat, concrete=True)`
    hands the keyword to nothing else, whatever may be called in its place under a flag.
    """
    seen = set()
    for site in facts.sites:
        keyword = site.arguments.keywords.get(name)
        if keyword is None or keyword.value in seen:
            continue
        call = next((c for c in site.calls if keyword in c.keywords), None)
        if definite_site_api(facts, site) is None and not _is_definite_partial(facts, call):
            continue
        if any(is_error_expected(facts, node) for node in (site.node, call) if node is not None):
            continue
        seen.add(keyword.value)
        yield GivenKeyword(
            site, keyword.value, keyword if call is not None else keyword.value, call
        )


def _is_definite_partial(facts: Facts, call: ast.Call | None) -> bool:
    return (
        call is not None
        and facts.callees.is_partial(call)
        and bool(call.args)
        and definite_api(facts, call.args[0]) is not None
    )


def is_error_expected(facts: Facts, node: ast.AST) -> bool:
    """Return whether a `try`, `pytest.raises` or a check of the version is around a node."""
    for parent, child in facts.names.path(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and child in parent.body:
            return False
        match parent:
            case ast.Try() if child in parent.body and any(_catches(h) for h in parent.handlers):
                return True
            case ast.ExceptHandler() if _catches(parent):
                return True
            case ast.With() | ast.AsyncWith() if any(_expects(i) for i in parent.items):
                return True
            case ast.If() | ast.IfExp():
                text = ast.unparse(parent.test).lower()
                if "version" in text or "hasattr" in text:
                    return True
    return False


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(k).rpartition(".")[2] in _FAILURES for k in kinds)


def _expects(item: ast.withitem) -> bool:
    context = item.context_expr
    func = context.func if isinstance(context, ast.Call) else context
    last = ast.unparse(func).rpartition(".")[2]
    return last in {"raises", "suppress"} or last.startswith("assertRaises")
