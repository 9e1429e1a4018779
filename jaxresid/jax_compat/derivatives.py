"""Tell the derivatives that a function takes apart, by marks on the name stacks of their eqns.

JAX tags what it evaluates for a derivative with `jvp`, and what it transposes with `transpose`.
The tags of one derivative are those of another, and forward mode is tagged as a forward pass is.
So the stacks get marks, which their text does not show.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from jaxresid.base.errors import calls_user_code
from jaxresid.jax_compat.jaxpr_types import Eqn, Var
from jaxresid.jax_compat.patches import patched
from jaxresid.jax_compat.version import import_jax

_FRAMES = 400  # are looked through for who takes a derivative
_ENTRIES = ("api.py", "traceback_util.py")  # of JAX: what is called to take a derivative
_WRAPPERS = 10
_WRAPPED = ("f", "fun", "func", "fn", "_fun")  # what wrappers call what they wrap


@dataclass(slots=True, eq=False)
class Derivative:
    """A derivative that was taken while a function was traced.

    Attributes:
      function: the name of what it is of.
      frames: the code that runs where it was taken and the offset that it is at, innermost first.
      kept_nbytes: the bytes that JAX keeps of it for the backward pass, made by it alone; with
        `vmap` around those of all examples.
      kept: what it keeps, as variables of the jaxpr in which it was taken; empty where the version
        does not tell.
      is_transposed: whether it has a backward pass; else it is forward mode.
      is_of_checkpoint: whether JAX takes it, of the body of a checkpoint that it differentiates.
    """

    function: str
    frames: tuple[tuple[CodeType, int], ...]
    kept_nbytes: int = 0
    kept: frozenset[Var] = frozenset()
    is_transposed: bool = False
    is_of_checkpoint: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """An element of a name stack, directly behind the `jvp` of a derivative."""

    derivative: Derivative
    name: str = ""

    def wrap(self, stack: list[str]) -> None:
        """Add nothing to the text of the name stack."""


@contextlib.contextmanager
def marking_derivatives() -> Iterator[None]:
    """Mark the eqns of each derivative that this thread takes in the context.

    What JAX has traced before, and finds again, stays as it is.
    """
    import_jax()
    from jax._src import api
    from jax._src.interpreters import ad

    thread = threading.get_ident()
    linearized: Callable[..., Any] = ad.linearize
    pushed: Callable[..., Any] = api._jvp

    @functools.wraps(linearized)
    def linearize(fun: Any, *primals: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return linearized(fun, *primals, **options)
        derivative = _derivative(fun)
        derivative.is_transposed = derivative.is_of_checkpoint
        result = linearized(_marked(fun, derivative), *primals, **options)
        # Since 0.12 structured residuals stand between the others and what is auxiliary.
        stop = len(result) - bool(options.get("has_aux"))
        leaves = import_jax().tree.leaves(result[3:stop])
        traced = [each for leaf in leaves for each in _traced(leaf)]
        derivative.kept_nbytes = sum(_made_nbytes(each, derivative) for each in traced)
        variables: Iterator[Any] = (getattr(each, "val", None) for each in traced)
        derivative.kept = frozenset(v for v in variables if type(v).__name__ == "Var")
        return result

    @functools.wraps(pushed)
    def jvp(fun: Any, *operands: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return pushed(fun, *operands, **options)
        return pushed(_marked(fun, _derivative(fun)), *operands, **options)

    with patched({(ad, "linearize"): linearize, (api, "_jvp"): jvp}):
        yield


def settle_derivatives(eqns: Iterable[Eqn]) -> None:
    """Tell the derivatives that have a backward pass from forward mode.

    Args:
      eqns: the eqns of a jaxpr and of those inside of it, before their name stacks are read.
    """
    for eqn in eqns:
        for derivative, is_transposed in derivatives(eqn):
            derivative.is_transposed |= is_transposed


def derivatives(eqn: Eqn) -> list[tuple[Derivative, bool]]:
    """Return the derivatives that an eqn is of, outermost first.

    Each comes with whether the eqn is transposed, a part of its backward pass. Those that JAX takes
    of checkpoints, with jax_remat3, are part of what the checkpoints are differentiated for.
    """
    elements = eqn.source_info.name_stack.stack
    found: dict[Derivative, bool] = {}
    is_transposed = False
    for element in elements:
        if type(element) is _Mark:
            if not element.derivative.is_of_checkpoint:
                # With forward mode around it, a transposed shard_map has the mark twice.
                was_transposed = found.get(element.derivative, False)
                found[element.derivative] = was_transposed or is_transposed
            is_transposed = False
        elif element.name == "transpose" and not isinstance(element, _scope()):
            is_transposed = not is_transposed
    return list(found.items())


def nested_derivatives(eqns: Iterable[Eqn]) -> tuple[int, bool]:
    """Return how many derivatives are around an eqn, and whether `vmap` is around one of them.

    Args:
      eqns: the eqn, behind those that it is nested in, outermost first.
    """
    found: set[Derivative] = set()
    is_batched = has_batched = False
    for eqn in eqns:
        for element in eqn.source_info.name_stack.stack:
            if type(element) is _Mark:
                # A checkpoint under `vmap` repeats the mark of the derivative around both.
                if not element.derivative.is_of_checkpoint and element.derivative not in found:
                    found.add(element.derivative)
                    has_batched |= is_batched
            else:
                is_batched |= element.name == "vmap" and not isinstance(element, _scope())
    return len(found), has_batched


def is_unmarked(eqn: Eqn) -> bool:
    """Return whether an eqn is of a derivative without a mark, which JAX had traced before."""
    is_open = False
    for element in eqn.source_info.name_stack.stack:
        if type(element) is _Mark:
            is_open = False
        elif _is_jvp(element):
            if is_open:
                return True
            is_open = True
    return is_open


def name_stack(eqn: Eqn) -> str:
    """Return the eqn's name stack as text, without the tags of forward mode.

    Nor is a derivative there twice where forward mode is around it, see `derivatives`.
    """
    stack = eqn.source_info.name_stack
    marked = [e.derivative for e in stack.stack if type(e) is _Mark]
    if all(each.is_transposed for each in marked):
        return str(stack)
    last = {e.derivative: i for i, e in enumerate(stack.stack) if type(e) is _Mark}
    kept: list[Any] = []
    for i, element in enumerate(stack.stack):
        if type(element) is not _Mark:
            kept.append(element)
        elif not element.derivative.is_transposed or i != last[element.derivative]:
            at = next((i for i in reversed(range(len(kept))) if _is_jvp(kept[i])), None)
            if at is not None:
                del kept[at]
    return str(type(stack)(tuple(kept)))


def whole_name_stack(eqn: Eqn) -> str:
    """Return the eqn's name stack as text, with the tags of forward mode."""
    return str(eqn.source_info.name_stack)


def _is_jvp(element: Any) -> bool:
    return bool(element.name == "jvp") and not isinstance(element, _scope())


@functools.cache
def _scope() -> type[Any]:
    from jax._src import source_info_util

    scope: type[Any] = source_info_util.Scope
    return scope


def _marked(fun: Any, derivative: Derivative) -> Any:
    """Return a function, as JAX differentiates it, whose eqns are marked."""
    from jax._src import linear_util, source_info_util

    def marked(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        @calls_user_code
        def run(*args: Any, **kwargs: Any) -> Any:
            stack = source_info_util.current_name_stack()
            inside = type(stack)((*stack.stack, _Mark(derivative)))
            with source_info_util.set_name_stack(inside):
                return call(*args, **kwargs)

        return run

    if isinstance(fun, linear_util.WrappedFun):  # until 0.9
        return linear_util.wrap_init(marked(fun.call_wrapped), debug_info=fun.debug_info)
    return marked(fun)


def _called(fun: Any) -> str:
    """Return the name of what is differentiated, inside of what JAX and libraries wrap it in."""
    for _ in range(_WRAPPERS):
        held = getattr(fun, "__wrapped__", None) or getattr(fun, "func", None)
        if held is None and type(fun).__name__ == "WrappedFun":
            held = fun.f
        code = getattr(fun, "__code__", None)
        if held is None and code is not None and "site-packages" in code.co_filename:
            cells = zip(code.co_freevars, fun.__closure__ or (), strict=False)
            held = next((c.cell_contents for name, c in cells if name in _WRAPPED), None)
        if not callable(held):
            break
        fun = held
    name = getattr(fun, "__qualname__", None)
    return name.rpartition("<locals>.")[2] if isinstance(name, str) else type(fun).__name__


def _running() -> tuple[tuple[CodeType, int], ...]:
    running: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and len(running) < _FRAMES:
        running.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(running)


def _derivative(fun: Any) -> Derivative:
    """Return the derivative of a function that is taken where this is called."""
    running = _running()
    files = (code.co_filename for code, _ in running)
    caller = next((file for file in files if not file.endswith(_ENTRIES)), "")
    is_of_checkpoint = caller.endswith("ad_checkpoint.py")
    return Derivative(_called(fun), running, is_of_checkpoint=is_of_checkpoint)


def _traced(value: Any) -> Iterator[Any]:
    """Yield what a residual is where JAX traces it: itself, and with `jvp` around its tangent."""
    while (held := _held(value)) is not None:
        value, beside = held
        if beside is not None:
            yield from _traced(beside)
    yield value


def _made_nbytes(value: Any, derivative: Derivative) -> int:
    """Return the bytes of a traced value; 0 of one that the derivative did not make."""
    info = getattr(value, "_line_info", None)
    stack = () if info is None else info.name_stack.stack
    if not any(type(e) is _Mark and e.derivative is derivative for e in stack):
        return 0
    itemsize = getattr(getattr(value.aval, "dtype", None), "itemsize", 0)
    sizes = (n for n in getattr(value.aval, "shape", ()) if isinstance(n, int))
    return math.prod(sizes) * int(itemsize)


def _held(value: Any) -> tuple[Any, Any] | None:
    """Return what a tracer of `vmap` or of a derivative is of, and its tangent."""
    match type(value).__name__:
        case "BatchTracer":
            return value.val, None
        case "JVPTracer":
            return value.primal, value.tangent
        case "LinearizeTracer":
            return value.primal, None
        case _:
            return None
