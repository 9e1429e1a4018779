"""Find the values of a jaxpr that a user can name, by the expression that makes each; name them.

A policy sees names, not lines: to save the output of line 42 the user writes `checkpoint_name`
around that expression. The traceback of an eqn holds the instruction of the user's innermost
frame, and Python knows which expression an instruction belongs to.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.frames import Frame, Frames, characters, inside
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.primitives import CONTROL, TRANSPARENT, of_kind
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.program.avals import aval_of
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Expression

# What holds values that a policy sees: not the bodies of custom_jvp and custom_vjp, whose rules
# replace them, nor loops.
_SEEN = of_kind("call", "checkpoint")
# And what else holds values that are named along with them.
_EVERYWHERE = _SEEN | CONTROL


@dataclass(frozen=True, slots=True, eq=False)
class Nameable:
    """A value that is the result of an expression, once in a jaxpr.

    Attributes:
      name: the checkpoint_name that it has already; None without one.
      expression: the expression that makes it; None for one with a name that has no line.
      jaxpr: the open jaxpr that holds it, which may be called several times.
      eqn: the eqn that makes it.
      index: which of the eqn's results it is.
      is_view: whether it is another one's reshape, cast or the like of no fewer bytes.
    """

    name: str | None
    expression: Expression | None
    jaxpr: Jaxpr
    eqn: Eqn
    index: int
    is_view: bool = False

    @property
    def var(self) -> Var:
        """The variable of the value."""
        return self.eqn.outvars[self.index]


def nameable(body: Jaxpr, frames: Frames) -> tuple[Nameable, ...]:
    """Return the values of a checkpoint's body that have or can be given a name, in program order.

    Views are left out: saving the values that they are views of has the same effect.

    Args:
      body: an open jaxpr.
      frames: reads the eqns' tracebacks.
    """
    return tuple(value for value in expressed(body, frames) if not value.is_view)


def expressed(body: Jaxpr, frames: Frames, *, loops: bool = False) -> tuple[Nameable, ...]:
    """Return all values that a name around an expression would name, in program order.

    Args:
      body: an open jaxpr.
      frames: reads the eqns' tracebacks.
      loops: whether to include those in loops and branches, which a policy for the body does not
        see.
    """
    levels = Levels(frames)
    entered = _EVERYWHERE if loops else _SEEN
    return tuple(_levels(levels, Level(body), entered, set()))


def named(
    body: Jaxpr, names: Sequence[tuple[Expression, str]], frames: Frames, *, loops: bool = False
) -> Jaxpr:
    """Return the open jaxpr with the values of these expressions named.

    It has the inputs and outputs of the one that is given.

    Args:
      body: an open jaxpr.
      names: the expressions, each with the name that its values get.
      frames: reads the eqns' tracebacks.
      loops: whether to name also values in loops and branches, as in `expressed`.
    """
    wanted: Mapping[Expression | None, str] = dict(names)
    by_jaxpr: dict[int, tuple[Jaxpr, list[Nameable]]] = {}
    for value in expressed(body, frames, loops=loops):
        if value.name is None and value.expression in wanted:
            by_jaxpr.setdefault(id(value.jaxpr), (value.jaxpr, []))[1].append(value)

    def regroup(values: Sequence[Nameable], eqns: Sequence[Eqn], old: Sequence[Eqn]) -> list[Eqn]:
        places = {id(v.eqn): v for v in values}
        made = []
        for before, eqn in zip(old, eqns, strict=True):
            value = places.get(id(before))
            if value is None:
                made.append(eqn)
                continue
            label = jax_compat.as_name(value.var, wanted[value.expression])
            outvars = list(eqn.outvars)
            outvars[value.index] = label.invars[0]
            made.append(eqn.replace(outvars=outvars))
            made.append(label.replace(outvars=[value.var], source_info=eqn.source_info))
        return made

    return rewritten(
        body,
        {},
        {
            key: functools.partial(regroup, values, old=jaxpr.eqns)
            for key, (jaxpr, values) in by_jaxpr.items()
        },
    )


def _levels(
    levels: Levels, level: Level, entered: frozenset[str], seen: set[int]
) -> Iterator[Nameable]:
    if id(level.jaxpr) in seen:
        return
    seen.add(id(level.jaxpr))
    yield from _nameable_at(levels, level)
    for eqn in level.jaxpr.eqns:
        if jax_compat.primitive_name(eqn) in entered:
            for which in range(len(levels.nests(eqn))):
                yield from _levels(levels, levels.enter(level, eqn, which), entered, seen)


def _nameable_at(levels: Levels, level: Level) -> Iterator[Nameable]:
    """Yield the nameable values of one level."""
    jaxpr = level.jaxpr
    last_read: dict[Var, int] = {}
    names: dict[Var, str] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        for v in eqn.invars:
            if not jax_compat.is_literal(v):
                last_read[v] = i
        if jax_compat.primitive_name(eqn) == "name":
            names[eqn.invars[0]] = str(jax_compat.params(eqn)["name"])
    for v in jaxpr.outvars:
        if not jax_compat.is_literal(v):
            last_read[v] = len(jaxpr.eqns)
    known: dict[Var, int] = {}
    executions = list(_executions(levels, level))
    # A function of a library may call back one of the user's: what it made before is no result.
    unfinished = {
        _expression(frames, levels.frames)
        for (_, _, frames), (_, _, after) in itertools.pairwise(executions)
        if len(after) > len(frames) and after[: len(frames)] == frames
    }
    for start, stop, frames in executions:
        last = jaxpr.eqns[stop - 1]
        is_named = jax_compat.primitive_name(last) == "name"
        leaving = [
            (eqn, index)
            for eqn in jaxpr.eqns[start:stop]
            for index, v in enumerate(eqn.outvars)
            if last_read.get(v, -1) >= stop
        ]
        if is_named:
            expression = _expression(frames, levels.frames)
            yield Nameable(str(jax_compat.params(last)["name"]), expression, jaxpr, last, 0)
            known[last.outvars[0]] = _nbytes(last.outvars[0])
            continue
        if len(leaving) != 1:
            continue
        (eqn, index) = leaving[0]
        v = eqn.outvars[index]
        if v in names or not _nbytes(v):
            continue
        is_view = _is_view(eqn, known)
        expression = _expression(frames, levels.frames)
        if expression in unfinished:
            continue
        if is_view or expression is not None:
            known[v] = _nbytes(v)
        if expression is not None:
            yield Nameable(None, expression, jaxpr, eqn, index, is_view)


def _is_view(eqn: Eqn, known: Mapping[Var, int]) -> bool:
    """Return whether a value is a known one in another form, of no fewer bytes."""
    if jax_compat.primitive_name(eqn) not in TRANSPARENT:
        return False
    source = eqn.invars[0]
    if jax_compat.is_literal(source):
        return True
    return source in known and known[source] <= _nbytes(eqn.outvars[0])


def _nbytes(var: Var) -> int:
    return aval_of(var).nbytes


def _executions(levels: Levels, level: Level) -> Iterator[tuple[int, int, tuple[Frame, ...]]]:
    """Yield the stretches of eqns that one execution of an instruction of the user's made.

    Each comes with the frames down to that instruction. Where a loop runs an instruction again, it
    begins with the eqn that it began with before.
    """
    jaxpr = level.jaxpr
    start, current, first = 0, None, None
    for i, eqn in enumerate([*jaxpr.eqns, None]):
        key = mark = None
        if eqn is not None:
            frames = _frames(levels, level, eqn)
            key = _down_to_user(frames)
            mark = (frames, jax_compat.primitive_name(eqn), jax_compat.traceback(eqn))
        if i > start and (key != current or mark == first):
            if current:
                yield start, i, current
            start, current, first = i, key, mark
        elif i == start:
            current, first = key, mark


def _frames(levels: Levels, level: Level, eqn: Eqn) -> tuple[Frame, ...]:
    """Return the frames of an eqn from the function on that its jaxpr was traced from.

    The frames above that one are at the call, whose expression is its result, not what it makes
    inside. Calls share a jaxpr, as those of jnp.var do.
    """
    if level.parent is None:
        stack = levels.frames.of(eqn)
        return stack.frames if stack.rooted else inside(stack, level.jaxpr)
    return levels.place(level, eqn).frames[len(level.frames) :]


def _down_to_user(frames: tuple[Frame, ...]) -> tuple[Frame, ...] | None:
    for i in range(len(frames), 0, -1):
        if frames[i - 1].kind == "user":
            return frames[:i]
    return None


def _expression(path: tuple[Frame, ...], frames: Frames) -> Expression | None:
    """Return the expression that the innermost of these frames was at.

    None where it is not an expression: `x += y` is a statement.
    """
    return _expression_of(path[-1], frames)


def _expression_of(frame: Frame, frames: Frames) -> Expression | None:
    place = frames.span(frame)
    if place is None:
        return None
    file = frame.code.co_filename
    text = _expressions(file).get(place)
    if text is None:
        return None
    return Expression(
        file.removeprefix(frames.cwd),
        *place,
        frame.code.co_qualname.replace(".<locals>", ""),
        text,
    )


@functools.cache
def _expressions(file: str) -> Mapping[tuple[int, int, int, int], str]:
    """Map positions in a file to the expressions there that have a value, each as text on one line.

    A position is row, column, end row and end column. The targets of assignments are left out, and
    so are statements such as `x += y`.
    """
    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or isinstance(node, ast.Starred | ast.Slice):
            continue
        if not isinstance(getattr(node, "ctx", None) or ast.Load(), ast.Load):
            continue
        end_row, end = node.end_lineno, node.end_col_offset
        if end_row is None or end is None:
            continue
        column = characters(lines[node.lineno - 1], node.col_offset)
        end_column = characters(lines[end_row - 1], end)
        # Not `ast.get_source_segment`, which splits the whole file into lines each time.
        segment = lines[node.lineno - 1 : end_row]
        segment[-1] = segment[-1][:end_column]
        segment[0] = segment[0][column:]
        found[node.lineno, column, end_row, end_column] = " ".join("".join(segment).split())
    return found
