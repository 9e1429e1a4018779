from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.fixes import checkpoint_arguments as fixes
from jaxresid.linter.patterns import checkpoint_calls
from jaxresid.linter.resolve import results
from jaxresid.linter.resolve.names import External
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

# `jax.remat` has never had it; `haiku.remat` hands its keywords to `jax.remat`.
_ACCEPTING = frozenset(
    {"jax.checkpoint", "jax.ad_checkpoint.checkpoint", "jax._src.ad_checkpoint.checkpoint"}
)
_ARRAY_MODULES = ("jax.numpy.", "jax.nn.", "jax.scipy.", "numpy.")
# What is in these modules and gives a function, or something that is called.
_MAKERS = frozenset({"vectorize", "frompyfunc", "ufunc", "RegularGridInterpolator", "poly1d"})
_ARRAY_METHODS = frozenset({"sum", "mean", "reshape", "astype", "transpose", "swapaxes", "squeeze"})
_MAX_STEPS = 4


class CheckpointArguments(Rule):
    """A checkpoint is called without its function, or with arguments that it does not take.

    ## What it does
    Finds calls of the checkpoints of JAX, flax, haiku and equinox

    - with options only where they return no decorator: `@jax.checkpoint(policy=...)`,
      `@jax.remat()`, `jax.checkpoint(policy=...)(f)`;
    - with more positional arguments than they take: `jax.checkpoint(f, policy)`,
      `jax.checkpoint(f, x)`;
    - of a value instead of a function: `jax.checkpoint(f(x))`, where `f` visibly computes an array;
    - with `static_argnames=`.

    ## Why is this bad?
    All but the last raise a TypeError, where the module is imported, the code runs, or what the
    checkpoint returned is called. JAX's `checkpoint` takes the function, by position, and returns
    one; it returns no decorator (`flax.nnx.remat` and `equinox.filter_checkpoint` do), and does not
    call the function as PyTorch's `checkpoint(f, x)` does. Around a result there is nothing left to
    checkpoint: it was computed before, with all its residuals.

    `jax.checkpoint` has `static_argnames` since 0.10.2, but its default implementation ignores it
    silently: the arguments are traced, and `if flag:` raises a TracerBoolConversionError. Before,
    and always on the other checkpoints, it raises a TypeError.

    ## Use instead
    `@functools.partial(jax.checkpoint, policy=...)`, or `@jax.checkpoint` where there are no
    options; `jax.checkpoint(f, policy=policy)(x)`; and `static_argnums`, with the arguments passed
    by position, or bound beforehand: `jax.checkpoint(functools.partial(f, flag=True))`.

    ## When is this fine?
    Where the call that is checkpointed returns a function, and inside `pytest.raises` or a `try`
    that catches the error: these are not reported. `static_argnames` on `jax.checkpoint` with the
    configuration option `jax_remat3` on, which honours it.

    ## Is the fix safe?
    A `functools.partial`, and a policy by keyword, are: the code raises as it is, and can mean only
    one thing. Moving the arguments of an inner call behind the checkpoint is not, because it
    guesses what was meant; positions instead of names mean the same only if the callers pass these
    arguments by position.
    """

    code = "JXR501"
    name = "checkpoint-arguments"
    severity = "error"
    why = "checkpoint takes only the function by position, and returns one to call."
    help = "give options by keyword, and the function's arguments to what checkpoint returns"
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
        yield from self._without_function(facts)
        yield from self._by_position(facts)
        yield from self._static_argnames(facts)

    def _without_function(self, facts: Facts) -> Iterator[Violation]:
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
                    fix=fixes.with_function(facts, call),
                    why="It takes the function as its first argument and returns no decorator without "
                    "it.",
                    help="use `functools.partial`",
                )

    def _by_position(self, facts: Facts) -> Iterator[Violation]:
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
                    fix=fixes.policy_by_keyword(facts, site),
                )
            elif site.target is not None and _is_array(facts, site.target):
                yield self.report(
                    facts,
                    site.node,
                    f"`{name}` is given the value of `{_short(site.target)}` instead of a function",
                    fix=fixes.called_afterwards(facts, site),
                )

    def _static_argnames(self, facts: Facts) -> Iterator[Violation]:
        for given in checkpoint_calls.keywords(facts, "static_argnames"):
            site = given.site
            if site.api.library == "keras":
                continue
            takes_it = site.qualname in _ACCEPTING
            accepted = takes_it and facts.jax_is((0, 10))
            empty = facts.names.constant(given.value) in ((), [], "")
            if accepted and (empty or "jax_remat3" in facts.source.text):
                continue
            name = checkpoint_calls.callee(facts, given.call or site.node)
            message = f"`{name}` has no `static_argnames`: this raises"
            if accepted:
                message = f"`{name}` ignores `static_argnames`: the arguments are traced"
            elif takes_it:
                message = f"`{name}` has no `static_argnames` before jax 0.10.2: this raises"
            yield self.report(
                facts,
                given.node,
                message,
                fix=fixes.static_positions(facts, site, given.node, given.value),
                why="Arguments that are not static are traced, and Python cannot branch on them.",
                help="use `static_argnums`, or bind the arguments with `functools.partial`",
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
