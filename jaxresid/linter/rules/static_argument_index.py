from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Edit, Fix, Violation
from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import checkpoint_calls, static_arguments, traced_flags
from jaxresid.linter.patterns.static_arguments import Signature, StaticArguments, VisibleCall
from jaxresid.linter.patterns.traced_flags import TracedFlags
from jaxresid.linter.resolve import stages
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts, Site


class StaticArgumentIndex(Rule):
    """`static_argnums` of a checkpoint does not mark the argument that has to be static.

    ## What it does
    Finds an index that the function has no argument for; a list, a bool or a lone index where the
    API takes none; a negative index on flax.linen, which counts from one too early; an index of
    `flax.linen.remat` that marks an array because `self` was not counted; calls that pass a
    static argument by keyword or leave it to its default; and calls that give a flag or a string
    that nothing marks as static, where the function, or a layer or function that it hands the flag
    to, branches on it. Calls of `nn.scan(nn.remat(Block))` and of a derivative count too.

    ## Why is this bad?
    Only arguments given by position are static, and an index past them raises a ValueError
    (`flax.linen.partitioning.remat` drops keyword arguments, with a warning). An
    argument that is not static is traced, by keyword too: `if train:` raises a
    TracerBoolConversionError, and a string a TypeError, as it is no JAX type. Each
    API counts differently: `jax.checkpoint` counts the arguments of the function it is given,
    `flax.linen.remat` and `flax.nnx.remat` count `self` (the module) as 0, and
    `flax.linen.partitioning.remat` starts after it.

    ## Use instead
    A tuple of the positions, with these arguments passed by position in every call; or a field of
    the module or a closure instead of an argument.

    ## When is this fine?
    A list and a default that is left out are accepted with the configuration option `jax_remat3`.
    `jnp.where(train, a, b)` takes a traced flag, and a flag that is left to its default is not
    traced. `equinox.filter_checkpoint` keeps flags and strings as they are.

    ## Is the fix safe?
    Writing a tuple is: the code raises as it is. Counting `self` is not, because other arguments
    become static.
    """

    code = "JXR504"
    name = "static-argument-index"
    severity = "error"
    why = "Only arguments passed by position at these positions are static; all others are traced."
    help = "give a tuple of positions, and pass these arguments by position"
    fixes = "safe"
    bad = (
        Example(
            """
            import jax


            def layer(x, train):
                return x * 2 if train else x


            def loss(x):
                return jax.checkpoint(layer, static_argnums=(2,))(x, True).sum()  # !
            """
        ),
    )
    good = (
        Example(
            """
            import jax


            def layer(x, train):
                return x * 2 if train else x


            def loss(x):
                return jax.checkpoint(layer, static_argnums=(1,))(x, True).sum()
            """
        ),
        Example(
            """
            import jax


            def layer(x, train):
                return jax.numpy.where(train, x * 2, x)


            def loss(x):
                return jax.checkpoint(layer)(x, True).sum()
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        reported = set()
        for static in static_arguments.literal_static_arguments(facts):
            violation = self._typed(facts, static) or self._checked(facts, static)
            where = violation.span if violation is not None else None
            if violation is not None and where not in reported:
                reported.add(where)
                yield violation
        for site in facts.sites:
            if facts.source.span(site.node) not in reported:
                traced = traced_flags.traced_flags(facts, site)
                if traced is not None:
                    reported.add(facts.source.span(site.node))
                    yield self._traced(facts, site, traced)

    def _traced(self, facts: Facts, site: Site, traced: TracedFlags) -> Violation:
        flag = traced.flags[0]
        name = checkpoint_calls.callee(facts, site.node)
        if flag.kind == "string":
            message = f"`{name}` is given the string `{flag.name}` to trace, which is no JAX type"
        else:
            message = f"`{name}` traces `{flag.name}`, which the function branches on"
        related = stages.related_place(facts, flag.given, "given here") if flag.given else ()
        if flag.asked is not None:
            related += stages.related_place(traced.home, flag.asked, "branched on here")
        return self.report(
            facts,
            site.node,
            message,
            why="Every argument that is not static is traced, and so has no Python value: this raises.",
            help=_mark(traced),
            related=related,
        )

    def _typed(self, facts: Facts, static: StaticArguments) -> Violation | None:
        problem = _type_problem(static)
        if problem is None or "jax_remat3" in facts.source.text:
            return None
        name = checkpoint_calls.callee(facts, static.site.node)
        return self.report(
            facts,
            static.site.node,
            f"`{name}` is given {problem}",
            fix=_tuple(facts, static),
        )

    def _checked(self, facts: Facts, static: StaticArguments) -> Violation | None:
        signature = static_arguments.signature(facts, static.site)
        message = _negative(facts, static)
        if message is None and signature is not None:
            message = _past_the_end(facts, static, signature)
        if message is not None:
            return self.report(facts, static.site.node, message)
        shifted = _without_self(facts, static, signature) if signature is not None else None
        if shifted is not None:
            name = checkpoint_calls.callee(facts, static.site.node)
            marked, meant = shifted
            return self.report(
                facts,
                static.site.node,
                f"`{name}` counts `self` as 0: this marks `{marked}` and leaves `{meant}` traced",
                fix=_plus_one(facts, static),
            )
        return self._called(facts, static, signature)

    def _called(
        self, facts: Facts, static: StaticArguments, signature: Signature | None
    ) -> Violation | None:
        if static.site.api.library == "nnx":
            return None  # it puts keywords in their places
        calls = static_arguments.visible_calls(facts, static.site)
        problems = [(c, p) for c in calls if (p := _call_problem(static, signature, c)) is not None]
        if len(problems) < len(calls):
            problems = [
                (c, p)
                for c, p in problems
                if not static_arguments.is_under_condition(facts, c.call)
            ]
        if not problems:
            return None
        passed, message = problems[0]
        return self.report(
            facts,
            static.site.node,
            message,
            related=stages.related_place(facts, passed.call, "the call"),
        )


def _mark(traced: TracedFlags) -> str:
    """The remedy for flags that are traced."""
    if any(f.index is None for f in traced.flags):
        return "bind it before: `functools.partial`, or a field of the module"
    passed = " and pass by position" if any(f.by_keyword for f in traced.flags) else ""
    them = "it" if len(traced.flags) == 1 else "them"
    return f"mark {them} as static{passed}: `static_argnums={traced.static}`"


def _type_problem(static: StaticArguments) -> str | None:
    value, library = static.value, static.site.api.library
    what = f"`static_argnums={ast.unparse(static.node)}`"
    elements = value if isinstance(value, (tuple, list, set)) else (value,)
    if any(isinstance(v, bool) for v in elements):
        return f"{what}: a bool is not a position"
    if any(isinstance(v, (float, str)) for v in elements):
        return f"{what}: positions are integers"
    if library == "partitioning":
        return f"{what}: it takes a tuple and raises" if isinstance(value, int) else None
    if isinstance(value, (list, set)):
        return f"{what}: it takes a tuple and raises"
    return None


def _tuple(facts: Facts, static: StaticArguments) -> Fix | None:
    """`[1, 2]` -> `(1, 2)`, `2` -> `(2,)`."""
    if not static.indices or not isinstance(static.node, (ast.List, ast.Constant, ast.UnaryOp)):
        return None
    if isinstance(static.node, ast.List) and "#" in facts.source.segment(
        facts.source.span(static.node)
    ):
        return None
    edit = edits.replace(facts.source, static.node, repr(static.indices))
    return Fix("Write a tuple", (edit,), "safe")


def _negative(facts: Facts, static: StaticArguments) -> str | None:
    index = next((i for i in static.indices if i < 0), None)
    name = checkpoint_calls.callee(facts, static.site.node)
    if index is not None and static.site.api.library == "linen":
        return f"index {index} of `{name}` marks the argument before the intended one"
    if index is not None and static.site.api.library == "partitioning":
        return f"index {index} of `{name}` marks nothing: it takes no negative positions"
    return None


def _past_the_end(facts: Facts, static: StaticArguments, signature: Signature) -> str | None:
    count = len(signature.parameters)
    if signature.open:
        return None
    index = next((i for i in static.indices if not -count <= i < count), None)
    if index is None:
        return None
    there = "there is 1 argument" if count == 1 else f"there are {count} arguments"
    if static.site.api.library != "partitioning":
        self = " with `self`" if static.site.api.library == "linen" else ""
        return f"index {index} is past the end: {there}{self}"
    # Here that is no error, so it matters only where it leaves something out.
    last = signature.parameters[-1] if count else None
    if index > count or last is None or not static_arguments.is_flag(signature, last):
        return None
    if count - 1 in static.indices:
        return None
    return f"index {index} is past the end, as `self` is not counted: `{last.arg}` is traced"


def _without_self(
    facts: Facts, static: StaticArguments, signature: Signature
) -> tuple[str, str] | None:
    """The array that is marked and the flag after it, where `self` was not counted."""
    if static.site.api.library != "linen":
        return None
    parameters = signature.parameters
    for index in static.indices:
        if index + 1 < len(parameters) and index + 1 not in static.indices:
            marked, meant = parameters[index], parameters[index + 1]
            if static_arguments.is_array(signature, marked) and static_arguments.is_flag(
                signature, meant
            ):
                return marked.arg, meant.arg
    return None


def _plus_one(facts: Facts, static: StaticArguments) -> Fix | None:
    if not isinstance(static.node, (ast.Tuple, ast.Constant)):
        return None
    shifted = tuple(i + 1 for i in static.indices)
    text = repr(shifted) if isinstance(static.node, ast.Tuple) else str(shifted[0])
    edit: Edit = edits.replace(facts.source, static.node, text)
    return Fix("Count `self`", (edit,), "unsafe")


def _call_problem(
    static: StaticArguments, signature: Signature | None, passed: VisibleCall
) -> str | None:
    """What is wrong with one call, for the first static argument that it does not reach."""
    index = next((i for i in static.indices if i >= 0 and not passed.reaches(i)), None)
    if index is None:
        return None
    name = None
    if signature is not None and index < len(signature.parameters):
        name = signature.parameters[index].arg
    if name is not None and passed.names(name):
        if static.site.api.library == "partitioning":
            return f"static argument `{name}` is passed by keyword, and keywords are dropped here"
        return f"static argument `{name}` is passed by keyword, and only positions are static"
    if static.site.api.library == "partitioning":
        return None  # what is left out is no error here
    if name is None:
        given = [f"`{k.arg}`" for k in passed.call.keywords if k.arg is not None]
        if not given:
            return None
        return f"index {index} is past the arguments given by position: {', '.join(given)} are not"
    return f"static argument `{name}` is left to its default, and only positions are static"
