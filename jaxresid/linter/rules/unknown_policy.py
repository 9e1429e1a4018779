from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.text.nearest import nearest
from jaxresid.base.violations import Edit, Fix, Violation
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import apis
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_MODULES = frozenset(m.removesuffix(".") for m in apis.POLICY_MODULES)
_CAUGHT = frozenset(
    {"AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
)
_ASKS = frozenset({"hasattr", "__version__", "__version_info__", "version", "TYPE_CHECKING"})
_CLOSE = 0.8


class UnknownPolicy(Rule):
    """A policy that this version of JAX does not have.

    ## What it does
    Finds attributes of `jax.checkpoint_policies` that do not exist in the targeted version, and
    imports from it, as it is not a module.

    ## Why is this bad?
    An unknown attribute raises an `AttributeError` where it is read; an import from
    `jax.checkpoint_policies` raises a `ModuleNotFoundError`.

    ## Use instead
    An existing policy, read from `jax.checkpoint_policies`. The classes `SaveOnlyTheseNames`,
    `SaveAnyNamesButThese` and `SaveAndOffloadOnlyTheseNames` exist only in jax 0.11.

    ## When is this fine?
    Under `hasattr`, a check of the version, or a `try` that catches the error; that is not
    reported.

    ## Is the fix safe?
    No: it writes the closest name.
    """

    code = "JXR212"
    name = "unknown-policy"
    severity = "error"
    why = "Reading it raises."
    help = "see jax.checkpoint_policies for the existing ones"
    fixes = "unsafe"
    bad = (
        Example(
            """
            import jax


            def run(layer, w, x):
                cp = jax.checkpoint_policies
                return jax.checkpoint(layer, policy=cp.dot_with_no_batch_dims_saveable)(w, x)  # !
            """,
            fixed="""
            import jax


            def run(layer, w, x):
                cp = jax.checkpoint_policies
                return jax.checkpoint(layer, policy=cp.dots_with_no_batch_dims_saveable)(w, x)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax

            cp = jax.checkpoint_policies
            NAMED = cp.save_only_these_names("a")
            PLAIN = [cp.everything_saveable, cp.checkpoint_dots, cp.dots_with_no_batch_dims_saveable]
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for statement in facts.names.imports:
            module = _policies_as_module(statement)
            if module is not None and not _is_guarded(facts, statement):
                yield self.report(
                    facts,
                    statement,
                    f"`{module}` is not a module, so nothing can be imported from it",
                    help=f"import {module.rpartition('.')[0]} and read the attribute",
                )
        added = {a.attr for a in facts.names.attributes if isinstance(a.ctx, ast.Store)}
        for node, name in facts.policy_names:
            if (
                isinstance(node, ast.Name)  # the import has been reported
                or _exists(facts, name)
                or name in added
                or policies.name_of(facts, node) != name
                or _is_guarded(facts, node)
            ):
                continue
            close = nearest(name, sorted(apis.POLICIES), cutoff=_CLOSE)
            yield self.report(
                facts,
                node,
                f"`{policies.source_text(facts, node)}` does not exist{_where(name)}",
                help=f"did you mean {close}?" if close else None,
                fix=_rename(facts, node, close) if close else None,
            )


def _exists(facts: Facts, name: str) -> bool:
    if name in apis.POLICY_CLASSES and facts.jax_is((0, 11), (0, 12)):
        return True
    return name in apis.POLICIES or name.startswith("_")


def _where(name: str) -> str:
    return " outside jax 0.11" if name in apis.POLICY_CLASSES else ""


def _policies_as_module(statement: ast.Import | ast.ImportFrom) -> str | None:
    if isinstance(statement, ast.ImportFrom):
        return statement.module if not statement.level and statement.module in _MODULES else None
    return next((a.name for a in statement.names if a.name in _MODULES), None)


def _rename(facts: Facts, node: ast.expr, name: str) -> Fix | None:
    if not isinstance(node, ast.Attribute):
        return None
    source = facts.source
    end = source.end(source.span(node))
    span = source.between(end - len(node.attr), end)
    return Fix(f"Write `{name}`", (Edit(span, name),), "unsafe")


def _is_guarded(facts: Facts, node: ast.AST) -> bool:
    """Whether the code is prepared for the error, or asks before."""
    child = node
    for parent in facts.names.ancestors(node):
        match parent:
            case ast.Try() if child in parent.body and any(_catches(h) for h in parent.handlers):
                return True
            case ast.If() | ast.IfExp() | ast.While() if _asks(parent.test):
                return True
            case ast.BoolOp() if any(_asks(v) for v in parent.values if v is not child):
                return True
            case ast.With() if any(_suppresses(i.context_expr) for i in parent.items):
                return True
        child = parent
    return False


def _suppresses(node: ast.expr) -> bool:
    return any(getattr(n, "attr", getattr(n, "id", "")) == "suppress" for n in ast.walk(node))


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(getattr(n, "attr", getattr(n, "id", "")) in _CAUGHT for n in ast.walk(handler.type))


def _asks(test: ast.expr) -> bool:
    return any(getattr(n, "attr", getattr(n, "id", "")) in _ASKS for n in ast.walk(test))
