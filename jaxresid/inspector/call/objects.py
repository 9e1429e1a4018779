"""Find objects whose arrays a function changes in place, and copy them.

What most pytrees hold is changed by making another one, which a function returns. Others have their
arrays replaced within them, and whoever passed them in sees that: Flax NNX's Variables, in
arguments or closed over, and `jax.Ref`s, which are leaves of any tree.

A Variable is a leaf of the *outer* tree of a call; `Slot` says which leaves it holds itself. Where
the same one occurs twice (tied weights, a model beside the optimizer that knows it), it stays one.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxresid import jax_compat

# Attributes of a Variable in which its value is, newest Flax first (0.12, until 0.11).
_VALUES = ("_raw_value", "raw_value")
_MISSING = object()
# What cannot hold a tracer.
_PLAIN = (str, bytes, int, float, complex, type)


@dataclass(frozen=True, slots=True)
class Slot:
    """A leaf of the outer tree.

    Attributes:
      start, stop: the range of the leaves that it is, or holds.
      outside: the object itself, if the function reaches it by other ways as well.
    """

    start: int
    stop: int
    treedef: Any = None
    first: int | None = None
    outside: Any = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The way in which leaves make up a tree.

    Attributes:
      outer: the treedef in which a Variable is a leaf.
      slots: its leaves.
    """

    outer: Any
    slots: tuple[Slot, ...]

    @property
    def outside(self) -> tuple[Any, ...]:
        """The Variables that the function reaches by other ways as well, which are not made."""
        return tuple(s.outside for s in self.slots if s.outside is not None and s.first is None)

    def tree_of(self, leaves: Sequence[Any]) -> Any:
        """Return the tree of these leaves.

        Its Variables are new ones, except those outside, which are given the leaves.
        """
        jax = jax_compat.import_jax()
        values: list[Any] = []
        for slot in self.slots:
            if slot.first is not None:
                values.append(values[slot.first])
            elif slot.treedef is not None:
                value = jax.tree.unflatten(slot.treedef, leaves[slot.start : slot.stop])
                if slot.outside is not None:
                    key = value_of(value)
                    put(slot.outside, key, entries(value)[key])
                values.append(value if slot.outside is None else slot.outside)
            else:
                values.append(leaves[slot.start])
        return jax.tree.unflatten(self.outer, values)


@dataclass(frozen=True, slots=True)
class Flat:
    """A tree taken apart.

    Attributes:
      again: the leaves that occur once more: the leaf -> the first one.
      held: for each leaf whether it is in an object whose changes its owner sees.
      trainable: for each leaf whether the Variable that holds it is a Param; None: it is in none.
    """

    layout: Layout
    paths: tuple[tuple[Any, ...], ...]
    leaves: tuple[Any, ...]
    again: dict[int, int]
    held: tuple[bool, ...]
    trainable: tuple[bool | None, ...]


def flattened(tree: Any, outside: Sequence[Any] = ()) -> Flat:
    """Take a tree apart.

    Args:
      outside: objects that are used themselves, not made again.
    """
    jax = jax_compat.import_jax()
    kept = {id(owner) for owner in outside}
    with_paths, outer = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_variable)
    owners = _owners(tree)
    slots: list[Slot] = []
    first: dict[int, int] = {}
    paths: list[tuple[Any, ...]] = []
    leaves: list[Any] = []
    held: list[bool] = []
    trainable: list[bool | None] = []
    again: dict[int, int] = {}
    for number, (path, leaf) in enumerate(with_paths):
        start = len(leaves)
        if not is_variable(leaf):
            is_ref = jax_compat.is_ref(leaf)
            earlier = first.setdefault(id(leaf), number) if is_ref else number
            if earlier != number:
                again[start] = slots[earlier].start
            paths.append(path)
            leaves.append(leaf)
            held.append(is_ref or any(path[:n] in owners for n in range(len(path) + 1)))
            trainable.append(None)
            slots.append(Slot(start, start + 1, first=earlier if earlier != number else None))
            continue
        inner, treedef = jax.tree_util.tree_flatten_with_path(leaf)
        # One value is the Variable's own; of several, the first key is its attribute.
        paths += [path if len(inner) == 1 else (*path, *key[1:]) for key, _ in inner]
        leaves += [value for _, value in inner]
        held += [True] * len(inner)
        trainable += [is_trainable(leaf)] * len(inner)
        earlier = first.setdefault(id(leaf), number)
        if earlier != number:
            again |= {start + i: slots[earlier].start + i for i in range(len(inner))}
        slots.append(
            Slot(
                start,
                len(leaves),
                treedef,
                earlier if earlier != number else None,
                leaf if id(leaf) in kept else None,
            )
        )
    return Flat(
        Layout(outer, tuple(slots)),
        tuple(paths),
        tuple(leaves),
        again,
        tuple(held),
        tuple(trainable),
    )


def is_variable(value: Any) -> bool:
    kind = _flax("Variable")
    return kind is not None and isinstance(value, kind)


def is_module(value: Any) -> bool:
    """Return whether a value is an NNX module, optimizer or the like.

    The attributes of such a value are its state.
    """
    kind = _flax("Pytree") or _flax("Object")
    return kind is not None and isinstance(value, kind)


def is_trainable(variable: Any) -> bool:
    """Return whether gradients are taken of a Variable."""
    kind = _flax("Param")
    return kind is not None and isinstance(variable, kind)


def _flax(name: str) -> Any:
    kind = getattr(sys.modules.get("flax.nnx"), name, None)
    return kind if isinstance(kind, type) else None


def _owners(tree: Any) -> set[tuple[Any, ...]]:
    jax = jax_compat.import_jax()
    if _flax("Variable") is None:
        return set()
    with_paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_module)
    return {path for path, leaf in with_paths if is_module(leaf)}


def value_of(variable: Any) -> str:
    """Return the attribute in which a Variable holds its value, which its hooks do not see.

    Raises:
      TypeError: this Flax holds it elsewhere.
    """
    for name in _VALUES:
        if _attribute(variable, name) is not _MISSING:
            return name
    raise TypeError(
        f"a {type(variable).__name__} of this version of Flax holds its value elsewhere"
    )


def entries(owner: Any) -> dict[Any, Any]:
    """Return what is in an object by attribute, slots too; in a dict by key, in a list by index."""
    if type(owner) is dict:
        return dict(owner)
    if type(owner) in (list, tuple):
        return dict(enumerate(owner))
    names = [n for kind in type(owner).__mro__ for n in _slots(kind)]
    held = {n: v for n in names if (v := _attribute(owner, n)) is not _MISSING}
    own = _attribute(owner, "__dict__")
    return held | own if isinstance(own, dict) else held


def put(owner: Any, key: Any, value: Any) -> None:
    """Replace an entry, without what the object's class does when it is set."""
    if type(owner) in (dict, list):
        owner[key] = value
    else:
        object.__setattr__(owner, key, value)


@contextlib.contextmanager
def restored(owners: Sequence[Any]) -> Iterator[list[dict[Any, Any]]]:
    """Yield the entries of objects, dicts and lists, and restore them afterwards.

    They are restored whatever happened. Only notes stay that a function adds to dicts and lists and
    that hold nothing traced. Until the end, the owners may be changed in the trace that is going
    on, as if they had been made in it.
    """
    kept = [entries(owner) for owner in owners]
    try:
        for owner, before in zip(owners, kept, strict=True):
            for name, value in _trace_state(owner, before).items():
                put(owner, name, value)
        yield kept
    finally:
        for owner, before in zip(owners, kept, strict=True):
            _restore(owner, before)


def _restore(owner: Any, before: dict[Any, Any]) -> None:
    now = entries(owner)
    is_kept = before.keys() <= now.keys() and all(now[key] is before[key] for key in before)
    if is_kept and now.keys() == before.keys():
        return
    if is_kept and type(owner) in (dict, list):
        added = [now[key] for key in now.keys() - before.keys()]
        if all(isinstance(leaf, _PLAIN) for leaf in _leaves(added)):
            return
    if isinstance(owner, dict):
        owner.clear()
        owner.update(before)
    elif isinstance(owner, list):
        owner[:] = before.values()
    else:
        for name in now.keys() - before.keys():
            object.__delattr__(owner, name)
        for name, value in before.items():
            if now.get(name, _MISSING) is not value:
                object.__setattr__(owner, name, value)


def _leaves(value: Any) -> list[Any]:
    try:
        return list(jax_compat.import_jax().tree.leaves(value))
    except Exception:  # of keys that cannot be sorted, say
        return [value]


def _attribute(owner: Any, name: str) -> Any:
    try:
        return object.__getattribute__(owner, name)
    except AttributeError:
        return _MISSING


def _slots(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def _trace_state(owner: Any, held: Mapping[Any, Any]) -> dict[str, Any]:
    """Return those attributes of a Flax object that say in which trace it was made.

    They are made anew, in this trace.
    """
    if type(owner) in (dict, list):
        return {}
    fresh = {}
    for name, value in held.items():
        if name == "_trace_state":
            fresh[name] = type(value)()
        elif name in ("_pytree__state", "_object__state"):
            fresh[name] = state = copy.copy(value)
            for inner, now in _trace_state(state, entries(state)).items():
                object.__setattr__(state, inner, now)
    return fresh
