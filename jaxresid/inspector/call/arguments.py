"""Flatten a call into leaves, and decide what tracing does with each of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError
from jaxresid.inspector.call.jitted_by import jitted_function
from jaxresid.inspector.call.leaves import is_array, is_inexact, is_number, mesh_of, struct
from jaxresid.inspector.call.objects import Flat, Layout, entries, flattened, value_of
from jaxresid.inspector.call.outside import outside
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.call.sharding import Sharding
from jaxresid.inspector.call.splits import parts
from jaxresid.jax_compat.jaxpr_types import Var

# What helps where what makes the inputs cannot be traced, or leaves something behind when it is.
CONCRETE = "--concrete-inputs calls it without tracing (its arrays are then allocated)"


class StaticNumber:
    """A number that stays static where a bare one would be traced."""

    __slots__ = ("value",)

    def __init__(self, value: complex) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class ReachedObject:
    """Something that the function reaches by itself, see `outside`, whose leaves are inputs.

    Attributes:
      owner, key: the place that it is in: the attribute of an object, the entry of a dict or a
        list. No owner (None): the key is a Ref, whatever reaches it.
      path: what its leaves' paths begin with.
      start, stop: the range of its leaves.
      treedef: its tree structure.
    """

    owner: Any
    key: Any
    path: str
    start: int
    stop: int
    treedef: Any


@dataclass(frozen=True, slots=True)
class Arguments:
    """The leaves of a call, sorted by what tracing does with them.

    Attributes:
      paths: the path of each leaf, `params['layers'][3]['w']`.
      leaves: the leaves; arrays as ShapeDtypeStructs, static ones as they are.
      roles: for each leaf `differentiated`, `traced`, `static`, or `again`: that of an object which
        occurs before it already.
      treedef: the structure of `(args, kwargs)`, whose leaves come first.
      layout: how objects that the function may change in place are made of the leaves.
      names: what the positional arguments are called.
      reached: what is no argument; its leaves come last.
      owners: the objects, dicts and lists that the function reaches, with their paths: it may put
        something into them, and they are to stay as they are.
      refs: the leaves that are what a `jax.Ref` holds, each with the Ref.
      is_mutable: whether it holds any object whose change in place its owner sees.
      changing: the paths whose leaves the function changes; None: not known yet.
      mesh: what the leaves are split over, a Mesh or an AbstractMesh; None: they are not.
      context: the mesh to trace in; None: that which the caller is in.
      trips: the trips of while loops whose number the program decides; None: not said.
      numbers: the static leaves that are Python numbers and arguments themselves. A loss may look
        at them; `jax.jit` traces them.
    """

    paths: tuple[str, ...]
    leaves: tuple[Any, ...]
    roles: tuple[str, ...]
    treedef: Any
    layout: Layout
    names: tuple[str, ...]
    reached: tuple[ReachedObject, ...] = ()
    owners: tuple[tuple[str, Any], ...] = ()
    refs: Mapping[int, Any] = field(default_factory=dict)
    is_mutable: bool = False
    changing: frozenset[str] | None = None
    mesh: Any = None
    context: Any = None
    trips: int | None = None
    numbers: frozenset[int] = frozenset()

    def having(self, role: str) -> tuple[int, ...]:
        """Return the indices of the leaves that have a role."""
        return tuple(i for i, r in enumerate(self.roles) if r == role)

    @property
    def dynamic(self) -> tuple[int, ...]:
        """The indices of the leaves that are invars, in the order of the forward jaxpr's invars."""
        return self.having("differentiated") + self.having("traced")

    def with_numbers(self, role: str) -> Arguments:
        """Return the arguments with another role of `numbers`: `traced` or `static`."""
        roles = tuple(role if i in self.numbers else r for i, r in enumerate(self.roles))
        return self if roles == self.roles else replace(self, roles=roles)

    def some(self, numbers: Iterable[int]) -> Arguments:
        """Return the arguments with only some of the traced leaves.

        Args:
          numbers: the places in `dynamic` of those that stay.
        """
        dynamic = self.dynamic
        left_out = set(dynamic).difference(dynamic[n] for n in numbers)
        kept = [i for i in range(len(self.leaves)) if i not in left_out]
        return replace(
            self,
            paths=tuple(self.paths[i] for i in kept),
            leaves=tuple(self.leaves[i] for i in kept),
            roles=tuple(self.roles[i] for i in kept),
        )

    def sharding(
        self, invars: Sequence[Var], known: Mapping[Var, tuple[int, ...]]
    ) -> Sharding | None:
        """Return how a jaxpr is split; None without a mesh. See `Sharding`.

        Args:
          invars: the invars of the jaxpr, constants first.
          known: the shapes that a device holds of other variables.
        """
        if self.mesh is None:
            return None
        given = zip(reversed(invars), reversed(self.dynamic), strict=False)
        splits = {var: _split_of(self.leaves[i]) for var, i in given}
        return Sharding(jax_compat.axes_of(self.mesh), splits, known)


def _split_of(leaf: Any) -> tuple[tuple[str, ...], ...]:
    rank = len(getattr(leaf, "shape", ()))
    return jax_compat.split_of(getattr(leaf, "sharding", None), rank) or ((),) * rank


def _check_even(path: str, leaf: Any) -> None:
    """Check that an argument can be split as its sharding says, as JAX does when it lowers.

    Raises:
      InputsError: it cannot.
    """
    for dim, axes in enumerate(_split_of(leaf)):
        sizes = jax_compat.axes_of(leaf.sharding.mesh) if axes else {}
        if leaf.shape[dim] % parts(axes, sizes):
            over = " and ".join(f"{name}={sizes[name]}" for name in axes)
            raise InputsError(
                f"{path}: dimension {dim} of size {leaf.shape[dim]} cannot be split evenly over"
                f" {over}"
            )


def arguments(question: Question, mesh: Any = None) -> Arguments:
    """Flatten a call and decide which leaves are differentiated.

    Args:
      question: the function, its call and the options.
      mesh: a Mesh or AbstractMesh to trace in; arrays without a sharding are on all its devices.
        None: that of the arrays' own shardings, if they have any of several devices.

    Raises:
      InputsError: the arguments do not fit the signature, or nothing can be differentiated.
    """
    jax = jax_compat.import_jax()
    args, kwargs = question.args, question.kwargs
    names = _argument_names(question.fun, args, kwargs)
    positions = question.positions(names)
    around = outside(question.fun)
    tree = (tuple(args), dict(kwargs))
    flat = flattened(tree, [each for _, each in around.variables])
    is_wanted = _is_wanted(flat)
    fixed = _static_leaves(question.fun, flat)
    modules = _equinox_modules(tree)
    numbers = set()
    paths, leaves, roles = [], [], []
    for i, (path, leaf) in enumerate(zip(flat.paths, flat.leaves, strict=True)):
        where, which = path[0].idx, path[1]
        chosen = positions is None or (where == 0 and which.idx in positions)
        abstract, role = _role(leaf, chosen and is_wanted[i], mesh)
        if is_number(leaf):
            if i in fixed or any(path[:n] in modules for n in range(len(path))):
                role = "static"
            elif role == "static" and path[2:]:
                role = "traced"
            elif role == "static":
                numbers.add(i)
        paths.append(_path(path, names))
        leaves.append(abstract)
        roles.append("again" if i in flat.again and role != "static" else role)
    own = mesh if mesh is not None else mesh_of(leaves)
    if own is not None and mesh is None:
        # Beside arrays on a mesh those without a sharding are on all its devices, too.
        leaves = [struct(v, own) if is_array(v) and hasattr(v, "sharding") else v for v in leaves]
    for name, leaf in zip(paths, leaves, strict=True):
        if is_array(leaf):
            _check_even(name, leaf)
    found = Arguments(
        paths=tuple(paths),
        leaves=tuple(leaves),
        roles=tuple(roles),
        treedef=jax.tree.structure(tree),
        layout=flat.layout,
        names=tuple(names),
        owners=around.owners,
        refs=_refs(flat.leaves),
        is_mutable=bool(around.variables or around.refs) or any(flat.held),
        mesh=own,
        context=mesh,
        trips=question.trips,
        numbers=frozenset(numbers),
    )
    passed = {id(each) for each in flat.layout.outside}
    places = [(v, value_of(v), path) for path, v in around.variables if id(v) not in passed]
    given = {id(leaf) for leaf in flat.leaves}
    places += [(None, ref, path) for path, ref in around.refs if id(ref) not in given]
    found = with_reached(found, places)
    # A program may have no float argument at all.
    if question.is_loss and not found.is_mutable and not found.having("differentiated"):
        raise InputsError(_nothing_to_differentiate(found, positions, names))
    return found


def with_reached(call: Arguments, places: Sequence[tuple[Any, Any, str]]) -> Arguments:
    """Return the arguments with what is in some places as inputs.

    These inputs replace those of the places that the arguments had.

    Args:
      call: the arguments.
      places: an owner, a key and a path each, see `ReachedObject`.
    """
    jax = jax_compat.import_jax()
    count = call.treedef.num_leaves
    paths, leaves, roles = (list(each[:count]) for each in (call.paths, call.leaves, call.roles))
    refs = {i: ref for i, ref in call.refs.items() if i < count}
    reached = []
    for owner, key, path in places:
        value = key if owner is None else entries(owner)[key]
        inside, inner = jax.tree_util.tree_flatten_with_path(value)
        start = len(leaves)
        refs |= {start + i: ref for i, ref in _refs([leaf for _, leaf in inside]).items()}
        for keys, leaf in inside:
            abstract, role = _role(leaf, False, call.context)
            paths.append(path_text(path, keys))
            leaves.append(abstract)
            roles.append(role)
        reached.append(ReachedObject(owner, key, path, start, len(leaves), inner))
    return replace(
        call,
        paths=tuple(paths),
        leaves=tuple(leaves),
        roles=tuple(roles),
        reached=tuple(reached),
        refs=refs,
    )


def _refs(leaves: Sequence[Any]) -> dict[int, Any]:
    return {i: leaf for i, leaf in enumerate(leaves) if jax_compat.is_ref(leaf)}


def without_changed(call: Arguments, paths: Sequence[str]) -> Arguments:
    """Return the arguments of a function that changes those of `paths` in place.

    It returns them beside its outputs, and they are not differentiated. What it reaches and leaves
    as it is are constants, except Refs.

    Args:
      call: the arguments as they were given.
      paths: the paths of the leaves that it changes.

    Raises:
      InputsError: nothing is left to differentiate.
    """
    changed = frozenset(paths)
    kept = [
        (each.owner, each.key, each.path)
        for each in call.reached
        if not changed.isdisjoint(call.paths[each.start : each.stop])
        or any(i in call.refs for i in range(each.start, each.stop))
    ]
    found = with_reached(call, kept)
    roles = [
        "traced" if role == "differentiated" and path in changed else role
        for path, role in zip(found.paths, found.roles, strict=True)
    ]
    found = replace(found, roles=tuple(roles), changing=changed)
    if not found.having("differentiated"):
        raise InputsError(_nothing_to_differentiate(found, None, []))
    return found


def signature_of(fun: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function, None where Python cannot tell it."""
    try:
        return inspect.signature(fun)
    except Exception:  # TypeError, ValueError, or what the attributes of a callable object raise
        return None


def bind(fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that the arguments fit the function's signature.

    Raises:
      InputsError: naming what is missing or too much, and the signature.
    """
    signature = signature_of(fun)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        given = ", ".join(
            [f"{len(args)} positional"] * bool(args or not kwargs) + [f"{k}=" for k in kwargs]
        )
        raise InputsError(
            f"the inputs do not fit: {e} (given: {given})\n"
            f"  {getattr(fun, '__name__', 'the target')}{signature}"
        ) from None


def _argument_names(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    bind(fun, args, kwargs)
    signature = signature_of(fun)
    names: list[str] = []
    for parameter in signature.parameters.values() if signature else ():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(len(args) - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return names + [f"args[{i}]" for i in range(len(names), len(args))]


def _path(path: Sequence[Any], names: Sequence[str]) -> str:
    """Return the path of a leaf of `(args, kwargs)`."""
    where, which = path[0].idx, path[1]
    return path_text(names[which.idx] if where == 0 else which.key, path[2:])


def path_text(name: str, path: Sequence[Any]) -> str:
    """Return the path of a leaf as text: `params['w']` for the keys behind `params`."""
    return f"{name}{jax_compat.import_jax().tree_util.keystr(tuple(path))}"


def _is_wanted(flat: Flat) -> tuple[bool, ...]:
    """Return for each leaf whether a gradient of it may be meant.

    Of NNX Variables only the Params are, as `nnx.grad` has it, if there are any; and of an object
    that occurs twice, only the first occurrence is.
    """
    if not any(flat.trainable):
        return tuple(i not in flat.again for i in range(len(flat.leaves)))
    return tuple(
        i not in flat.again and wanted is not False for i, wanted in enumerate(flat.trainable)
    )


def _static_leaves(fun: Callable[..., Any], flat: Flat) -> frozenset[int]:
    """Return the leaves whose value a jitted function is compiled for.

    Those are its `static_argnums` and `static_argnames`; of a function that Equinox jits, all
    numbers are.
    """
    if jitted_function(fun).by == "equinox":
        return frozenset(i for i, leaf in enumerate(flat.leaves) if type(leaf) in (bool, int))
    positions, names = jax_compat.static_arguments(fun)
    return frozenset(
        i
        for i, (where, which, *_) in enumerate(flat.paths)
        if (which.idx in positions if where.idx == 0 else which.key in names)
    )


def _equinox_modules(tree: Any) -> set[tuple[Any, ...]]:
    """Return the paths of a tree's outermost Equinox modules.

    A Python number in one is a setting, such as the rate of a dropout, that the module's code may
    look at, where an array is a parameter. The fields of other objects, such as the step of Flax'
    TrainState or the count of an Optax state, are data.
    """
    module = getattr(sys.modules.get("equinox"), "Module", None)
    if module is None:
        return set()

    def is_module(value: Any) -> bool:
        return isinstance(value, module)

    flat, _ = jax_compat.import_jax().tree_util.tree_flatten_with_path(tree, is_leaf=is_module)
    return {path for path, leaf in flat if is_module(leaf)}


def _role(leaf: Any, chosen: bool, mesh: Any) -> tuple[Any, str]:
    if isinstance(leaf, float | complex) and not hasattr(leaf, "dtype"):
        # A Python float is a weakly typed scalar, as jax.vjp takes it.
        return leaf, "differentiated" if chosen else "traced"
    if not is_array(leaf):
        return leaf, "static"
    return struct(leaf, mesh), "differentiated" if chosen and is_inexact(leaf) else "traced"


def _nothing_to_differentiate(
    found: Arguments, argnums: frozenset[int] | None, names: list[str]
) -> str:
    def describe(i: int) -> str:
        leaf = found.leaves[i]
        what = str(leaf.dtype) if found.roles[i] == "traced" else f"static {leaf!r:.40}"
        return f"{found.paths[i]} ({what})"

    if argnums is not None:
        chosen = ", ".join(names[i] for i in sorted(argnums))
        which = f"argnums selects {chosen}, which holds no float or complex array"
    else:
        which = "no argument is a float or complex array, so there is nothing to differentiate"
    listed = ", ".join(describe(i) for i in range(min(len(found.paths), 6)))
    more = len(found.paths) - 6
    which += (f": {listed}" if listed else "") + (f" and {more} more" if more > 0 else "")
    return which if argnums is not None else f"{which}; mode program takes it as it is"
