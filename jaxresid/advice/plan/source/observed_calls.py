"""Find out what functions are called with, of which a checkpoint takes only arrays.

An argument is `traced` where it is arrays through and through, `static` where it is one thing that
has a hash and is no array, such as a bool, a string or a callable, and `closed` where a checkpoint
can be given it in no way but as what its function closes over: a dict that holds a string.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from jaxresid import jax_compat
from jaxresid.inspector.call.arguments import Arguments, StaticNumber
from jaxresid.results import PlannedSite

Kind = Literal["traced", "static", "closed"]
_ORDER: tuple[Kind, ...] = ("traced", "static", "closed")
# How many frames of a library may stand between a line of the user's and what it calls.
_DEPTH = 40


@dataclass(frozen=True, slots=True)
class ArgumentKinds:
    """The kinds of the arguments that one function is given, by position and by name."""

    positional: tuple[Kind, ...] = ()
    named: Mapping[str, Kind] = field(default_factory=dict)

    def __or__(self, other: ArgumentKinds) -> ArgumentKinds:
        """Return what two calls are given; where they differ, the kind harder to hand on."""
        longer, shorter = sorted((self.positional, other.positional), key=len, reverse=True)
        positional = (
            *(_worse(a, b) for a, b in zip(longer, shorter, strict=False)),
            *longer[len(shorter) :],
        )
        named = {**self.named, **other.named}
        for name in self.named.keys() & other.named.keys():
            named[name] = _worse(self.named[name], other.named[name])
        return ArgumentKinds(positional, named)


@dataclass(frozen=True, slots=True)
class ObservedCalls:
    """What is known of calls.

    Attributes:
      target: What the target itself is given; None where nothing is known.
      seen: What other functions are given, by the file and line of the call and the function's
        qualified name, without the functions that it is defined in.
    """

    target: ArgumentKinds | None = None
    seen: Mapping[tuple[str, int, str], ArgumentKinds] = field(default_factory=dict)


def target_argument_kinds(arguments: Arguments) -> ArgumentKinds:
    """Return what a target is given."""
    jax = jax_compat.import_jax()
    roles = [
        _Role(role, leaf.value if isinstance(leaf, StaticNumber) else leaf)
        for leaf, role in zip(arguments.leaves, arguments.roles, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(arguments.treedef, roles)
    return ArgumentKinds(
        tuple(_of_roles(a) for a in args), {name: _of_roles(a) for name, a in kwargs.items()}
    )


@dataclass(frozen=True, slots=True)
class _Role:
    role: str
    leaf: Any


def _of_roles(argument: Any) -> Kind:
    if isinstance(argument, _Role):
        if argument.role != "static":
            return "traced"
        return "static" if _has_hash(argument.leaf) else "closed"
    leaves = jax_compat.import_jax().tree.leaves(argument)
    return "closed" if any(leaf.role == "static" for leaf in leaves) else "traced"


def kind_of(value: Any) -> Kind:
    """Return the kind of an argument's value."""
    jax = jax_compat.import_jax()
    try:
        leaves = jax.tree.leaves(value)
    except Exception:  # keys that cannot be sorted
        return "closed"
    if all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        return "traced"
    is_leaf = len(leaves) == 1 and leaves[0] is value
    return "static" if is_leaf and _has_hash(value) else "closed"


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except Exception:
        return False
    return True


def _worse(one: Kind, other: Kind) -> Kind:
    return max(one, other, key=_ORDER.index)


def calls_of(sites: Iterable[PlannedSite], cwd: str) -> frozenset[tuple[str, int, str]]:
    """Return the calls of a plan's new checkpoints, as keys of `Calls.seen`."""
    return frozenset(
        (os.path.normpath(os.path.join(cwd, s.location.file)), s.location.line, s.function)
        for s in sites
        if s.kind == "call" and s.location is not None
    )


@contextlib.contextmanager
def watching_calls(
    wanted: Iterable[tuple[str, int, str]], seen: dict[tuple[str, int, str], ArgumentKinds]
) -> Iterator[None]:
    """Record in `seen` what functions are called with in this thread, during the context."""
    places: dict[str, list[tuple[str, int, str]]] = {}
    for key in wanted:
        places.setdefault(key[2].rpartition(".")[2], []).append(key)

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_name not in places:
            return
        function = frame.f_code.co_qualname.rpartition("<locals>.")[2]
        for key in places[frame.f_code.co_name]:
            if key[2] == function and _is_called_from(frame, key[0], key[1]):
                given = _kinds_in_frame(frame)
                seen[key] = seen[key] | given if key in seen else given

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_called_from(frame: FrameType, file: str, line: int) -> bool:
    caller = frame.f_back
    for _ in range(_DEPTH):
        if caller is None:
            return False
        if caller.f_lineno == line and os.path.normpath(caller.f_code.co_filename) == file:
            return True
        caller = caller.f_back
    return False


def _kinds_in_frame(frame: FrameType) -> ArgumentKinds:
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames
    positional = [kind_of(values.get(name)) for name in names[: code.co_argcount]]
    end = code.co_argcount + code.co_kwonlyargcount
    named = {name: kind_of(values.get(name)) for name in names[:end]}
    if code.co_flags & 0x04:
        positional += [kind_of(value) for value in values.get(names[end], ())]
        end += 1
    if code.co_flags & 0x08:
        named |= {name: kind_of(value) for name, value in values.get(names[end], {}).items()}
    return ArgumentKinds(tuple(positional), named)


def observe_calls(
    wanted: Sequence[tuple[str, int, str]] | frozenset[tuple[str, int, str]],
    rerun: Callable[[], Any],
) -> Mapping[tuple[str, int, str], ArgumentKinds]:
    """Call `rerun` and return what the wanted functions are called with meanwhile."""
    seen: dict[tuple[str, int, str], ArgumentKinds] = {}
    with watching_calls(wanted, seen):
        rerun()
    return seen
