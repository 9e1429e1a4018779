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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.frames import Frame, Frames
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.jax_compat.jaxpr_types import Jaxpr
from jaxresid.results import Location

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
      primitive: the primitive that is bound.
      callers: the code that calls `bind`, innermost first. JAX's rules for derivatives and batches
        bind the same primitive again, from elsewhere.
    """

    primitive: Any
    callers: tuple[CodeType, ...]


def checkpoint_binding() -> BindSite:
    """Return the binding of `jax.checkpoint`, with the implementation that is switched on."""
    jax = jax_compat.import_jax()

    def make() -> Callable[..., Any]:
        checkpointed: Callable[..., Any] = jax.checkpoint(lambda x: x + x)
        return checkpointed

    primitive = jax_compat.open_jaxpr(jax.make_jaxpr(make())(1.0)).eqns[0].primitive
    seen: list[tuple[CodeType, ...]] = []

    def listen(plain: Callable[..., Any], args: Any, params: Any) -> Any:
        seen.append(_callers(sys._getframe(2)))
        return plain(*args, **params)

    with _replaced_bind(primitive, listen):
        jax.make_jaxpr(make())(1.0)
    return BindSite(primitive, seen[0])


def _callers(frame: Any) -> tuple[CodeType, ...]:
    """Return the code of a frame and of its caller.

    Both are needed: with jax_remat3 all primitives of its kind share the former.
    """
    return frame.f_code, frame.f_back.f_code


@contextlib.contextmanager
def intercept_bind(handlers: Mapping[BindSite, Handler]) -> Iterator[None]:
    """Ask the handlers what to bind, for whatever this thread traces within the context.

    JAX keeps inner traces by function and context. What is traced here has a context of its own:
    it finds none of the others' traces, and leaves none behind that others find.

    Args:
      handlers: for each intercepted binding, the function that says what to bind.
    """
    from jax.experimental.xla_metadata import set_xla_metadata

    busy = False

    def handled_by(binding: BindSite, handler: Handler) -> _Bind:
        def bind(plain: Callable[..., Any], args: Any, params: Any) -> Any:
            nonlocal busy
            frame = sys._getframe(2)
            if busy or _callers(frame) != binding.callers:
                return plain(*args, **params)
            busy = True
            try:
                made = handler(params, frame)
            finally:
                busy = False
            return made(*args) if callable(made) else plain(*args, **made)

        return bind

    with contextlib.ExitStack() as stack:
        stack.enter_context(_lock)
        stack.enter_context(set_xla_metadata(**{_KEY: str(next(_traces))}))
        for binding, handler in handlers.items():
            stack.enter_context(_replaced_bind(binding.primitive, handled_by(binding, handler)))
        yield


def strip_trace_context(jaxpr: Jaxpr) -> None:
    """Remove the context of `intercept_bind` from the eqns of a jaxpr, or XLA would see it."""
    for eqn in eqns_in(jaxpr):
        # Of one object since 0.11, which cannot be replaced; its dict is its own.
        known = eqn.ctx.xla_metadata
        if known:
            known.pop(_KEY, None)


def user_line(frames: Frames) -> Location | None:
    """Return the user's innermost line among the frames that are running."""
    found: list[Frame] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        kind = frames.kind(frame.f_code.co_filename, frame.f_code.co_qualname)
        if kind == "root":
            break
        if kind in ("user", "library", "jax"):
            found.append(Frame(frame.f_code, frame.f_lasti, kind))
        frame = frame.f_back
    return frames.innermost_user(reversed(found))


_Bind = Callable[[Callable[..., Any], Any, Any], Any]


@contextlib.contextmanager
def _replaced_bind(primitive: Any, bind: _Bind) -> Iterator[None]:
    """Replace the `bind` of a primitive, for this thread."""
    thread = threading.get_ident()
    # Since 0.10 that of remat is an attribute of the object, else it is its class's.
    own, plain = vars(primitive).get("bind"), primitive.bind

    def replaced(*args: Any, **params: Any) -> Any:
        if threading.get_ident() != thread:
            return plain(*args, **params)
        return bind(plain, args, params)

    primitive.bind = replaced
    try:
        yield
    finally:
        if own is None:
            del primitive.bind
        else:
            primitive.bind = own
