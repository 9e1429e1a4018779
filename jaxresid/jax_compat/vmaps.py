"""Calls of what `jax.vmap` and the Jacobians built on it return, changed while JAX traces them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from jaxresid.base.errors import RetraceError, calls_user_code
from jaxresid.jax_compat.patches import patched
from jaxresid.jax_compat.version import import_jax

# The function of JAX that calls what `jax.vmap` was given, the same in 0.7 to 0.12.
_VMAP = "vmap.<locals>.vmap_f"
_JAX = f"{os.sep}jax{os.sep}_src{os.sep}"
# Functions of JAX that call it -> what users call for that.
_CALLERS = {
    "jacfwd.<locals>.jacfun": "jacfwd",
    "jacrev.<locals>.jacfun": "jacrev",
    "map.<locals>.<lambda>": "map",
    "map": "map",
}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class VmapCall:
    """A call of a vmapped function, with flat arguments.

    Attributes:
      size: the size of the mapped axis.
      caller: `jacfwd` or `jacrev` where that maps over a basis, `map` where `jax.lax.map` maps a
        part; else `vmap`.
      function: the name of the mapped function; '' where it has none.
      axes: the mapped axis of each argument; None for one that is not mapped.
      is_divisible: whether a part of the axis can be mapped alone: it has no name, and no mesh
        splits it.
      batch: JAX's `batch` of the function: for the number of items, the axes of the arguments and
        a function from the axes of the results as asked to those that it is to give them.
    """

    size: int
    caller: str
    function: str
    axes: tuple[int | None, ...]
    is_divisible: bool
    batch: Callable[..., Any]

    def as_it_is(self, operands: Sequence[Any]) -> Any:
        """Return the results for all items at once."""
        return self.batch(self.size, self.axes, None)(*operands)

    def labelled(self, label: str, operands: Sequence[Any]) -> Any:
        """Return the results as they are, from eqns whose name stacks hold a label."""
        with import_jax().named_scope(label):
            return self.as_it_is(operands)

    def in_parts(self, count: int, operands: Sequence[Any]) -> Any:
        """Return the results for some items at a time, as `jax.lax.map` with a `batch_size` does.

        Args:
          count: how many items, of which there are more.
          operands: the flat arguments.

        Raises:
          RetraceError: a result is mapped in another way than along an axis.
        """
        jax = import_jax()
        mapped = [i for i, axis in enumerate(self.axes) if axis is not None]
        moved = {i: jax.numpy.moveaxis(operands[i], self.axes[i], 0) for i in mapped}
        axes = tuple(None if axis is None else 0 for axis in self.axes)
        whole = self.size // count * count
        asked: list[int | None] = []
        tail: list[Any] = []

        def first(found: Sequence[Any]) -> list[Any]:
            if not all(axis is None or isinstance(axis, int) for axis in found):
                raise RetraceError("a vmap has results without a mapped axis of their own")
            asked[:] = found
            return [None if axis is None else 0 for axis in found]

        def part(size: int, items: Sequence[Any]) -> Any:
            given = dict(zip(mapped, items, strict=True))
            return self.batch(size, axes, first)(*(given.get(i, v) for i, v in enumerate(operands)))

        @calls_user_code
        def body(carry: Any, items: Sequence[Any]) -> tuple[Any, list[Any]]:
            results = part(count, items)
            tail[:] = [] if _is_flat(results) else results[1:]
            return carry, list(results if _is_flat(results) else results[0])

        stacks = [v[:whole].reshape(-1, count, *v.shape[1:]) for v in moved.values()]
        _, stacked = jax.lax.scan(body, (), stacks)
        results = [
            v[-1] if axis is None else v.reshape(-1, *v.shape[2:])
            for v, axis in zip(stacked, asked, strict=True)
        ]
        if whole < self.size:
            rest = part(self.size - whole, [v[whole:] for v in moved.values()])
            results = [
                v if axis is None else jax.numpy.concatenate([v, last])
                for v, last, axis in zip(
                    results, rest if _is_flat(rest) else rest[0], asked, strict=True
                )
            ]
        results = [
            v if axis is None else jax.numpy.moveaxis(v, 0, axis)
            for v, axis in zip(results, asked, strict=True)
        ]
        return (results, *tail) if tail else results


def _is_flat(results: Any) -> bool:
    """Return whether JAX's `batch` returned the results alone; since 0.8 it returns axes too."""
    return not (len(results) == 2 and isinstance(results[0], list | tuple))


@contextlib.contextmanager
def replacing_vmap_calls(new: Callable[[VmapCall, Sequence[Any]], Any]) -> Iterator[None]:
    """Have `new(call, operands)` give the results of vmapped functions, in this context and thread.

    That holds for whatever was made with `jax.vmap`, by whatever name and at whatever time, and
    for the Jacobians and libraries that use it. What `new` itself maps stays as it is.
    """
    import_jax()
    from jax._src import core
    from jax._src.interpreters import batching

    thread, plain = threading.get_ident(), batching.batch

    @functools.wraps(plain)
    def batch(fun: Any, axis: Any, in_dims: Any, out_dims: Any, *args: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        as_it_is = functools.partial(plain, fun, axis, in_dims, out_dims, *args, **options)
        if threading.get_ident() != thread or frame.f_code.co_qualname != _VMAP:
            return as_it_is()

        def again(size: int, axes: Sequence[int | None], results: Any) -> Any:
            for store in fun.stores:  # what it returns is recorded once more
                if store:
                    store.reset()
            wanted = out_dims if results is None else lambda: results(out_dims())
            part = dataclasses.replace(axis, size=size)
            return plain(fun, part, list(axes), wanted, *args, **options).call_wrapped

        axes = tuple(in_dims)
        is_plain = all(each is None or isinstance(each, int) for each in axes)
        call = VmapCall(
            int(axis.size),
            _caller(frame),
            getattr(fun.f, "__name__", ""),
            axes,
            is_plain
            and axis.name is core.no_axis_name
            and not axis.spmd_name
            and getattr(axis, "explicit_mesh_axis", None) is None,
            again,
        )
        return _Replaced(lambda *operands: new(call, operands))

    with patched({(batching, "batch"): batch}):
        yield


@dataclasses.dataclass(frozen=True, slots=True)
class _Replaced:
    """What stands for a function that JAX's `batch` returns."""

    call_wrapped: Callable[..., Any]


def _caller(frame: FrameType) -> str:
    """Return what calls a vmapped function, whose frame is given; see `VmapCall.caller`."""
    above = frame.f_back
    while above is not None and "reraise_with" in above.f_code.co_name:
        above = above.f_back
    if above is None or _JAX not in above.f_code.co_filename:
        return "vmap"
    return _CALLERS.get(above.f_code.co_qualname, "vmap")
