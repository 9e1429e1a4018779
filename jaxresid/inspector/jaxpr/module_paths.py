"""Find the paths of modules, `blocks[3].mlp`, from the parameters that their calls read.

Flax linen names its modules on the name stack; Flax NNX, Equinox and most others do not, and a
traceback tells a module's class alone. But what `blocks[3].mlp` computes with is under that path in
the arguments. The eqns of one call of a method are a run of eqns with the same frames. Its module's
path is what two kinds of paths have in common: those of the parameters that it reads itself,
without their own names, and those of the modules that it calls, without theirs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.calls import CallMark, call_starts
from jaxresid.inspector.jaxpr.frames import Frame, Frames, is_module_method
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.phases import BACKWARD, phase_of
from jaxresid.inspector.jaxpr.primitives import TRANSPARENT
from jaxresid.jax_compat.jaxpr_types import Eqn, Var

# What hands a parameter on as another form of it.
_FORMS = TRANSPARENT | {"optimization_barrier"}
_TOKENS = re.compile(r"\[(\d+)\]|\['([^']*)'\]|\[([^\[\]]*+)\]|\.?([^.\[\]]+)")

Path = tuple[str, ...]  # `("model", "blocks", "[3]", "mlp")`


@dataclass(frozen=True, slots=True)
class _Eqn:
    """One eqn of a level.

    Attributes:
      frames: those below the level's, outermost first.
      methods: which of them are methods of modules.
      reads: paths of the parameters that it reads.
      primitive: the name of its primitive.
      is_transposed: whether it is of a backward pass.
    """

    frames: tuple[Frame, ...]
    methods: tuple[int, ...]
    reads: tuple[Path, ...]
    primitive: str
    is_transposed: bool


class Position(Protocol):
    """The stack of an eqn, outermost frame first."""

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames, outermost first."""


class LevelReader(Protocol):
    """The descent from a level into its eqns, as `levels.Levels` does it."""

    frames: Frames

    def enter(self, level: Level, eqn: Eqn, which: int) -> Level:
        """Return the level of the eqn's inner jaxpr number `which`."""

    def position(self, level: Level, eqn: Eqn) -> Position:
        """Return the stack of an eqn of this level."""


class ModulePaths:
    """A finder of the modules that eqns belong to; it caches by level."""

    def __init__(self, levels: LevelReader) -> None:
        self._levels = levels
        self._found: dict[Level, dict[int, Path]] = {}
        self._known: dict[Level, dict[Var, Path]] = {}
        self._is_list: dict[tuple[Level, Path], bool] = {}

    def of(self, level: Level, eqn: Eqn) -> str:
        """Return the path of the module whose method an eqn comes from, `blocks[3].mlp`.

        The argument's name is left out. Empty where the arguments do not tell.
        """
        return display_path(self._of_module(level, self._paths(level).get(id(eqn), ())))

    def _paths(self, level: Level) -> dict[int, Path]:
        found = self._found.get(level)
        if found is None:
            around: Path = ()
            if level.parent is not None:
                around = self._paths(level.parent).get(id(level.eqn), ())
            ids = [id(eqn) for eqn in level.jaxpr.eqns]
            found = self._found[level] = dict.fromkeys(ids, around) if around else {}
            if self._inputs(level) and self._has_methods(level):
                eqns = [self._eqn(level, eqn) for eqn in level.jaxpr.eqns]
                named = _paths_of_span(eqns, range(len(eqns)), 0, around)
                found.update((ids[i], path) for i, path in named.items())
        return found

    def inside(self, level: Level, eqn: Eqn) -> str:
        """Return the path of the module of an eqn with a body, such as a checkpoint."""
        child = self._levels.enter(level, eqn, 0)
        path = _common([path for path in self._paths(child).values() if path])
        return display_path(self._of_module(child, path))

    def _of_module(self, level: Level, path: Path) -> Path:
        """Return the path itself, or that of what holds a list of modules.

        The latter is for the path of a list of modules, several of which were called.
        """
        while level.parent is not None:
            level = level.parent
        key, count = (level, path), len(path)
        if key not in self._is_list:
            inside = (p for p in self._inputs(level).values() if p[:count] == path)
            self._is_list[key] = any(p[count].startswith("[") for p in inside if len(p) > count)
        return path[:-1] if self._is_list[key] else path

    def _has_methods(self, level: Level) -> bool:
        stacks = map(self._levels.frames.of, level.jaxpr.eqns)
        each = {id(stack): stack.frames for stack in stacks}  # one object for one traceback
        frames = {frame for found in each.values() for frame in found}
        return any(map(is_module_method, frames))

    def _inputs(self, level: Level) -> dict[Var, Path]:
        """Return the parameters among a level's variables, in whatever form, with their paths."""
        known = self._known.get(level)
        if known is not None:
            return known
        known = self._known[level] = {}
        if level.parent is None:
            pairs = zip(level.jaxpr.invars, level.inputs, strict=False)
            known.update((var, tokens(path)) for var, path in pairs if path)
        elif (above := self._inputs(level.parent)) and level.nest is not None:
            for var, operand in zip(level.jaxpr.invars, level.nest.operands, strict=False):
                outer = level.eqn.invars[operand]
                if not jax_compat.is_literal(outer) and outer in above:
                    known[var] = above[outer]
        if known:
            for eqn in level.jaxpr.eqns:
                if jax_compat.primitive_name(eqn) in _FORMS and not jax_compat.is_literal(
                    eqn.invars[0]
                ):
                    path = known.get(eqn.invars[0])
                    if path is not None:
                        known[eqn.outvars[0]] = path
        return known

    def _eqn(self, level: Level, eqn: Eqn) -> _Eqn:
        known = self._inputs(level)
        frames = self._levels.position(level, eqn).frames[len(level.frames) :]
        reads = [known[v] for v in eqn.invars if not jax_compat.is_literal(v) and v in known]
        return _Eqn(
            frames,
            tuple(i for i, frame in enumerate(frames) if is_module_method(frame)),
            tuple(path for path in reads if len(path) > 1),
            jax_compat.primitive_name(eqn),
            phase_of(jax_compat.name_stack(eqn)) == BACKWARD,
        )


def _paths_of_span(
    eqns: Sequence[_Eqn], span: Iterable[int], depth: int, around: Path
) -> dict[int, Path]:
    """Return the module's path for each eqn of a span that is in `depth` methods, or more.

    Args:
      eqns: all eqns of the level.
      span: the indices of those that are asked about.
      depth: how many methods enclose the eqns of the span.
      around: the path of the module whose method calls them.
    """
    found: dict[int, Path] = {}
    for stretch in _stretches(eqns, span, depth):
        if len(eqns[stretch[0]].methods) <= depth:
            found.update(dict.fromkeys(stretch, around))
            continue
        calls = [_of_call(eqns, run, depth) for run in _runs(eqns, stretch, depth)]
        # A call may fall into pieces: what is transposed runs in another order.
        paths = {path for path, _ in calls if path}
        other = paths.pop() if len(paths) == 1 else around
        for path, known in calls:
            found.update((i, at or path or other) for i, at in known.items())
    return found


def _of_call(eqns: Sequence[_Eqn], run: Sequence[int], depth: int) -> tuple[Path, dict[int, Path]]:
    """Return the path of the module whose method one call is of, and the paths of its eqns.

    An eqn's path is that of the method that it comes from, as far as it is another one. Paths are
    empty where no parameter tells.
    """
    inner = [i for i in run if len(eqns[i].methods) > depth + 1]
    below = _paths_of_span(eqns, inner, depth + 1, ())
    own = [path for i in run if i not in below for path in eqns[i].reads]
    calls = {(below[i], _is_same(eqns[i], depth)) for i in inner if below[i]}
    candidates = [_owner(path) for path in own]
    candidates += [path if same else _owner(path) for path, same in calls]
    return _common([c for c in candidates if c]), {i: below.get(i, ()) for i in run}


def _is_same(eqn: _Eqn, depth: int) -> bool:
    """Return whether the method that the one at `depth` calls is one of the same class."""
    caller, called = (eqn.frames[eqn.methods[at]].code.co_qualname for at in (depth, depth + 1))
    return caller.rpartition(".")[0] == called.rpartition(".")[0]


def _stretches(eqns: Sequence[_Eqn], span: Iterable[int], depth: int) -> Iterator[list[int]]:
    """Yield runs of eqns that came through the same frames into the method number `depth`."""

    def key(i: int) -> Hashable:
        eqn = eqns[i]
        if len(eqn.methods) <= depth:
            return None
        at = eqn.methods[depth]
        return eqn.frames[:at], eqn.frames[at].code, eqn.is_transposed

    for _, group in itertools.groupby(span, key):
        yield list(group)


def _runs(eqns: Sequence[_Eqn], stretch: Sequence[int], depth: int) -> Iterator[Sequence[int]]:
    """Yield the calls that make up a run of eqns."""
    at = eqns[stretch[0]].methods[depth]
    marks = [CallMark(eqns[i].frames[at:], eqns[i].primitive) for i in stretch]
    for start, stop in itertools.pairwise([*call_starts(marks), len(stretch)]):
        yield stretch[start:stop]


def tokens(path: str) -> Path:
    """Split a path: `params['blocks'][3].mlp` into `("params", "blocks", "[3]", "mlp")`."""
    found = []
    for number, quoted, other, name in _TOKENS.findall(path):
        found.append(f"[{number}]" if number else quoted or name or f"[{other}]")
    return tuple(found)


def display_path(path: Path) -> str:
    """Return a path as a user writes it after the model's name, `blocks[3].mlp`.

    For an argument that is itself a list of modules, the argument is part of it: `blocks[3].mlp`,
    too.
    """
    behind = path if len(path) > 1 and path[1].startswith("[") else path[1:]
    text = "".join(token if token.startswith("[") else f".{token}" for token in behind)
    return text.removeprefix(".")


def _owner(path: Path) -> Path:
    """Return what holds the last of a path.

    That of `blocks[3].mlp` is `blocks[3]`, that of `blocks[3]` is the model.
    """
    end = len(path) - 1
    while end > 0 and path[end].startswith("["):
        end -= 1
    return path[:end]


def _common(paths: Sequence[Path]) -> Path:
    """Return what the paths have in common.

    If they are of several arguments, those of the argument that tells most: a module reads a batch,
    too.
    """
    roots: dict[str, list[Path]] = {}
    for path in paths:
        roots.setdefault(path[0], []).append(path)
    found: list[Path] = []
    for each in roots.values():
        same = itertools.takewhile(lambda p: len(set(p)) == 1, zip(*each, strict=False))
        found.append(tuple(p[0] for p in same))
    return max(found, key=len, default=())
