"""Find an eqn's place in the nest of jaxprs, and what that tells: stack, scope, enclosures.

A `Level` is one jaxpr reached by descending from the top through eqns. JAX keeps no frames above
the innermost traced function (since 0.7.1; before, it kept its first caller's), so an eqn's stack
is put together from the eqns that enclose it.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.callsites import CallSites
from jaxresid.inspector.jaxpr.frames import Frame, Frames, below, inside, is_module_method
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.module_paths import ModulePaths
from jaxresid.inspector.jaxpr.nesting import Nest, label, nests
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Location, Source

# Scopes that we put into a trace to find checkpoints again begin with it.
MARK = "jaxresid_checkpoint_"


@dataclass(frozen=True, slots=True)
class EqnPlace:
    """The stack, enclosures, scope and module that the position of one eqn tells.

    Attributes:
      frames: its stack, outermost first.
      within: enclosing loops, calls, checkpoints and transforms, outermost first.
      scope: name-stack scopes, joined.
      module: where there are no scopes, the module's path in the arguments, `blocks[3].mlp`.
    """

    frames: tuple[Frame, ...]
    within: tuple[str, ...]
    scope: str
    module: str = ""


class Levels:
    """A descent into eqns, which caches what is asked again for each of them.

    It caches by the ids of eqns and jaxprs, so the jaxprs have to live as long as it does. Each
    trace has one, `Traced.levels`.

    Args:
      frames: reads the eqns' tracebacks.
    """

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.sites = CallSites(frames)
        self.modules = ModulePaths(self)
        self._children: dict[tuple[int, int, int], Level] = {}
        self._producers: dict[int, dict[Var, tuple[Eqn, int]]] = {}
        self._invars: dict[int, dict[Var, int]] = {}
        self._readers: dict[int, dict[Var, list[tuple[Eqn, int]]]] = {}
        self._outvars: dict[int, dict[Var, list[int]]] = {}
        self._nests: dict[int, tuple[Nest, ...]] = {}
        self._inner: dict[int, dict[int, list[tuple[int, int]]]] = {}
        self._functions: dict[int, dict[str | CodeType | None, list[tuple[Frame, ...]]]] = {}

    def nests(self, eqn: Eqn) -> tuple[Nest, ...]:
        """Return the inner jaxprs of an eqn, as `nesting.nests` does."""
        found = self._nests.get(id(eqn))
        if found is None:
            found = self._nests[id(eqn)] = nests(eqn)
        return found

    def inner(self, eqn: Eqn, operand: int) -> Sequence[tuple[int, int]]:
        """Return what an eqn's operand is inside it: the numbers of a nest and of its invar."""
        index = self._inner.get(id(eqn))
        if index is None:
            index = self._inner[id(eqn)] = {}
            for which, nest in enumerate(self.nests(eqn)):
                for position, outside in enumerate(nest.operands):
                    index.setdefault(outside, []).append((which, position))
        return index.get(operand, ())

    def producer(self, level: Level, var: Var) -> tuple[Eqn, int] | None:
        """Return the eqn that makes `var` and which of its results it is; None for inputs."""
        jaxpr = level.jaxpr
        index = self._producers.get(id(jaxpr))
        if index is None:
            index = {v: (eqn, i) for eqn in jaxpr.eqns for i, v in enumerate(eqn.outvars)}
            self._producers[id(jaxpr)] = index
        return index.get(var)

    def invar(self, level: Level, var: Var) -> int | None:
        """Return which invar of the level `var` is; None for a constant."""
        jaxpr = level.jaxpr
        index = self._invars.get(id(jaxpr))
        if index is None:
            index = self._invars[id(jaxpr)] = {v: i for i, v in enumerate(jaxpr.invars)}
        return index.get(var)

    def outvars(self, level: Level, var: Var) -> Sequence[int]:
        """Return which outvars of the level `var` is."""
        jaxpr = level.jaxpr
        index = self._outvars.get(id(jaxpr))
        if index is None:
            index = self._outvars[id(jaxpr)] = {}
            for i, v in enumerate(jaxpr.outvars):
                if not jax_compat.is_literal(v):
                    index.setdefault(v, []).append(i)
        return index.get(var, ())

    def readers(self, level: Level, var: Var) -> list[tuple[Eqn, int]]:
        """Return the eqns that read `var`, each with the operand that it reads it as."""
        jaxpr = level.jaxpr
        index = self._readers.get(id(jaxpr))
        if index is None:
            index = self._readers[id(jaxpr)] = {}
            for eqn in jaxpr.eqns:
                for i, v in enumerate(eqn.invars):
                    if not jax_compat.is_literal(v):
                        index.setdefault(v, []).append((eqn, i))
        return index.get(var, [])

    def enter(self, level: Level, eqn: Eqn, which: int) -> Level:
        """Return the level of the eqn's inner jaxpr number `which`."""
        key = (id(level), id(eqn), which)
        child = self._children.get(key)
        if child is None:
            place = self.position(level, eqn)
            nest = self.nests(eqn)[which]
            name = label(eqn)
            twin = self.sites.find(level.primal, level.jaxpr, level.frames, eqn).twin
            twins = nests(twin) if twin is not None else ()
            child = self._children[key] = Level(
                jaxpr=nest.jaxpr,
                parent=level,
                eqn=eqn,
                nest=nest,
                frames=place.frames,
                within=place.within + ((name,) if name else ()),
                scope=place.scope,
                primal=twins[which].jaxpr if which < len(twins) else None,
            )
        return child

    def place(self, level: Level, eqn: Eqn) -> EqnPlace:
        """Return the stack, enclosures, scope and module of an eqn of this level."""
        found = self.position(level, eqn)
        return found if found.scope else replace(found, module=self.modules.of(level, eqn))

    def position(self, level: Level, eqn: Eqn) -> EqnPlace:
        """Return the stack, enclosures and scope of an eqn of this level, without its module."""
        stack = self.frames.of(eqn)
        under = below(stack, level.frames, level.jaxpr)
        if not stack.rooted and stack.frames and not (level.parent and stack.whole):
            under = self._called(level, stack.frames[0]) + under
        site = self.sites.find(level.primal, level.jaxpr, level.frames, eqn)
        within = [*level.within, *site.labels]
        if site.jaxpr is not None:
            under = site.frames + inside(stack, site.jaxpr)
        within += [t for t in stack.transforms if t not in level.within]
        names = jax_compat.name_stack(eqn)
        if "vmap(" in names and "vmap" not in site.labels:
            within.append("vmap")
        scope = scope_of(names)
        return EqnPlace(
            frames=level.frames + under,
            within=tuple(within),
            scope="/".join(s for s in (level.scope, scope) if s),
        )

    def _called(self, level: Level, start: Frame) -> tuple[Frame, ...]:
        """Return the frames of the calls of a function whose eqns are outside it.

        Only the frames that all its calls share are returned. Differentiation moves what does not
        change from trip to trip out of a scan, and what a checkpoint computes in the forward pass
        of a training step out of the checkpoint.

        Args:
          level: the level that holds the eqns.
          start: the outermost known frame of such an eqn.
        """
        index = self._functions.get(id(level.jaxpr))
        if index is None:
            index = self._functions[id(level.jaxpr)] = {}
            for eqn in level.jaxpr.eqns:
                for nest in self.nests(eqn):
                    for key in {jax_compat.traced_function(nest.jaxpr), *self._starts(eqn, nest)}:
                        index.setdefault(key, []).append(self.frames.of(eqn).frames)
        code = start.code
        traced = f"{code.co_name} at {code.co_filename}:{code.co_firstlineno}"
        callers = index.get(traced, []) or index.get(code, [])
        return _common(dict.fromkeys(callers))

    def _starts(self, eqn: Eqn, nest: Nest) -> Iterator[CodeType]:
        """Yield the function that JAX called for the body of a checkpoint.

        It is not always the one that JAX names, which is what a library wrapped.
        """
        if jax_compat.primitive_name(eqn) == "remat":
            for inner in nest.jaxpr.eqns:
                stack = self.frames.of(inner)
                if stack.frames and not stack.whole:
                    yield stack.frames[0].code
                    return

    def location(self, level: Level, eqn: Eqn) -> Location | None:
        """Return the innermost line of the user's own code."""
        return self.frames.innermost_user(self.position(level, eqn).frames)

    def source(self, level: Level, eqn: Eqn) -> Source:
        """Return where an eqn of this level comes from."""
        return source_of(self.frames, self.place(level, eqn))

    def source_below(self, jaxpr: Jaxpr, path: Sequence[Eqn]) -> Source:
        """Return where the last of some eqns comes from, each of which holds the next.

        Args:
          jaxpr: the open jaxpr with the first of them.
          path: the eqns.
        """
        level = Level(jaxpr)
        for eqn in path[:-1]:
            level = self.enter(level, eqn, 0)
        return self.source(level, path[-1])

    def stack(self, level: Level, eqn: Eqn) -> tuple[Location, ...]:
        """Return the user's and the libraries' frames of an eqn of this level, outermost first."""
        return stack_of(self.frames, self.position(level, eqn))


def stack_of(frames: Frames, place: EqnPlace) -> tuple[Location, ...]:
    """Return the user's and the libraries' frames of a place, outermost first."""
    return tuple(frames.location(f) for f in place.frames if f.kind != "jax")


def source_of(frames: Frames, place: EqnPlace) -> Source:
    """Return where something at a place comes from."""
    library, caller = frames.library_calls(place.frames)
    location = frames.innermost_user(place.frames)
    return Source(
        location=location,
        library=library if library != location else None,
        caller=caller if caller != location else None,
        scope=place.scope or place.module or module_path(place.frames),
    )


def _common(stacks: Iterable[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """Return what stacks have in common, from the outermost frame on."""
    each = list(stacks)
    if not each:
        return ()
    pairs = itertools.takewhile(lambda p: len(set(p)) == 1, zip(*each, strict=False))
    return tuple(frames[0] for frames in pairs)


@functools.cache
def scope_of(name_stack: str) -> str:
    """Return the scopes of a name stack without the transforms.

    `jvp(trunk)/vmap(attn)/mlp` becomes `trunk/attn/mlp`. Scopes of jnp.einsum (`bhqk,bkhd->bqhd`)
    are left out too, and so are Equinox's, which name its own layers (`eqx.nn.Linear`) without the
    model around them; `module_path` tells more.
    """
    text = re.sub(r"\b\w+\(", "(", name_stack)
    parts = re.split(r"[()/]+", text)
    drop = ("", "rematted_computation", "checkpoint")
    other = ("eqx.", MARK)
    kept = [p for p in parts if p not in drop and "->" not in p and not p.startswith(other)]
    # Of a checkpoint that was differentiated: `transpose(jvp(net))/mlp/jvp(net)/mlp`.
    half = len(kept) // 2
    if kept[:half] == kept[half:]:
        kept = kept[:half]
    return "/".join(p for p, _ in itertools.groupby(kept))


def module_path(frames: Iterable[Frame]) -> str:
    """Return the classes whose methods are on the stack, as `Transformer/Block/Linear`.

    It is used where neither the name stack nor the arguments name a module.
    """
    names = (frame.code.co_qualname.split(".")[-2] for frame in frames if is_module_method(frame))
    return "/".join(name for name, _ in itertools.groupby(names))
