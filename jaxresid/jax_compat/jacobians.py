"""Calls of what `jax.jacrev` and `jax.jacfwd` return, changed while JAX traces them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from jaxresid.base.errors import calls_user_code
from jaxresid.jax_compat.patches import patched
from jaxresid.jax_compat.version import import_jax

Transform = Literal["jacfwd", "jacrev"]
# The function of JAX that maps over a basis -> what made it, the same in 0.7 to 0.12.
_JACOBIANS: dict[str, Transform] = {
    "jacfwd.<locals>.jacfun": "jacfwd",
    "jacrev.<locals>.jacfun": "jacrev",
}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class JacobianCall:
    """A call of a Jacobian.

    Attributes:
      transform: what made it.
      function: the function of the differentiated arguments.
      primals: these arguments.
      has_aux: whether the function returns auxiliary data as well.
      plain: `jax.vmap`.
      mapped: what JAX maps over the basis, as it is.
    """

    transform: Transform
    function: Callable[..., Any]
    primals: tuple[Any, ...]
    has_aux: bool
    plain: Callable[..., Any]
    mapped: Callable[[Any], Any]

    @property
    def is_real(self) -> bool:
        """Whether it is of real numbers alone."""
        jax = import_jax()
        leaves = [*jax.tree.leaves(self.primals), *jax.tree.leaves(self._outputs())]
        return all(jax.numpy.issubdtype(v.dtype, jax.numpy.floating) for v in leaves)

    @property
    def num_inputs(self) -> int:
        """The number of columns."""
        return _size(self.primals)

    @property
    def num_outputs(self) -> int:
        """The number of rows."""
        return _size(self._outputs())

    def _outputs(self) -> Any:
        found = import_jax().eval_shape(self.function, *self.primals)
        return found[0] if self.has_aux else found

    def by_other_mode(self, _: Any) -> Any:
        """Return what `mapped` does of the basis, by the other mode."""
        return self._by_columns() if self.transform == "jacrev" else self._by_rows()

    @calls_user_code
    def _by_columns(self) -> Any:
        jax = import_jax()
        from jax._src import api

        def push(tangents: Any) -> Any:
            return jax.jvp(self.function, self.primals, tangents, has_aux=self.has_aux)[1]

        columns = self.plain(push, out_axes=-1)(api._std_basis(self.primals))
        count = self.num_inputs
        leaves = [v.reshape(-1, count) for v in jax.tree.leaves(columns)]
        whole = leaves[0] if len(leaves) == 1 else jax.numpy.concatenate(leaves)
        return _split(whole, self.primals, 1)

    @calls_user_code
    def _by_rows(self) -> Any:
        jax = import_jax()
        from jax._src import api

        y, pullback, *aux = jax.vjp(self.function, *self.primals, has_aux=self.has_aux)
        rows = self.plain(pullback)(api._std_basis(y))
        count = self.num_outputs
        leaves = [v.reshape(count, -1) for v in jax.tree.leaves(rows)]
        whole = leaves[0] if len(leaves) == 1 else jax.numpy.concatenate(leaves, axis=1)
        return (y, _split(whole, y, 0), *aux)


def _size(tree: Any) -> int:
    return sum(math.prod(v.shape) for v in import_jax().tree.leaves(tree))


def _split(matrix: Any, like: Any, axis: int) -> Any:
    """Return the parts of an axis of a matrix in a tree, each with the shape of a leaf there."""
    jax = import_jax()
    leaves, treedef = jax.tree.flatten(like)
    ends = list(itertools.accumulate(math.prod(v.shape) for v in leaves))
    parts: Sequence[Any] = jax.numpy.split(matrix, ends[:-1], axis=axis)
    shaped = [
        part.reshape(*part.shape[:axis], *leaf.shape, *part.shape[axis + 1 :])
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, shaped)


@contextlib.contextmanager
def replacing_jacobian_calls(
    new: Callable[[JacobianCall], Callable[[Any], Any]],
) -> Iterator[None]:
    """Have `new(call)` applied to the basis in the place of `call.mapped`, in this thread.

    That holds for whatever was made with `jax.jacrev`, `jax.jacfwd` or `jax.hessian`, by whatever
    name and at whatever time, and for the libraries that use these.
    """
    import_jax()
    from jax._src import api

    thread, plain = threading.get_ident(), api.vmap

    @functools.wraps(plain)
    def vmap(fun: Any, *args: Any, **options: Any) -> Any:
        frame = sys._getframe(1)
        transform = _JACOBIANS.get(frame.f_code.co_qualname)
        made = plain(fun, *args, **options)
        if transform is None or threading.get_ident() != thread:
            return made
        known = frame.f_locals
        function = known["f_partial"]
        function = getattr(function, "call_wrapped", function)  # until 0.9
        primals, has_aux = tuple(known["dyn_args"]), bool(known["has_aux"])
        return new(JacobianCall(transform, function, primals, has_aux, plain, made))

    with patched({(api, "vmap"): vmap}):
        yield
