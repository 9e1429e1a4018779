from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from jaxresid.base.violations import Violation
from jaxresid.linter.patterns.checkpoint_names import saved_names
from jaxresid.linter.resolve import results, stages
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Named, Site
    from jaxresid.linter.resolve.names import FunctionNode


class NamedCarryOutput(Rule):
    """A name is given to the output of a checkpointed function, where its policy cannot save it.

    ## What it does
    Finds a checkpointed function whose policy saves or offloads a name that is given to what the
    function returns, and to nothing that is used before: the carry of a scan's body, above all.

    ## Why is this bad?
    A policy chooses among the values that the function's backward pass needs. The output is not one
    of them: it leaves the function, and the code after it decides whether it is kept. The policy
    saves nothing, and an offloaded carry stays on the device.

    ## Use instead
    Name the carry at the start of the body, `c = checkpoint_name(c, "carry")`: there it is what
    the body needs for its recomputation. Elsewhere name a value inside the function.

    ## When is this fine?
    If the function also runs inside another checkpoint whose policy has the name. The rule is
    silent where it sees one, and where the function is also called without a checkpoint.
    """

    code = "JXR306"
    name = "named-carry-output"
    severity = "warning"
    why = "What a checkpointed function returns is not one of its residuals."
    help = "name the carry at the start of the body, or a value that the function itself needs"
    bad = (
        Example(
            """
            import functools

            import jax
            import jax.numpy as jnp
            from jax.ad_checkpoint import checkpoint_name


            @functools.partial(
                jax.checkpoint,
                policy=jax.checkpoint_policies.save_and_offload_only_these_names(
                    names_which_can_be_saved=[],
                    names_which_can_be_offloaded=["carry"],
                    offload_src="device",
                    offload_dst="pinned_host",
                ),
            )
            def body(c, w):
                y = jnp.sin(jnp.sin(c @ w) @ w)
                return checkpoint_name(y, "carry"), None  # !


            def loss(ws, c):
                return jax.lax.scan(body, c, ws)[0].sum()
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
                policy=jax.checkpoint_policies.save_and_offload_only_these_names(
                    names_which_can_be_saved=[],
                    names_which_can_be_offloaded=["carry"],
                    offload_src="device",
                    offload_dst="pinned_host",
                ),
            )
            def body(c, w):
                c = checkpoint_name(c, "carry")
                return jnp.sin(jnp.sin(c @ w) @ w), None


            def loss(ws, c):
                return jax.lax.scan(body, c, ws)[0].sum()
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if not facts.named:
            return
        seen: set[ast.Call] = set()
        for site in facts.sites:
            names = saved_names(facts, facts.policy(site))
            function = _function(facts, site) if names else None
            if function is None or not _is_alone(facts, site):
                continue
            for output in _outputs(facts, function):
                named = output.named
                if named.name not in names or named.node in seen:
                    continue
                seen.add(named.node)
                yield self.report(
                    facts,
                    named.node,
                    _message(facts, site, function, output),
                    related=stages.related_place(facts, site.node, "the policy that has the name"),
                )


class _Output(NamedTuple):
    """A named value that a function returns, and whether it returns it first."""

    named: Named
    first: bool


def _message(facts: Facts, site: Site, function: FunctionNode, output: _Output) -> str:
    what = "lambda" if isinstance(function, ast.Lambda) else function.name
    in_loop = any(u.kind == "loop" for u in facts.site_uses(site))
    role = "carry" if in_loop and output.first else "output"
    owner = facts.names.class_of(function)
    if owner is not None and what == "__call__":
        what = owner.name
    name = output.named.name
    return f"`{name}` names the {role} of the checkpointed `{what}`, which its policy cannot save"


def _function(facts: Facts, site: Site) -> FunctionNode | None:
    """The function that a site checkpoints: for a module's class, its `__call__`."""
    target = facts.target(site)
    if isinstance(target, ast.ClassDef):
        return facts.names.method(target, "__call__") if facts.is_class(site) else None
    return target


def _is_alone(facts: Facts, site: Site) -> bool:
    """Whether the function runs as this checkpoint only, as far as is visible."""
    target = facts.target(site)
    assert target is not None
    if facts.remote_uses(target) or facts.context(site.node).checkpoint:
        return False
    if site.form == "call" and any(use.kind != "checkpoint" for use in facts.uses(target)):
        return False
    return not any(
        use.kind == "checkpoint" or facts.context(use.node).checkpoint
        for use in facts.site_uses(site)
    )


def _outputs(facts: Facts, function: FunctionNode) -> Iterator[_Output]:
    """The named values among what a function returns that it uses for nothing else."""
    calls = {named.node: named for named in facts.named}
    found = [
        _Output(calls[call], index == 0)
        for value in results.returned(function)
        for index, part in enumerate(_parts(value))
        if (call := _only_returned(facts, part)) in calls
    ]
    outputs = {output.named.node for output in found}
    # A name that is also given to a value inside does its work there.
    inside = {
        named.name
        for named in facts.named
        if named.node not in outputs and function in facts.names.functions_around(named.node)
    }
    yield from (output for output in found if output.named.name not in inside)


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """The elements of a returned tuple."""
    if isinstance(node, (ast.Tuple, ast.List)):
        for element in node.elts:
            yield from _parts(element)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _parts(value)
    else:
        yield node


def _only_returned(facts: Facts, node: ast.expr) -> ast.Call | None:
    """The call that made a returned value, where nothing else reads that."""
    if isinstance(node, ast.Call):
        return node
    if not isinstance(node, ast.Name):
        return None
    bindings = facts.names.bindings(node)
    if len(bindings) != 1 or not isinstance(bindings[0].value, ast.Call) or bindings[0].element:
        return None
    if list(facts.names.loads_of(bindings[0])) != [node]:
        return None
    return bindings[0].value
