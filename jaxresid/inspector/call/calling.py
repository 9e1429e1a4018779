"""Call the function while JAX traces it, and see what it changes in place.

Frames of this module mark, in every recorded traceback, where the target was called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, calls_user_code
from jaxresid.inspector.call.arguments import Arguments, StaticNumber, path_text
from jaxresid.inspector.call.objects import entries, flattened, is_variable, put, restored
from jaxresid.inspector.call.outside import inner_path


def call_with_leaves(
    fun: Callable[..., Any], arguments: Arguments, dynamic: Mapping[int, Any]
) -> Any:
    """Call the function with the leaves of `dynamic`, by index, in place of the abstract ones."""
    return called_with_changes(fun, arguments, dynamic)[0]


@calls_user_code
def called_with_changes(
    fun: Callable[..., Any], arguments: Arguments, dynamic: Mapping[int, Any]
) -> tuple[Any, tuple[dict[str, Any], dict[str, Any], dict[str, list[Any]]]]:
    """Call as `call_with_leaves` does, and return also what the function changed in place.

    Changes are given by path, as the leaves that are there now.

    Returns:
      the result, and a tuple of three dicts of changes: those in objects whose changes their owner
      sees, whatever the function is jitted with; those in arguments that are dicts, lists and the
      like, of which a jitted function is given copies; and, by the path of the entry, all leaves
      that are now where the function put something else into what it reaches by itself.
    """
    jax = jax_compat.import_jax()
    leaves = [dynamic.get(i, leaf) for i, leaf in enumerate(arguments.leaves)]
    leaves = [leaf.value if isinstance(leaf, StaticNumber) else leaf for leaf in leaves]
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
            with jax_compat.mapping_over_absent_devices():
                result = fun(*args, **kwargs)
        except SystemExit as e:
            raise InputsError(
                f"the target exits the program while it is traced: sys.exit({e.code!r:.40})"
            ) from e
        if owners:  # the result may hold what is put back
            result = jax.tree.map(lambda leaf: leaf, result)
        seen = _changes(arguments, tree, leaves)
        moved = _leaves_that_moved(arguments, list(owners.values()), kept)
        for into, added in zip(
            seen, _added_leaves(arguments, list(owners.values()), kept), strict=True
        ):
            into.update(added)
    return result, (*seen, moved)


def _added_leaves(
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
                at = path_text(inner_path(path, owner, key), keys)
                is_known = arguments.changing is None or at in arguments.changing
                if is_known and jax_compat.is_live_tracer(leaf):
                    into[at] = leaf[...] if jax_compat.is_ref(leaf) else leaf
    return held, loose


def _leaves_that_moved(
    arguments: Arguments, owners: Sequence[tuple[str, Any]], kept: Sequence[Mapping[Any, Any]]
) -> dict[str, list[Any]]:
    """Return the last of the dicts of `called_with_changes`.

    `kept` is what was in the owners before.
    """
    if arguments.changing is not None:
        return {}
    jax = jax_compat.import_jax()
    known = {(id(each.owner), each.key) for each in arguments.reached}
    found: dict[str, list[Any]] = {}
    for (path, owner), before in zip(owners, kept, strict=True):
        for key, value in entries(owner).items():
            if key not in before or before[key] is value or (id(owner), key) in known:
                continue
            leaves = [leaf for leaf in jax.tree.leaves(value) if jax_compat.is_live_tracer(leaf)]
            old = jax.tree.leaves(before[key], is_leaf=is_variable)
            if leaves and not any(is_variable(leaf) for leaf in old):
                found[inner_path(path, owner, key)] = leaves
    return found


def _changes(
    arguments: Arguments, tree: Any, leaves: Sequence[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first two dicts of `called_with_changes`.

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
            see(path_text(each.path, keys), leaf, held)
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
                see(path_text(name, path), leaf, held if flat.held[i] else loose)
    return held, loose
