"""Trace a function with abstract arguments to its forward and backward jaxprs.

Public API only: `jax.vjp` under `jax.jit(...).trace` on ShapeDtypeStructs. Nothing is computed and
no buffer is allocated; the residuals are the leaves of the vjp function in the traced output.

Frames of this module mark, in every recorded traceback, where the target was called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.errors import InputsError
from jaxresid.inspector.jaxpr.callsites import contains_remat, may_hold_checkpoints
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.trace.objects import (
    Flat,
    Layout,
    entries,
    flattened,
    is_variable,
    put,
    restored,
    value_of,
)
from jaxresid.inspector.trace.outside import inner_path, outside
from jaxresid.inspector.trace.question import Question
from jaxresid.inspector.trace.sharding import Sharding

# What helps where what makes the inputs cannot be traced, or leaves something behind when it is.
CONCRETE = "--concrete-inputs calls it without tracing (its arrays are then allocated)"


class Static:
    """A number that stays static where a bare one would be traced."""

    __slots__ = ("value",)

    def __init__(self, value: complex) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Reached:
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
    """

    paths: tuple[str, ...]
    leaves: tuple[Any, ...]
    roles: tuple[str, ...]
    treedef: Any
    layout: Layout
    names: tuple[str, ...]
    reached: tuple[Reached, ...] = ()
    owners: tuple[tuple[str, Any], ...] = ()
    refs: Mapping[int, Any] = field(default_factory=dict)
    is_mutable: bool = False
    changing: frozenset[str] | None = None
    mesh: Any = None
    context: Any = None

    def having(self, role: str) -> tuple[int, ...]:
        """Return the indices of the leaves that have a role."""
        return tuple(i for i, r in enumerate(self.roles) if r == role)

    @property
    def dynamic(self) -> tuple[int, ...]:
        """The indices of the leaves that are invars, in the order of the forward jaxpr's invars."""
        return self.having("differentiated") + self.having("traced")

    def sharding(
        self, invars: Sequence[Any], known: Mapping[Any, tuple[int, ...]]
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


@dataclass(frozen=True, slots=True)
class Trace:
    """The jaxprs of one differentiated function.

    Attributes:
      arguments: the arguments that it was traced with.
      forward: invars are `arguments.dynamic`; outvars are the primal outputs, then the residuals.
      backward: invars are the residuals, then the cotangents.
      num_outputs: how many of the forward's outvars are primal outputs.
      num_residuals: how many are residuals.
      num_cotangents: how many of the backward's invars are cotangents.
      primal: traces the function itself, which still has its checkpoints; a `jax.stages.Traced` of
        the differentiated leaves, then the other traced ones.
      again: traces the function again, as it is called and not as its primal jaxpr has it; None for
        one that was rewritten.
      pieces: on a mesh, the shapes that a device holds of `kept`, as the compiler says.
    """

    arguments: Arguments
    forward: Any
    backward: Any
    num_outputs: int
    num_residuals: int
    num_cotangents: int
    primal: Callable[[], Any]
    again: Callable[[], Trace] | None = None
    pieces: tuple[tuple[int, ...] | None, ...] = ()

    # Invars in front of the arguments are constants, or tracers that the function leaked.

    @property
    def inputs(self) -> tuple[str | None, ...]:
        """The path of each of the forward's invars; None for one that is no argument."""
        paths = [self.arguments.paths[i] for i in self.arguments.dynamic]
        return (*[None] * (len(self.forward.invars) - len(paths)), *paths)

    @property
    def primal_inputs(self) -> tuple[str | None, ...]:
        """The path of each of the primal's invars; None for one that is no argument."""
        order = self.arguments.having("differentiated") + self.arguments.having("traced")
        paths = [self.arguments.paths[i] for i in order]
        count = len(jax_compat.open_jaxpr(self.primal().jaxpr).invars)
        return (*[None] * (count - len(paths)), *paths)

    @property
    def backward_inputs(self) -> tuple[str | None, ...]:
        """The path of each of the backward's invars that is an argument; None for the others."""
        paths = dict(zip(self.forward.invars, self.inputs, strict=True))
        known = {
            read: paths.get(kept)
            for kept, read in zip(self.kept, self.read, strict=True)
            if not jax_compat.is_literal(kept)
        }
        return tuple(known.get(var) for var in self.backward.invars)

    @property
    def kept(self) -> list[Any]:
        """The residuals as the forward's outvars."""
        return list(self.forward.outvars[self.num_outputs :])

    @property
    def read(self) -> list[Any]:
        """The residuals as the backward's invars."""
        invars = self.backward.invars
        end = len(invars) - self.num_cotangents
        return list(invars[end - self.num_residuals : end])

    @property
    def sharding(self) -> Sharding | None:
        """The split of the forward pass over the arguments' mesh; None without one."""
        pairs = zip(self.kept, self.pieces, strict=False)
        known = {
            v: piece for v, piece in pairs if piece is not None and not jax_compat.is_literal(v)
        }
        return self.arguments.sharding(self.forward.invars, known)


class BackwardError(Exception):
    """The error of a function whose forward pass traced and whose transposition failed.

    The cause says why.
    """

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        super().__init__("the backward pass cannot be traced")


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
    paths, leaves, roles = [], [], []
    for i, (path, leaf) in enumerate(zip(flat.paths, flat.leaves, strict=True)):
        where, which = path[0].idx, path[1]
        chosen = positions is None or (where == 0 and which.idx in positions)
        abstract, role = _role(leaf, chosen and is_wanted[i], mesh)
        if role != "static" and abstract is leaf and _is_setting(leaf, path):
            role = "static"
        paths.append(_path(path, names))
        leaves.append(abstract)
        roles.append("again" if i in flat.again and role != "static" else role)
    own = mesh if mesh is not None else mesh_of(leaves)
    if own is not None and mesh is None:
        # Beside arrays on a mesh those without a sharding are on all its devices, too.
        leaves = [_struct(v, own) if is_array(v) and hasattr(v, "sharding") else v for v in leaves]
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
    )
    passed = {id(each) for each in flat.layout.outside}
    places = [(v, value_of(v), path) for path, v in around.variables if id(v) not in passed]
    given = {id(leaf) for leaf in flat.leaves}
    places += [(None, ref, path) for path, ref in around.refs if id(ref) not in given]
    found = reaching(found, places)
    # A step may take gradients of nothing but what it changes.
    if not found.is_mutable and not found.having("differentiated"):
        raise InputsError(_nothing_to_differentiate(found, positions, names))
    return found


def reaching(call: Arguments, places: Sequence[tuple[Any, Any, str]]) -> Arguments:
    """Return the arguments with what is in some places as inputs.

    These inputs replace those of the places that the arguments had.

    Args:
      call: the arguments.
      places: an owner, a key and a path each, see `Reached`.
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
            paths.append(_text(path, keys))
            leaves.append(abstract)
            roles.append(role)
        reached.append(Reached(owner, key, path, start, len(leaves), inner))
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
    found = reaching(call, kept)
    roles = [
        "traced" if role == "differentiated" and path in changed else role
        for path, role in zip(found.paths, found.roles, strict=True)
    ]
    found = replace(found, roles=tuple(roles), changing=changed)
    if not found.having("differentiated"):
        raise InputsError(_nothing_to_differentiate(found, None, []))
    return found


def trace(fun: Callable[..., Any], arguments: Arguments, has_aux: bool) -> Trace:
    """Trace the forward and the backward pass of a function.

    Args:
      fun: the function.
      arguments: the arguments to trace it with.
      has_aux: whether it returns `(output, auxiliary data)`.

    Raises:
      BackwardError: the forward pass traced, its transposition failed.
      InputsError: the outputs have no gradient.
      Exception: whatever the function raises while JAX traces it.
    """

    def again() -> Trace:
        primal = _primal(fun, arguments, has_aux)
        if not arguments.refs:
            return _passes(primal, arguments)
        # What is differentiated holds no Refs.
        written = _traced(primal, arguments)
        return replace(_passes(_evaluating(written), arguments), primal=lambda: written)

    return replace(again(), again=again)


@dataclass(frozen=True, slots=True)
class Written:
    """A traced function as a `jax.stages.Traced` has it, with what Refs hold in the place of Refs.

    Attributes:
      jaxpr: the closed jaxpr.
      out_info: its output, auxiliary arrays and changes; what Refs hold in the end is among these.
      unknown: Refs that it reaches and that are no input yet.
    """

    jaxpr: Any
    out_info: Any
    unknown: tuple[Any, ...] = ()


def primal_trace(fun: Callable[..., Any], arguments: Arguments, has_aux: bool) -> Any:
    """Return the `jax.stages.Traced` of the function itself; of one with Refs, a `Written`.

    It is a function of the differentiated leaves and then of the other traced ones, to the output
    and auxiliary arrays.

    Args:
      fun: the function.
      arguments: the arguments to trace it with.
      has_aux: whether it returns `(output, auxiliary data)`.
    """
    return _traced(_primal(fun, arguments, has_aux), arguments)


def _operands(arguments: Arguments) -> tuple[list[Any], list[Any]]:
    """Return the differentiated leaves and the other traced ones."""
    leaves = arguments.leaves
    diff, rest = arguments.having("differentiated"), arguments.having("traced")
    return [leaves[i] for i in diff], [leaves[i] for i in rest]


_Primal = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Any]]


def _primal(fun: Callable[..., Any], arguments: Arguments, has_aux: bool) -> _Primal:
    diff, rest = arguments.having("differentiated"), arguments.having("traced")

    def primal(diff_leaves: Sequence[Any], rest_leaves: Sequence[Any]) -> tuple[Any, Any]:
        dynamic = zip(diff + rest, [*diff_leaves, *rest_leaves], strict=True)
        result, changes = _called(fun, arguments, dict(dynamic))
        if not has_aux:
            return result, ([], changes)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise InputsError(
                f"with has_aux the function must return (output, aux), not {_returned(result)}"
            )
        # jax.vjp hands on strings and the like; a traced function cannot return them.
        leaves = jax_compat.import_jax().tree.leaves(result[1])
        arrays = [v for v in leaves if hasattr(v, "dtype") and not jax_compat.is_ref(v)]
        return result[0], (arrays, changes)

    return primal


def retrace(traced: Trace, primal: Any) -> Trace:
    """Return the trace of the same function after its primal jaxpr was rewritten.

    No user code runs.

    Args:
      traced: the trace before.
      primal: the rewritten closed jaxpr, with the inputs and outputs that `traced.primal()` has.
    """
    return _passes(_evaluating(Written(primal, traced.primal().out_info)), traced.arguments)


def _evaluating(written: Any) -> _Primal:
    """Return a traced function as one that can be traced; no user code runs."""
    jax = jax_compat.import_jax()
    treedef = jax.tree.structure(written.out_info)
    evaluate = jax_compat.as_function(written.jaxpr)

    def call(diff_leaves: Sequence[Any], rest_leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(treedef, evaluate(*diff_leaves, *rest_leaves))

    return call


def _passes(primal: _Primal, arguments: Arguments) -> Trace:
    """Trace the passes of a function of the differentiated and the other traced leaves.

    The function returns its output and auxiliary arrays.
    """
    with jax_compat.in_mesh(arguments.context):
        return _passes_here(primal, arguments)


def _passes_here(primal: _Primal, arguments: Arguments) -> Trace:
    jax = jax_compat.import_jax()

    def forward(diff_leaves: Sequence[Any], rest_leaves: Sequence[Any]) -> Any:
        y, vjp, aux = jax.vjp(lambda d: primal(d, rest_leaves), diff_leaves, has_aux=True)
        return (y, aux), vjp

    operands = _operands(arguments)
    traced = jax.jit(forward).trace(*operands)
    if _foreign(traced, operands):
        # With jax_remat3 a rule that closes over a tracer of the target's own leaves one here, too,
        # but not where the target alone is traced.
        _traced(primal, arguments)
    if jax_compat.held_refs(traced.jaxpr):
        raise InputsError(_UNFOUND)
    (y, aux), vjp = traced.out_info
    _check_differentiable(y)

    def backward(vjp: Any, cotangents: Sequence[Any]) -> Any:
        found = iter(cotangents)
        return vjp(jax.tree.map(lambda s: next(found) if is_inexact(s) else float0(s), y))

    cotangents = [_struct(leaf) for leaf in jax.tree.leaves(y) if is_inexact(leaf)]
    try:
        traced_back = jax.jit(backward).trace(vjp, cotangents)
    except Exception as e:
        raise BackwardError(jax_compat.open_jaxpr(traced.jaxpr)) from e
    return Trace(
        arguments=arguments,
        forward=jax_compat.open_jaxpr(traced.jaxpr),
        backward=jax_compat.open_jaxpr(traced_back.jaxpr),
        num_outputs=len(jax.tree.leaves((y, aux))),
        num_residuals=len(jax.tree.leaves(vjp)),
        num_cotangents=len(cotangents),
        primal=functools.cache(lambda: _traced(primal, arguments)),
    )


def _traced(primal: _Primal, arguments: Arguments) -> Any:
    with jax_compat.in_mesh(arguments.context):
        operands = _operands(arguments)
        traced = jax_compat.import_jax().jit(primal).trace(*operands)
        _check_closed(traced, operands)
        return _without_refs(traced, arguments)


def _without_refs(traced: Any, arguments: Arguments) -> Any:
    """Return the `Written` of a traced function with Refs; one without is returned as it is."""
    closed = traced.jaxpr
    reached = jax_compat.held_refs(closed)
    if not reached and not arguments.refs:
        return traced
    jax = jax_compat.import_jax()
    result, (aux, (held, loose, moved)) = traced.out_info
    jaxpr = jax_compat.open_jaxpr(closed)
    inputs, outvars = list(jaxpr.invars), list(jaxpr.outvars)
    paths = [arguments.paths[i] for i in arguments.dynamic]
    refs = arguments.refs
    known = {id(refs[i]): n for n, i in enumerate(arguments.dynamic) if i in refs}
    unknown = []
    for var, ref in reached.items():
        if id(ref) in known:
            inputs[known[id(ref)]] = var
        else:
            unknown.append((var, ref))
    front = [var for var, _ in unknown]
    closed, returned = jax_compat.without_refs(closed, [*front, *inputs])
    jaxpr = jax_compat.open_jaxpr(closed)
    finals = zip(returned, jaxpr.outvars[len(outvars) :], strict=True)
    in_the_end = {
        paths[i - len(front)]: var
        for i, var in finals
        if i >= len(front) and var is not jaxpr.invars[i]
    }
    wanted = arguments.changing
    ends = [len(jax.tree.leaves(each)) for each in ((result, aux), held)]
    first, second = ends[0], sum(ends)
    outvars = list(jaxpr.outvars[: len(outvars)])
    made = dict(zip(sorted(held), outvars[first:second], strict=True))
    made |= {
        path: var
        for path, var in in_the_end.items()
        if path not in held and (wanted is None or path in wanted)
    }
    shapes = {path: jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for path, v in made.items()}
    outvars[first:second] = [made[path] for path in sorted(made)]
    return Written(
        jax_compat.with_outvars(closed, outvars),
        (result, (aux, (shapes, loose, moved))),
        tuple(ref for _, ref in unknown),
    )


_UNFOUND = (
    "the target reads a jax.Ref that is neither one of its arguments nor found in its closure; pass"
    " it as an argument"
)


def _check_closed(traced: Any, operands: tuple[list[Any], list[Any]]) -> None:
    """Check that a function depends on its arguments alone.

    JAX makes an operand, ahead of them, of each tracer of another trace that it comes upon.

    Raises:
      InputsError: it depends on such a tracer.
    """
    foreign = _foreign(traced, operands)
    if not foreign:
        return
    listed = ", ".join(v.aval.str_short() for v in foreign[:3])
    more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
    raise InputsError(
        f"the target reads values leaked from another trace ({listed}{more}); the inputs function"
        f" may have left traced arrays behind, for example in a global\n  {CONCRETE}"
    )


def _foreign(traced: Any, operands: tuple[list[Any], list[Any]]) -> list[Any]:
    """Return the invars of a traced function that are none of its operands."""
    invars = jax_compat.open_jaxpr(traced.jaxpr).invars
    return list(invars[: len(invars) - sum(map(len, operands))])


def called(fun: Callable[..., Any], arguments: Arguments, dynamic: Mapping[int, Any]) -> Any:
    """Call the function with the leaves of `dynamic`, by index, in place of the abstract ones."""
    return _called(fun, arguments, dynamic)[0]


def _called(
    fun: Callable[..., Any], arguments: Arguments, dynamic: Mapping[int, Any]
) -> tuple[Any, tuple[dict[str, Any], dict[str, Any], dict[str, list[Any]]]]:
    """Call as `called` does, and return also what the function changed in place.

    Changes are given by path, as the leaves that are there now.

    Returns:
      the result, and a tuple of three dicts of changes: those in objects whose changes their owner
      sees, whatever the function is jitted with; those in arguments that are dicts, lists and the
      like, of which a jitted function is given copies; and, by the path of the entry, all leaves
      that are now where the function put something else into what it reaches by itself.
    """
    jax = jax_compat.import_jax()
    leaves = [dynamic.get(i, leaf) for i, leaf in enumerate(arguments.leaves)]
    leaves = [leaf.value if isinstance(leaf, Static) else leaf for leaf in leaves]
    for i, ref in arguments.refs.items():
        leaves[i] = ref
    found = [each for each in arguments.reached if each.owner is not None]
    owners = {id(each.owner): ("", each.owner) for each in found}
    owners |= {id(each): ("", each) for each in arguments.layout.outside}
    owners |= {id(owner): (path, owner) for path, owner in arguments.owners}
    with restored([owner for _, owner in owners.values()]) as kept:
        for each in found:
            put(
                each.owner,
                each.key,
                jax.tree.unflatten(each.treedef, leaves[each.start : each.stop]),
            )
        tree = arguments.layout.made(leaves)
        args, kwargs = tree
        try:
            result = fun(*args, **kwargs)
        except SystemExit as e:
            raise InputsError(
                f"the target exits the program while it is traced: sys.exit({e.code!r:.40})"
            ) from e
        if owners:  # the result may hold what is put back
            result = jax.tree.map(lambda leaf: leaf, result)
        seen = _changes(arguments, tree, leaves)
        moved = _moved(arguments, list(owners.values()), kept)
        for into, added in zip(seen, _added(arguments, list(owners.values()), kept), strict=True):
            into.update(added)
    return result, (*seen, moved)


def _added(
    arguments: Arguments, owners: Sequence[tuple[str, Any]], kept: Sequence[Mapping[Any, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return by path the traced leaves of what is in owners where nothing was before.

    The first dict is of objects, such as a Variable that a module gains or an attribute; the second
    is of dicts and lists.
    """
    held: dict[str, Any] = {}
    loose: dict[str, Any] = {}
    if arguments.changing is not None and not arguments.changing:
        return held, loose
    jax = jax_compat.import_jax()
    known = {id(owner) for _, owner in arguments.owners}
    for (path, owner), before in zip(owners, kept, strict=True):
        if id(owner) not in known:
            continue
        into = loose if type(owner) in (dict, list) else held
        for key, value in entries(owner).items():
            if key in before:
                continue
            flat = flattened(value)
            for keys, leaf in zip(flat.paths, flat.leaves, strict=True):
                at = _text(inner_path(path, owner, key), keys)
                is_known = arguments.changing is None or at in arguments.changing
                if is_known and isinstance(leaf, jax.core.Tracer):
                    into[at] = leaf[...] if jax_compat.is_ref(leaf) else leaf
    return held, loose


def _moved(
    arguments: Arguments, owners: Sequence[tuple[str, Any]], kept: Sequence[Mapping[Any, Any]]
) -> dict[str, list[Any]]:
    """Return the last of the dicts of `_called`; `kept` is what was in the owners before."""
    if arguments.changing is not None:
        return {}
    jax = jax_compat.import_jax()
    known = {(id(each.owner), each.key) for each in arguments.reached}
    found: dict[str, list[Any]] = {}
    for (path, owner), before in zip(owners, kept, strict=True):
        for key, value in entries(owner).items():
            if key not in before or before[key] is value or (id(owner), key) in known:
                continue
            leaves = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.core.Tracer)]
            old = jax.tree.leaves(before[key], is_leaf=is_variable)
            if leaves and not any(is_variable(leaf) for leaf in old):
                found[inner_path(path, owner, key)] = leaves
    return found


def _changes(
    arguments: Arguments, tree: Any, leaves: Sequence[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first two dicts of `_called`.

    `tree` was made of `leaves`, then handed to the function.
    """
    jax = jax_compat.import_jax()
    held: dict[str, Any] = {}
    loose: dict[str, Any] = {}
    if arguments.changing is not None and not arguments.changing:
        return held, loose
    before = dict(zip(arguments.paths, leaves, strict=True))
    again = {arguments.paths[i] for i in arguments.having("again")}

    def see(path: str, leaf: Any, into: dict[str, Any]) -> None:
        if before.get(path) is leaf or path in again or not hasattr(leaf, "dtype"):
            return
        if arguments.changing is None or path in arguments.changing:
            into[path] = leaf[...] if jax_compat.is_ref(leaf) else leaf

    for each in arguments.reached:
        if each.owner is None:
            continue
        now = entries(each.owner).get(each.key)
        for keys, leaf in jax.tree_util.tree_flatten_with_path(now)[0]:
            see(_text(each.path, keys), leaf, held)
    args, kwargs = tree
    parts = [(0, i, arg) for i, arg in enumerate(args)] + [(1, k, v) for k, v in kwargs.items()]
    for where, which, part in parts:
        try:
            flat = flattened(part)
        except Exception:  # such as an Equinox State that was replaced by another
            continue
        name = arguments.names[which] if where == 0 else which
        for i, (path, leaf) in enumerate(zip(flat.paths, flat.leaves, strict=True)):
            if i not in flat.again:
                see(_text(name, path), leaf, held if flat.held[i] else loose)
    return held, loose


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
    return _text(names[which.idx] if where == 0 else which.key, path[2:])


def _text(name: str, path: Sequence[Any]) -> str:
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


def _is_setting(leaf: Any, path: Sequence[Any]) -> bool:
    """Return whether a leaf is a Python number in a field of an object.

    That is a setting, such as the rate of an Equinox dropout, that the object's code may look at,
    where an array is a parameter.
    """
    attribute = jax_compat.import_jax().tree_util.GetAttrKey
    return not is_array(leaf) and any(isinstance(key, attribute) for key in path)


def _role(leaf: Any, chosen: bool, mesh: Any) -> tuple[Any, str]:
    if isinstance(leaf, float | complex) and not hasattr(leaf, "dtype"):
        # A Python float is a weakly typed scalar, as jax.vjp takes it.
        return leaf, "differentiated" if chosen else "traced"
    if not is_array(leaf):
        return leaf, "static"
    return _struct(leaf, mesh), "differentiated" if chosen and is_inexact(leaf) else "traced"


def is_array(leaf: Any) -> bool:
    """Return whether a leaf has a shape and a dtype; False if asking a user's object raises."""
    try:
        return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    except Exception:
        return False


def _struct(leaf: Any, mesh: Any = None) -> Any:
    jax = jax_compat.import_jax()
    sharding = _named_sharding(leaf, mesh)
    own = getattr(leaf, "sharding", None)
    if isinstance(leaf, jax.ShapeDtypeStruct) and (sharding is own or sharding == own):
        return leaf
    return jax.ShapeDtypeStruct(
        leaf.shape,
        leaf.dtype,
        sharding=sharding,
        weak_type=bool(getattr(leaf, "weak_type", False)),
    )


def _named_sharding(leaf: Any, mesh: Any) -> Any | None:
    """Return the sharding that a leaf is traced with.

    That is its own over several devices; on a mesh, one on all of it; and one for a leaf in host
    memory, since an aval knows that of a NamedSharding alone. None in all other cases.
    """
    jax = jax_compat.import_jax()
    named, whole = jax.sharding.NamedSharding, jax.sharding.PartitionSpec()
    sharding: Any = getattr(leaf, "sharding", None)
    kind = getattr(sharding, "memory_kind", None)
    if isinstance(sharding, named):
        is_hosted = kind == "pinned_host" and mesh is None
        if sharding.mesh.size > 1 or is_hosted:
            return sharding
    host = kind if kind == "pinned_host" else None
    if mesh is not None:
        return named(mesh, whole, memory_kind=host)
    if host is None:
        return None
    own = jax.sharding.Mesh(sorted(sharding.device_set, key=lambda d: d.id)[:1], "device")
    return named(own, whole, memory_kind=kind)


def mesh_of(leaves: Sequence[Any]) -> Any | None:
    """Return the mesh of several devices that the first leaf on one is split over."""
    for leaf in filter(is_array, leaves):
        mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
        if mesh is not None and mesh.size > 1:
            return mesh
    return None


def is_inexact(leaf: Any) -> bool:
    """Return whether a leaf is a float or complex array or number."""
    jnp = jax_compat.import_jax().numpy
    if not hasattr(leaf, "dtype"):
        return isinstance(leaf, float | complex)
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _returned(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of length {len(result)}"
    return "an array" if hasattr(result, "dtype") else f"a value of type {type(result).__name__}"


def float0(leaf: Any) -> Any:
    """Return the cotangent of an output that has none."""
    import numpy as np

    return np.zeros(leaf.shape, jax_compat.import_jax().dtypes.float0)


def _check_differentiable(y: Any) -> None:
    leaves = jax_compat.import_jax().tree.leaves(y)
    if any(is_inexact(leaf) for leaf in leaves):
        return
    if not leaves:
        raise InputsError("the function returns no arrays, so there is nothing to differentiate")
    dtypes = ", ".join(sorted({str(leaf.dtype) for leaf in leaves}))
    raise InputsError(
        f"the function returns only {dtypes}, which has no gradient; return a float or complex one"
    )


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
    return which + (f": {listed}" if listed else "") + (f" and {more} more" if more > 0 else "")


def has_checkpoints(traced: Trace, frames: Frames) -> bool:
    """Return whether the function may hold checkpoints.

    The primal jaxpr, which shows them, would need another trace.
    """
    return contains_remat(traced.backward) or may_hold_checkpoints(traced.forward, frames)
