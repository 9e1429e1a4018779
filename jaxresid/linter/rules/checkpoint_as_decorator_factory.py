from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import checkpoint_calls
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Edit, Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class CheckpointAsDecoratorFactory(Rule):
    """A checkpoint that needs its function is called with options only.

    ## What it does
    Finds `@jax.checkpoint(policy=...)`, `@jax.remat()` and `jax.checkpoint(policy=...)(f)`, of
    JAX, flax.linen and haiku.

    ## Why is this bad?
    These take the function as their first argument and return no decorator without it: this raises
    a TypeError as soon as the module is imported. (`flax.nnx.remat` and
    `equinox.filter_checkpoint` do return one.)

    ## Use instead
    `@functools.partial(jax.checkpoint, policy=...)`, `@jax.checkpoint` where there are no
    options, and `jax.checkpoint(f, policy=...)` for a call.

    ## When is this fine?
    Never; code inside `pytest.raises` or a `try` that catches the error is not reported.

    ## Is the fix safe?
    Yes: the code raises as it is, and can mean only one thing.
    """

    code = "JXR501"
    name = "checkpoint-as-decorator-factory"
    severity = "error"
    why = "It takes the function as its first argument and returns no decorator without it."
    help = "use `functools.partial`"
    fixes = "safe"
    bad = (
        Example(
            """
            import functools

            import jax


            @jax.checkpoint(policy=jax.checkpoint_policies.dots_saveable)  # !
            def layer(w, x):
                return jax.numpy.tanh(x @ w)
            """,
            fixed="""
            import functools

            import jax


            @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
            def layer(w, x):
                return jax.numpy.tanh(x @ w)
            """,
        ),
    )
    good = (
        Example(
            """
            import functools

            import jax


            @functools.partial(jax.checkpoint, prevent_cse=False)
            def layer(x):
                return jax.numpy.sin(x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for call in facts.names.calls:
            role = checkpoint_calls.definite_api(facts, call.func)
            if role is None or role.entry.factory:
                continue
            arguments = facts.arguments(call, role)
            if arguments.dynamic or arguments.get(0, role.entry.target) is not None:
                continue
            if not checkpoint_calls.is_error_expected(facts, call):
                name = ast.unparse(call.func)
                yield self.report(
                    facts,
                    call,
                    f"`{name}` is called without a function and raises: it is not a decorator "
                    "factory",
                    fix=_fix(facts, call),
                )


def _fix(facts: Facts, call: ast.Call) -> Fix | None:
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
