"""Intercept what a function binds while JAX traces it, and bind something else instead.

What a function differentiates itself, and what JAX differentiates by rules of its own, shows no
checkpoint that could be changed: by the time there is a jaxpr, JAX has differentiated. So the
function is traced again, and what its `jax.checkpoint` binds is changed at that moment.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from jaxresid.jax_compat.jaxpr_types import Eqn
from jaxresid.jax_compat.patches import in_this_thread, patched
from jaxresid.jax_compat.reading import open_jaxpr
from jaxresid.jax_compat.version import import_jax

# The params that are bound, and the frame that binds them -> those to bind in their place, or a
# function to call instead.
Handler = Callable[[Mapping[str, Any], FrameType], "Mapping[str, Any] | Callable[..., Any]"]

_KEY = "jaxresid"
_lock = threading.RLock()
_traces = itertools.count()


@dataclass(frozen=True, slots=True)
class BindSite:
    """The way in which a public function of JAX binds its primitive.

    Attributes:
      callers: the code that calls `bind`, innermost first. JAX's rules for derivatives and batches
        bind the same primitive again, from elsewhere. Both are needed: with jax_remat3 all
        primitives of its kind share the former.
    """

    primitive: Any
    callers: tuple[CodeType, CodeType]


def checkpoint_binding() -> BindSite:
    """Return the binding of `jax.checkpoint`, with the implementation that is switched on."""
    jax = import_jax()

    def trace() -> Any:
        return jax.make_jaxpr(jax.checkpoint(lambda x: x + x))(1.0)

    primitive: Any = open_jaxpr(trace()).eqns[0].primitive
    plain, callers = primitive.bind, list[tuple[CodeType, CodeType]]()

    def listen(*args: Any, **params: Any) -> Any:
        callers.append(_callers(sys._getframe(2)))
        return plain(*args, **params)

    # Since 0.10 the `bind` of remat is an attribute of the object, else it is its class's.
    with patched({(primitive, "bind"): in_this_thread(plain, listen)}):
        trace()
    return BindSite(primitive, callers[0])


def _callers(frame: Any) -> tuple[CodeType, CodeType]:
    return frame.f_code, frame.f_back.f_code


@contextlib.contextmanager
def intercept_bind(handlers: Mapping[BindSite, Handler]) -> Iterator[None]:
    """Ask the handlers what to bind, for whatever this thread traces within the context.

    JAX keeps inner traces by function and context. What is traced here has a context of its own:
    it finds none of the others' traces, and leaves none behind that others find.
    """
    from jax.experimental.xla_metadata import set_xla_metadata

    busy = False

    def handled_by(site: BindSite, handler: Handler) -> Callable[..., Any]:
        plain = site.primitive.bind

        def bind(*args: Any, **params: Any) -> Any:
            nonlocal busy
            frame = sys._getframe(2)
            if busy or _callers(frame) != site.callers:
                return plain(*args, **params)
            busy = True
            try:
                wanted = handler(params, frame)
            finally:
                busy = False
            return wanted(*args) if callable(wanted) else plain(*args, **wanted)

        return in_this_thread(plain, bind)

    with _lock, set_xla_metadata(**{_KEY: str(next(_traces))}):
        binds = {
            (site.primitive, "bind"): handled_by(site, handler)
            for site, handler in handlers.items()
        }
        with patched(binds):
            yield


def without_trace_context(eqns: Iterable[Eqn]) -> None:
    """Remove the context of `intercept_bind` from eqns, or XLA would see it."""
    for eqn in eqns:
        # Of one object since 0.11, which cannot be replaced; its dict is its own.
        metadata = eqn.ctx.xla_metadata
        if metadata:
            metadata.pop(_KEY, None)
