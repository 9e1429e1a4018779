"""Turn what a user gives as inputs into abstract arguments, with nothing allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import NOT_CAUGHT, InputsError, summary
from jaxresid.inspector.call.arguments import CONCRETE, StaticNumber
from jaxresid.inspector.call.leaves import is_array, is_number
from jaxresid.inspector.call.objects import Layout, flattened
from jaxresid.targets.inputs import Inputs
from jaxresid.targets.specs import ArraySpec


def from_specs(
    args: Sequence[Any], kwargs: Mapping[str, Any], mesh: Any = None
) -> tuple[Inputs, list[str]]:
    """Turn parsed SPECs into arguments and warnings.

    Literals in them are static, numbers too.

    Args:
      args: the positional arguments.
      kwargs: the keyword arguments.
      mesh: the one whose axes the SPECs speak of.
    """
    warnings: list[str] = []
    return Inputs(
        tuple(_structs(a, mesh, warnings) for a in args),
        {name: _structs(a, mesh, warnings) for name, a in kwargs.items()},
    ), list(dict.fromkeys(warnings))


def from_function(make: Callable[[], Any], name: str) -> Inputs:
    """Call `make()` under `jax.eval_shape`: its arrays become abstract and are never computed.

    Everything else that it returns (bools, strings, numbers, None, callables,
    ShapeDtypeStructs) is carried around the trace and keeps its value.

    Raises:
      InputsError: `make` cannot be traced, or returns something that is no set of inputs.
    """
    jax = jax_compat.import_jax()
    carried: list[Any] = []
    layouts: list[Layout] = []
    refs: list[int] = []

    def arrays() -> list[Any]:
        flat = flattened(_parts(make(), name))
        layouts.append(flat.layout)
        carried.clear()
        refs.clear()
        found = []
        for leaf in flat.leaves:
            if isinstance(leaf, jax.core.Tracer) and jax_compat.is_ref(leaf):
                carried.append(None)
                found.append(leaf[...])
                refs.append(len(carried) - 1)
            elif is_array(leaf) and not (
                isinstance(leaf, jax.ShapeDtypeStruct) or jax_compat.is_ref(leaf)
            ):
                carried.append(None)
                found.append(leaf)
            else:
                carried.append((leaf,))
        return found

    try:
        shapes = iter(jax.eval_shape(arrays))
    except InputsError:
        raise
    except SystemExit as e:
        raise InputsError(_exits(name, e)) from e
    except NOT_CAUGHT:
        raise
    except BaseException as e:
        raise InputsError(f"{name}() cannot be traced: {summary(e)}\n  {CONCRETE}") from e
    leaves = [next(shapes) if kept is None else kept[0] for kept in carried]
    for i in refs:
        leaves[i] = jax_compat.abstract_ref(leaves[i])
    args, kwargs = layouts[-1].made(leaves)
    return Inputs(args, kwargs)


def from_concrete(make: Callable[[], Any], name: str) -> Inputs:
    """Call `make()` plainly.

    Raises:
      InputsError: it raises, or returns something that is no set of inputs.
    """
    result = _called(make, name)
    args, kwargs = _parts(result, name)
    return Inputs(args, kwargs)


def from_build(factory: Callable[[], Any], name: str) -> tuple[Callable[..., Any], Inputs]:
    """Call a factory, which returns `(fun, args)` or `(fun, args, kwargs)`.

    Raises:
      InputsError: it raises, or returns something else.
    """
    built = _called(factory, name)
    if not (isinstance(built, tuple) and len(built) in (2, 3) and callable(built[0])):
        raise InputsError(
            f"with --build, {name}() must return (fun, args) or (fun, args, kwargs),"
            f" not {_describe(built)}"
        )
    fun, args, kwargs = (*built, {})[:3]
    if not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        raise InputsError(
            f"with --build, {name}() must return its args as a tuple and its kwargs as a dict,"
            f" not {_describe(args)} and {_describe(kwargs)}"
        )
    return fun, Inputs(tuple(args), kwargs)


def _called(make: Callable[[], Any], name: str) -> Any:
    """Return what a user's function returns.

    Raises:
      InputsError: it raises, whatever that is.
    """
    try:
        return make()
    except SystemExit as e:
        raise InputsError(_exits(name, e)) from e
    except (*NOT_CAUGHT, InputsError):
        raise
    except BaseException as e:
        raise InputsError(f"{name}() fails: {summary(e)}") from e


def _exits(name: str, error: SystemExit) -> str:
    return f"{name}() exits the program: sys.exit({error.code!r:.40}); it must return the inputs"


def _parts(result: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(result, Inputs):
        return tuple(result.args), dict(result.kwargs)
    if type(result) is tuple:
        return result, {}
    if type(result) is dict and all(isinstance(k, str) for k in result):
        return (), result
    raise InputsError(
        f"{name}() must return a tuple (positional arguments), a dict (keyword arguments) or"
        f" jaxresid.Inputs, not {_describe(result)}"
    )


def _describe(value: Any) -> str:
    length = f" of length {len(value)}" if isinstance(value, tuple) else ""
    return f"a value of type {type(value).__name__}{length}"


def _structs(value: Any, mesh: Any, warnings: list[str]) -> Any:
    """Turn SPEC values into arguments; Python numbers become static by wrapping."""
    if isinstance(value, ArraySpec):
        return _struct(value, mesh, warnings)
    if isinstance(value, dict):
        return {k: _structs(v, mesh, warnings) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_structs(v, mesh, warnings) for v in value)
    return StaticNumber(value) if is_number(value) else value


def _struct(spec: ArraySpec, mesh: Any, warnings: list[str]) -> Any:
    jax = jax_compat.import_jax()
    entries = [axes or None for axes in spec.split]
    sharding = None
    if mesh is not None:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*entries))
    if spec.dtype == "key":
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.ShapeDtypeStruct(spec.shape, key.dtype, sharding=sharding)
    try:
        dtype = jax.numpy.dtype(spec.dtype)
    except TypeError:
        raise InputsError(f"this version of jax has no dtype {spec.dtype}") from None
    canonical = jax.dtypes.canonicalize_dtype(dtype)
    if canonical != dtype:
        warnings.append(
            f"{dtype} inputs become {canonical} here, as jax_enable_x64 is off"
            " (set JAX_ENABLE_X64=1)"
        )
    return jax.ShapeDtypeStruct(spec.shape, canonical, sharding=sharding)
