from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import checkpoint_calls
from jaxresid.linter.resolve import results
from jaxresid.linter.resolve.names import External
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Edit, Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site

_ARRAY_MODULES = ("jax.numpy.", "jax.nn.", "jax.scipy.", "numpy.")
# What is in these modules and gives a function, or something that is called.
_MAKERS = frozenset({"vectorize", "frompyfunc", "ufunc", "RegularGridInterpolator", "poly1d"})
_ARRAY_METHODS = frozenset({"sum", "mean", "reshape", "astype", "transpose", "swapaxes", "squeeze"})
_MAX_STEPS = 4


class CheckpointPositionalArguments(Rule):
    """A checkpoint is given the function's arguments, or its result, or options by position.

    ## What it does
    Finds more positional arguments than the API takes, as in `jax.checkpoint(f, policy)` and
    `jax.checkpoint(f, x)`, and a checkpoint of a value instead of a function:
    `jax.checkpoint(f(x))`, where `f` visibly computes an array.

    ## Why is this bad?
    JAX takes only the function by position and raises a TypeError otherwise; the function's own
    arguments go to what checkpoint returns (PyTorch's `checkpoint(f, x)` calls it at once). Around
    a result there is nothing left to checkpoint: it was computed before, with all its residuals,
    and calling what checkpoint returns raises.

    ## Use instead
    `jax.checkpoint(f, policy=policy)` and `jax.checkpoint(f)(x)`.

    ## When is this fine?
    Where the call that is checkpointed returns a function: that is not reported.

    ## Is the fix safe?
    Passing a policy by keyword is: the call raises as it is. Moving the arguments of the inner
    call behind the checkpoint is not, because it guesses what was meant.
    """

    code = "JXR502"
    name = "checkpoint-positional-arguments"
    severity = "error"
    why = "checkpoint takes only the function by position, and returns one to call."
    help = "give options by keyword, and the function's arguments to what checkpoint returns"
    fixes = "safe"
    bad = (
        Example(
            """
            import jax


            def layer(w, x):
                return jax.numpy.tanh(x @ w)


            def loss(w, x):
                block = jax.checkpoint(layer, jax.checkpoint_policies.dots_saveable)  # !
                return block(w, x).sum()
            """,
            fixed="""
            import jax


            def layer(w, x):
                return jax.numpy.tanh(x @ w)


            def loss(w, x):
                block = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)
                return block(w, x).sum()
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def loss(layer, policy, x):
                return jax.checkpoint(layer, policy=policy)(x).sum()
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for site in facts.sites:
            role = checkpoint_calls.definite_site_api(facts, site)
            if role is None or checkpoint_calls.is_error_expected(facts, site.node):
                continue
            name = checkpoint_calls.callee(facts, site.node)
            given = len(site.arguments.positional) + (site.form == "decorator")
            if given > site.api.positional:
                yield self.report(
                    facts,
                    site.node,
                    f"`{name}` takes {_count(site.api.positional)} by position and is given "
                    f"{given}: this raises",
                    fix=_keyword(facts, site),
                )
            elif site.target is not None and _is_array(facts, site.target):
                yield self.report(
                    facts,
                    site.node,
                    f"`{name}` is given the value of `{_short(site.target)}` instead of a function",
                    fix=_moved(facts, site),
                )


def _count(positional: int) -> str:
    return "one argument" if positional == 1 else f"{positional} arguments"


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _is_array(facts: Facts, node: ast.expr, left: int = _MAX_STEPS) -> bool:
    """Whether an expression computes arrays for certain, and so no function."""
    if left == 0:
        return False
    origin = facts.names.single_origin(node)
    match origin:
        case ast.BinOp():
            return any(_is_array(facts, n, left - 1) for n in (origin.left, origin.right)) or (
                isinstance(origin.op, (ast.MatMult, ast.Pow, ast.Div))
            )
        case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in _ARRAY_METHODS:
            return _is_array(facts, value, left - 1) or _calls_array(facts, origin, left)
        case ast.Call():
            return _calls_array(facts, origin, left)
    return False


def _calls_array(facts: Facts, call: ast.Call, left: int) -> bool:
    callee = facts.names.single_origin(call.func)
    match callee:
        case External(qualname):
            last = qualname.rpartition(".")[2]
            return (
                qualname.startswith(_ARRAY_MODULES)
                and ".initializers." not in qualname
                and last not in _MAKERS
                and last[:1].islower()
            )
        case ast.FunctionDef(decorator_list=[]):
            own = list(results.own_nodes(callee))
            if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in own):
                return False
            returns = [n for n in own if isinstance(n, ast.Return)]
            return bool(returns) and all(
                r.value is not None and _is_array(facts, r.value, left - 1) for r in returns
            )
    return False


def _keyword(facts: Facts, site: Site) -> Fix | None:
    """`jax.checkpoint(f, dots_saveable)` -> `jax.checkpoint(f, policy=dots_saveable)`."""
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


def _moved(facts: Facts, site: Site) -> Fix | None:
    """`jax.checkpoint(f(x))` -> `jax.checkpoint(f)(x)`."""
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
