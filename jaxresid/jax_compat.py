"""Handle every difference between JAX versions, each with the version that needs it.

The only module that may import `jax._src`, and only for Refs, for what code asks about devices, and
to read or compile what is lowered already: jaxprs, eqns, params and tracebacks are reached from
`jax.stages.Traced`, which is public. Primitives are known by name, never by import, since the
module that holds them moves between versions.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import io
import math
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from jaxresid.errors import InputsError, MissingJaxError
from jaxresid.interrupts import deferring_interrupts
from jaxresid.jaxpr_types import Aval, ClosedJaxpr, Eqn, Jaxpr, Literal, Primitive, Var

MINIMUM = (0, 7)

# Flags that change which values are residuals. Absent ones are left out of the report.
_FLAGS = (
    "jax_enable_x64",
    "jax_remat3",  # 0.10.2
    "jax_use_direct_linearize",  # default on since 0.7.0
    "jax_custom_vjp3",  # 0.9.1
    "jax_custom_jvp3",  # 0.11
    "jax_scan3",  # 0.10.0
    "jax_remat_barrier_no_cotangents",  # 0.11
)

# One name for what has several. remat: `remat2` since 0.4, `checkpoint` as printed by some
# versions, RematTraced with jax_remat3. name: CheckpointName with jax_remat3, where
# PrimalLeftTangentRight hands its first operand on.
_ALIASES = {
    "remat2": "remat",
    "checkpoint": "remat",
    "RematTraced": "remat",
    "CheckpointName": "name",
    "PrimalLeftTangentRight": "pvary",
    "pjit": "jit",
}

# What calls that stand for removed checkpoints are named: no function of a user's has a space.
_REMOVED = "removed checkpoint"


@functools.cache
def import_jax() -> types.ModuleType:
    """Return the installed jax, if it is new enough.

    Raises:
      MissingJaxError: saying in one line what to install.
    """
    try:
        with deferring_interrupts():
            import jax
    except ModuleNotFoundError as e:
        if e.name not in ("jax", "jaxlib"):
            raise
        raise MissingJaxError(
            f"{e.name} is not installed here; install it with: pip install 'jaxresid[jax]'"
            " (or install the jax build that your machine needs)"
        ) from None
    version = jax_version()
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if numbers < MINIMUM:
        raise MissingJaxError(
            f"jax {version} is too old; jaxresid needs jax >= {MINIMUM[0]}.{MINIMUM[1]}:"
            " pip install -U jax"
        )
    return jax  # type: ignore[no-any-return]


def jax_version() -> str:
    """Return the version of the installed jax."""
    import jax

    return getattr(jax, "__version__", None) or importlib.metadata.version("jax")


def jaxlib_version() -> str:
    """Return the version of the installed jaxlib."""
    import jaxlib

    return getattr(jaxlib, "__version__", None) or importlib.metadata.version("jaxlib")


def compilers() -> dict[str, str]:
    """Return the packages that compile, with their versions: jaxlib, and libtpu where installed."""
    found = {"jaxlib": jaxlib_version()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["libtpu"] = importlib.metadata.version("libtpu")
    return found


ASSUMED_GPU = "an NVIDIA H100 with cuDNN 9.14"
_CUDNN, _CAPABILITY = 91400, (9, 0)


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A stand-in for an H100, with what code asks of a device while it is traced."""

    id: int = 0
    process_index: int = 0
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    compute_capability: str = "9.0"
    core_count: int = 132
    shared_memory_per_block_optin: int = 232448


@contextlib.contextmanager
def recording_device_queries() -> Iterator[list[str]]:
    """Yield the list of what is asked about devices within the context, where there is no GPU."""
    asked: list[str] = []

    def recorder(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(answer)
        def listening(*args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            return answer(*args, **kwargs)

        return listening

    with _patched({key: recorder(key[1], old) for key, old in _device_queries().items()}):
        yield asked


@contextlib.contextmanager
def assuming_gpu() -> Iterator[None]:
    """Answer questions about devices within the context as on a machine with `ASSUMED_GPU`.

    What asks for devices of a platform that is there gets those.
    """
    known = _device_queries()
    answers: dict[str, Callable[..., Any]] = {
        "check_cudnn_version": lambda: _CUDNN,
        "check_compute_capability": lambda capability: _numbers(capability) <= _CAPABILITY,
        "is_cuda_compute_capability_equal": lambda capability: _numbers(capability) == _CAPABILITY,
        "default_backend": lambda: "gpu",
    }

    def devices(old: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(old)
        def answer(*args: Any, **kwargs: Any) -> Any:
            given = kwargs.get("backend", args[-1] if args else None)
            return [_Gpu()] if given in (None, "gpu", "cuda") else old(*args, **kwargs)

        return answer

    with _patched({key: answers.get(key[1]) or devices(old) for key, old in known.items()}):
        yield


def _device_queries() -> dict[tuple[Any, str], Callable[..., Any]]:
    """Return the functions that code asks about devices while it is traced, by module and name.

    There are none where a GPU answers.
    """
    jax = import_jax()
    if jax.default_backend() == "gpu":
        return {}
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    names = ("check_cudnn_version", "check_compute_capability", "is_cuda_compute_capability_equal")
    found = {(cudnn, name): getattr(cudnn, name, None) for name in names}
    for name in ("default_backend", "devices", "local_devices"):
        found[jax, name] = getattr(jax, name)
    return {key: old for key, old in found.items() if old is not None}


@contextlib.contextmanager
def _patched(made: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    before = {key: getattr(*key) for key in made}
    try:
        for (module, name), new in made.items():
            setattr(module, name, new)
        yield
    finally:
        for (module, name), old in before.items():
            setattr(module, name, old)


@contextlib.contextmanager
def replacing_differentiated(
    new: Callable[[Callable[..., Any], bool], Callable[..., Any]],
) -> Iterator[None]:
    """Have JAX linearize `new(fun, has_aux)` in place of `fun` in the context, in this thread.

    That holds for `jax.vjp`, `jax.linearize`, `jax.grad`, `jax.value_and_grad` and `jax.jacrev`,
    by whatever name a module has them, and for what libraries build on them.
    """
    import_jax()
    from jax._src import linear_util
    from jax._src.interpreters import ad

    thread = threading.get_ident()
    plain: Callable[..., Any] = ad.linearize

    @functools.wraps(plain)
    def linearize(fun: Any, *primals: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return plain(fun, *primals, **options)
        has_aux = bool(options.get("has_aux"))
        if not isinstance(fun, linear_util.WrappedFun):
            return plain(new(fun, has_aux), *primals, **options)
        # Until 0.9.
        made = linear_util.wrap_init(new(fun.call_wrapped, has_aux), debug_info=fun.debug_info)
        return plain(made, *primals, **options)

    with _patched({(ad, "linearize"): linearize}):
        yield


@contextlib.contextmanager
def replacing_vjp(new: Callable[..., Any]) -> Iterator[None]:
    """Have `new` called in place of `jax.vjp`, by what calls it too, in the context and thread.

    A `vjp` that a module has imported by name stays as it is, and so does a call with options that
    not every version has.

    Args:
      new: takes a function that makes the call as it is, the differentiated function, the primals
        and `has_aux`, and returns what `jax.vjp` does.
    """
    jax = import_jax()
    from jax._src import api

    thread = threading.get_ident()
    inner = getattr(api, "_vjp", None)  # all go through it until 0.9
    plain: Callable[..., Any] = inner or api.vjp

    @functools.wraps(plain)
    def vjp(fun: Any, *primals: Any, has_aux: bool = False, **options: Any) -> Any:
        as_it_is = functools.partial(plain, fun, *primals, has_aux=has_aux, **options)
        if threading.get_ident() != thread or options:
            return as_it_is()
        return new(as_it_is, fun if inner is None else fun.call_wrapped, primals, has_aux)

    names = [(api, "_vjp")] if inner else [(api, "vjp"), (jax, "vjp")]
    with _patched(dict.fromkeys(names, vjp)):
        yield


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split("."))


def flags() -> dict[str, bool]:
    """Return the values of those flags that change residuals and exist in this version."""
    config = import_jax().config
    values = {name: getattr(config, name, None) for name in _FLAGS}
    return {name: bool(value) for name, value in values.items() if value is not None}


def open_jaxpr(jaxpr: ClosedJaxpr) -> Jaxpr:
    """Return the jaxpr with its eqns.

    Until 0.10 `Traced.jaxpr` and eqn params hold a ClosedJaxpr around it; since 0.11 a Jaxpr
    carries its constants itself.
    """
    held: Any = jaxpr
    opened: Jaxpr = held.jaxpr if type(jaxpr).__name__ == "ClosedJaxpr" else held
    return opened


def with_jaxpr(closed: ClosedJaxpr, jaxpr: Jaxpr) -> ClosedJaxpr:
    """Return what holds a jaxpr, with another one of the same inputs and outputs in it.

    See `open_jaxpr`.
    """
    return jaxpr if open_jaxpr(closed) is closed else closed.replace(jaxpr=jaxpr)


def with_outvars(closed: ClosedJaxpr, outvars: Sequence[Var]) -> ClosedJaxpr:
    """Return a closed jaxpr with other outputs, chosen from those that it has."""
    jaxpr = open_jaxpr(closed)
    known = {v: i for i, v in enumerate(jaxpr.outvars) if not is_literal(v)}
    info = jaxpr.debug_info
    paths = getattr(info, "result_paths", None)
    if paths is not None and len(paths) == len(jaxpr.outvars):
        kept = [paths[known[v]] if not is_literal(v) else "" for v in outvars]
        info = info._replace(result_paths=tuple(kept))
    return with_jaxpr(closed, jaxpr.replace(outvars=list(outvars), debug_info=info))


def is_ref(value: Any) -> bool:
    """Return whether a value is a `jax.Ref` or a tracer of one."""
    kind = type(value)
    if isinstance(value, import_jax().core.Tracer):
        return type(value.aval).__name__ == "AbstractRef"
    return kind.__name__ in _REFS and kind.__module__.partition(".")[0] == "jax"


_REFS = ("Ref", "ArrayRef", "MutableArray")  # the second in 0.7.1 to 0.7.2, the last before


def abstract_ref(struct: Any) -> Any:
    """Return a Ref of what a ShapeDtypeStruct describes.

    It holds nothing, and can be traced with.
    """
    from jax._src import core
    from jax._src.state.types import AbstractRef

    jax = import_jax()
    made = object.__new__(next(v for n in _REFS if (v := getattr(core, n, None)) is not None))
    held = open_jaxpr(jax.make_jaxpr(lambda x: x)(struct)).invars[0].aval
    vars(made).update(_aval=AbstractRef(held), _refs=None)
    return made


def held_refs(closed: ClosedJaxpr) -> dict[Var, Any]:
    """Return the Refs that a closed jaxpr closes over, by constvar."""
    pairs = zip(open_jaxpr(closed).constvars, closed.consts, strict=True)
    return {var: value for var, value in pairs if is_ref(value)}


def without_refs(closed: ClosedJaxpr, inputs: Sequence[Var]) -> tuple[ClosedJaxpr, tuple[int, ...]]:
    """Return a closed jaxpr of Refs as one of what they hold.

    After its outputs it also returns what the Refs hold in the end.

    Args:
      closed: the closed jaxpr of Refs.
      inputs: the invars of what is made, Refs that it closes over among them.

    Returns:
      that jaxpr, and the indices of the inputs that it returns.
    """
    from jax._src.state import discharge

    known = inspect.signature(discharge.discharge_state).parameters
    discharge_state = discharge.discharge_state
    if "lower" in known:  # 0.9: else checkpoints of jax_remat3 become their bodies
        discharge_state = functools.partial(discharge_state, lower=False)
    jaxpr, inside = open_jaxpr(closed), set(inputs)
    pairs = zip(jaxpr.constvars, closed.consts, strict=True)
    rest = [(var, value) for var, value in pairs if var not in inside]
    consts = [value for _, value in rest]
    changed = {
        "constvars": [var for var, _ in rest],
        "invars": list(inputs),
        "debug_info": jaxpr.debug_info._replace(arg_names=("",) * len(inputs)),
    }
    new: Callable[..., Any] = type(closed)
    with _patched({(discharge, "discharge_state"): discharge_state}):
        if open_jaxpr(closed) is closed:
            made = discharge_state(jaxpr.replace(consts=consts, **changed))
        elif "closed_jaxpr" in known:
            made = discharge_state(new(jaxpr.replace(**changed), consts))
        else:
            made = new(*discharge_state(jaxpr.replace(**changed), consts))
    return made, tuple(i for i, v in enumerate(inputs) if type(v.aval).__name__ == "AbstractRef")


def with_consts_as_inputs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a closed jaxpr that takes what it closes over as its first inputs."""
    jaxpr = open_jaxpr(closed)
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    changed = {
        "constvars": [],
        "invars": inputs,
        "debug_info": jaxpr.debug_info._replace(arg_names=("",) * len(inputs)),
    }
    if jaxpr is closed:
        made: ClosedJaxpr = jaxpr.replace(consts=[], **changed)
        return made
    new: Callable[..., ClosedJaxpr] = type(closed)
    return new(jaxpr.replace(**changed), [])


def is_pruned(eqn: Eqn) -> bool:
    """Return whether this JAX prunes an eqn that holds jaxprs when it lowers it.

    It then leaves out what nothing needs of the eqn; of `while` since 0.12.
    """
    from jax.interpreters import partial_eval

    return eqn.primitive in partial_eval.dce_rules


def as_function(closed: ClosedJaxpr) -> Callable[..., Sequence[Any]]:
    """Return a closed jaxpr as a function of its inputs that can be traced.

    Eqns keep their lines.
    """
    import jax.extend

    return jax.extend.core.jaxpr_as_fun(closed)  # type: ignore[no-any-return]


def as_call(eqn: Eqn, closed: ClosedJaxpr) -> Eqn:
    """Return the eqn as a plain jitted call of a closed jaxpr of its inputs and outputs.

    See `as_jit_jaxpr` for the closed jaxpr.
    """
    template = _jit_eqn(len(eqn.invars), len(eqn.outvars))
    return eqn.replace(primitive=template.primitive, params={**template.params, "jaxpr": closed})


def as_removed_checkpoint(eqn: Eqn, closed: ClosedJaxpr) -> Eqn:
    """Return a remat eqn as a call (see `as_call`) that `is_removed_checkpoint` recognises."""
    return with_params(as_call(eqn, closed), {"name": _REMOVED})


def is_removed_checkpoint(eqn: Eqn) -> bool:
    """Return whether an eqn stands for a removed checkpoint."""
    return primitive_name(eqn) == "jit" and params(eqn).get("name") == _REMOVED


def with_constants_as_inputs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a closed jaxpr without constants, which come in front of its inputs."""
    jaxpr = open_jaxpr(closed)
    if not closed.consts:
        return closed
    invars = [*jaxpr.constvars, *jaxpr.invars]
    info = jaxpr.debug_info._replace(arg_names=("",) * len(invars))
    changed = {"constvars": [], "invars": invars, "debug_info": info}
    if jaxpr is closed:
        made: ClosedJaxpr = jaxpr.replace(consts=[], **changed)
        return made
    new: Callable[..., ClosedJaxpr] = type(closed)
    return new(jaxpr.replace(**changed), [])


def bind_call(closed: ClosedJaxpr, name: str, operands: Sequence[Any]) -> list[Any]:
    """Call a closed jaxpr without constants, as one jit eqn of a name where JAX traces.

    See `as_jit_jaxpr` for the closed jaxpr.
    """
    jaxpr = open_jaxpr(closed)
    template = _jit_eqn(len(jaxpr.invars), len(jaxpr.outvars))
    primitive: Any = template.primitive
    made = primitive.bind(*operands, **{**template.params, "jaxpr": closed, "name": name})
    return list(made)


def with_traceback(eqn: Eqn, like: Eqn) -> Eqn:
    """Return the eqn with the traceback of another."""
    source = eqn.source_info.replace(traceback=traceback(like))
    return eqn.replace(source_info=source)


def new_var_like(var: Var) -> Var:
    """Return a new variable of the same aval."""
    import jax.extend

    made: Var = jax.extend.core.Var(var.aval)
    return made


def is_in_shard_map() -> bool:
    """Return whether what is called now runs in a `shard_map`.

    There JAX keeps a number that is an array, and what `jnp` makes of a number is one where no
    jaxpr is traced; in a jaxpr it is written where it is read, and the two cannot be told apart.
    """
    return bool(import_jax().sharding.get_abstract_mesh().manual_axes)


def checkpointed_function(frame: types.FrameType) -> Callable[..., Sequence[Any]] | None:
    """Return the function that is checkpointed by a call of `jax.checkpoint`.

    None where it is not known (jax_remat3).

    Args:
      frame: the frame of `jax.checkpoint` that binds it; its names are the same in 0.7.0 to 0.12.
    """
    jax = import_jax()
    fun, tree = frame.f_locals.get("fun_"), frame.f_locals.get("in_tree")
    if fun is None or tree is None:
        return None

    def call(*operands: Any) -> Sequence[Any]:
        args, kwargs = jax.tree.unflatten(tree, operands[len(operands) - tree.num_leaves :])
        found: Sequence[Any] = jax.tree.leaves(fun(*args, **kwargs))
        return found

    return call


def as_jit_jaxpr(jaxpr: Jaxpr) -> ClosedJaxpr:
    """Return an open jaxpr as a jit eqn holds it.

    JAX differentiates each such object once, so callers share it.
    """
    return with_jaxpr(_jit_eqn(0, 0).params["jaxpr"], jaxpr)


def part_of(
    jaxpr: Jaxpr, invars: Sequence[Var], eqns: Sequence[Eqn], outvars: Sequence[Var]
) -> ClosedJaxpr:
    """Return some eqns of an open jaxpr without constants, with what they read and what is wanted.

    It can be run, see `as_function`.
    """
    info = jaxpr.debug_info
    for names, count in (("arg_names", len(invars)), ("result_paths", len(outvars))):
        if hasattr(info, names):
            info = info._replace(**{names: ("",) * count})
    made = jaxpr.replace(invars=list(invars), outvars=list(outvars), debug_info=info)
    return as_jit_jaxpr(with_other_eqns(made, eqns))


@functools.cache
def _jit_eqn(inputs: int, outputs: int) -> Eqn:
    """Return a jit eqn of so many inputs and outputs.

    The names of its params differ between versions.
    """
    jax = import_jax()
    traced = jax.make_jaxpr(jax.jit(lambda *args: [1.0] * outputs))(*[1.0] * inputs)
    return open_jaxpr(traced).eqns[0]


def as_remat(body: Jaxpr, inputs: Sequence[Var], outputs: Sequence[Var], like: Eqn) -> Eqn:
    """Return a remat eqn of an open jaxpr, without a policy.

    Args:
      body: the open jaxpr.
      inputs: variables around it, one for each of the body's invars.
      outputs: variables around it, one for each of the body's outvars.
      like: an eqn whose source line it is given.
    """
    template = _remat_eqn()
    held = with_jaxpr(params(template)["jaxpr"], body)
    made = with_params(template, {"jaxpr": held, "policy": None})
    return made.replace(
        invars=list(inputs),
        outvars=list(outputs),
        source_info=like.source_info,
        ctx=like.ctx,
        effects=body.effects,
    )


@functools.cache
def _remat_eqn() -> Eqn:
    jax = import_jax()
    return open_jaxpr(jax.make_jaxpr(jax.checkpoint(lambda x: x + x))(1.0)).eqns[0]


def as_name(var: Var, name: str) -> Eqn:
    """Return the eqn that gives a value a `checkpoint_name`.

    Its input and its output are new variables.
    """
    jax = import_jax()
    from jax.ad_checkpoint import checkpoint_name

    traced = jax.make_jaxpr(lambda x: checkpoint_name(x, name))(var.aval)
    return open_jaxpr(traced).eqns[0]


def with_params(eqn: Eqn, changed: Mapping[str, Any]) -> Eqn:
    """Return the eqn with some of its params (see `params`) changed."""
    if eqn.primitive.name != "call_hi_primitive":
        return eqn.replace(params={**eqn.params, **changed})
    return eqn.replace(params=with_bound_params(eqn.params, changed))


def with_label(eqn: Eqn, label: str) -> Eqn:
    """Return the eqn with a label in front of its name stack, which what JAX makes of it keeps."""
    source = eqn.source_info
    stack = type(source.name_stack)().extend(label) + source.name_stack
    return eqn.replace(source_info=source.replace(name_stack=stack))


def with_eqns(jaxpr: Jaxpr, invars: Sequence[Var], eqns: Sequence[Eqn]) -> Jaxpr:
    """Return an open jaxpr with other eqns, and with some of its inputs."""
    info = jaxpr.debug_info
    names = getattr(info, "arg_names", None)
    if names is not None and len(names) == len(jaxpr.invars):
        known = dict(zip(jaxpr.invars, names, strict=True))
        info = info._replace(arg_names=tuple(known[v] for v in invars))
    return jaxpr.replace(invars=list(invars), eqns=list(eqns), debug_info=info)


def with_other_eqns(jaxpr: Jaxpr, eqns: Sequence[Eqn]) -> Jaxpr:
    """Return an open jaxpr with other eqns of the same inputs.

    JAX can run it with those of jax_remat3 as well, which it has to be told of.
    """
    if getattr(jaxpr, "is_high", None) is False and any(map(_is_high, eqns)):
        return jaxpr.replace(eqns=list(eqns), is_high=True)
    return jaxpr.replace(eqns=list(eqns))


def _is_high(eqn: Eqn) -> bool:
    inner = (open_jaxpr(value) for value in eqn.params.values() if is_jaxpr(value))
    return eqn.primitive.name == "call_hi_primitive" or any(
        getattr(each, "is_high", False) for each in inner
    )


def with_bound_params(bound: Mapping[str, Any], changed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what remat or scan is bound with, with some of its params changed.

    See `with_params`.
    """
    prim = bound.get("_prim")
    if prim is None:
        return {**bound, **changed}
    params = {**prim.params, **changed}
    if "prevent_cse" not in inspect.signature(type(prim)).parameters:  # jax_remat3 of 0.10
        params.pop("prevent_cse", None)
    return {**bound, "_prim": type(prim)(**params)}


def is_jaxpr(value: object) -> TypeGuard[ClosedJaxpr]:
    """Return whether a value is a jaxpr, open or closed."""
    return (hasattr(value, "eqns") and hasattr(value, "outvars")) or (
        hasattr(value, "jaxpr") and hasattr(value, "consts")
    )


def primitive_name(eqn: Eqn) -> str:
    """Return the primitive's name, the same on every version and with either remat."""
    name: str = eqn.primitive.name
    if name == "call_hi_primitive":  # jax_remat3: the real primitive is a param
        name = type(eqn.params["_prim"]).__name__
    return _ALIASES.get(name, name)


def params(eqn: Eqn) -> Mapping[str, Any]:
    """Return the eqn's params; those of the real primitive under `call_hi_primitive`."""
    if eqn.primitive.name == "call_hi_primitive":
        return bound_params(eqn.params)
    return eqn.params


def bound_params(bound: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the params in what remat or scan is bound with, as `params` does for an eqn."""
    return getattr(bound["_prim"], "params", {}) if "_prim" in bound else bound


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many operands of a scan of these params are constants, and how many its carry.

    Since 0.12 they are the lengths of the trees in `ft_in`.
    """
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def has_own_rules(eqn: Eqn) -> bool:
    """Return whether an eqn's primitive is a class of its own with its own rules.

    The primitives of jax_remat3 are left aside. Since 0.12 that of `lax.custom_root` is such a
    class.
    """
    is_own = eqn.primitive.name == "call_hi_primitive"
    return is_own and primitive_name(eqn) not in ("remat", "name")


def as_policies_see(eqn: Eqn) -> tuple[Primitive, Mapping[str, Any]]:
    """Return primitive and params as a checkpoint policy is given them: jax_remat3 wraps names."""
    if eqn.primitive.name == "call_hi_primitive" and primitive_name(eqn) == "name":
        import jax.extend

        return jax.extend.core.primitives.name_p, {"name": params(eqn)["name"]}
    return eqn.primitive, eqn.params


def is_literal(var: Var) -> TypeGuard[Literal]:
    """Return whether an operand is a literal."""
    return hasattr(var, "val")


def converted(literal: Any, var: Var) -> Literal:
    """Return a literal converted to the type that a variable has."""
    import numpy as np

    new: Callable[..., Literal] = type(literal)
    return new(np.asarray(literal.val).astype(var.aval.dtype)[()], var.aval)


def literal_text(var: Literal) -> str:
    """Return the value of a Literal, short.

    Since 0.8 it may be a TypedInt or a TypedNdArray.
    """
    import numpy as np

    try:
        array = np.asarray(var.val)
    except Exception:  # a PRNG key has no numpy form
        return str(var.aval)
    return str(array) if array.ndim == 0 else f"{array.dtype}{list(array.shape)}"


def is_dropped(var: Var) -> bool:
    """Return whether a variable is one of a result that nothing reads."""
    return type(var).__name__ == "DropVar"


def traceback(eqn: Eqn) -> Any | None:
    """Return the eqn's `Traceback` (hashable, compared by frames), if JAX recorded one."""
    return eqn.source_info.traceback


def name_stack(eqn: Eqn) -> str:
    """Return the eqn's name stack as text."""
    return str(eqn.source_info.name_stack)


def traced_function(jaxpr: Jaxpr) -> str | None:
    """Return `name at file:line` of the Python function that was traced into this jaxpr.

    None where it is not known.
    """
    return getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None)


def memory_space(aval: Aval) -> str:
    """Return `host` for pinned host memory, else `device`.

    Avals know their memory since 0.7.2; before that only the `device_put` that moved the value
    does, see `moved_to`.
    """
    return _space(getattr(aval, "memory_space", None))


@functools.cache
def _space(space: Any) -> str:
    return "host" if getattr(space, "name", str(space)).lower().endswith("host") else "device"


def moved_to(eqn: Eqn, i: int) -> str | None:
    """Return `host` or `device` where a `device_put` moves operand `i` to a memory, else None."""
    device = params(eqn)["devices"][i]
    # TransferToMemoryKind until 0.7.1, MemorySpace since.
    kind = getattr(device, "memory_kind", None) or getattr(device, "name", None)
    if kind is None:
        return None
    return "host" if "host" in str(kind).lower() else "device"


def first_device() -> tuple[str, str, str] | None:
    """Return platform, kind and client version of JAX's first device here.

    None where JAX has not looked for devices yet: this starts no backend.
    """
    if "jax" not in sys.modules:
        return None
    from jax._src import xla_bridge

    if not xla_bridge.backends_are_initialized():
        return None
    device = import_jax().local_devices()[0]
    return device.platform, device.device_kind, device.client.platform_version


def skip_cuda_plugin() -> None:
    """Let JAX start no CUDA plugin in this process.

    Where there is no GPU it does not start, and JAX logs a traceback of 20 lines about that. What
    compiles for a GPU is a process of its own.
    """
    for name in ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"):
        stub = types.ModuleType(name)
        stub.initialize = lambda: None  # type: ignore[attr-defined]
        sys.modules.setdefault(name, stub)


def topology_devices(platform: str, topology: str, target_config: str = "") -> tuple[Any, ...]:
    """Return the devices of a topology, none of which has to be there.

    Args:
      platform: `tpu` or `cuda`.
      topology: `v5e:2x4` of a TPU, `1x1x8` of a GPU.
      target_config: the text that describes the GPU.

    Raises:
      Exception: what the compiler says against it.
    """
    from jax.experimental import topologies

    if target_config:
        described = {"target_config": target_config, "topology": topology}
        return tuple(topologies.get_topology_desc(platform=platform, **described).devices)
    return tuple(topologies.get_topology_desc(topology, platform).devices)


def bytecode(lowered: Any) -> tuple[bytes, int]:
    """Return a `jax.stages.Lowered` as StableHLO bytecode, and how many devices it is split over.

    The bytecode has debug locations.
    """
    operation = lowered.compiler_ir("stablehlo").operation
    buffer = io.BytesIO()
    operation.write_bytecode(buffer)
    return buffer.getvalue(), operation.attributes["mhlo.num_partitions"].value


def without_locations(code: bytes) -> str:
    """Return StableHLO bytecode as text, without debug locations.

    It is the same wherever in a file the program's lines are.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        return str(ir.Module.parse(code).operation.get_asm(enable_debug_info=False))


def compiled(code: bytes, devices: Sequence[Any], flags: Mapping[str, Any]) -> Any:
    """Return the executable of StableHLO, text or bytecode, partitioned over devices of one client.

    This is what `Lowered.compile` ends in; that one needs the function and, when it lowers, devices
    of the platform.

    Args:
      code: the StableHLO.
      devices: the devices, of one client.
      flags: options of the compiler by name.

    Raises:
      Exception: what the compiler says against it.
    """
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    client = devices[0].client
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=dict(flags),
        backend=client,
    )
    # For what is only described nothing can be loaded; the CPU's compiles no other way until 0.10.
    is_described = type(client).__name__ == "CompileOnlyPyClient"
    compile = client.compile if is_described else client.compile_and_load
    with mlir.make_ir_context():
        module = ir.Module.parse(code)
        inputs, outputs = (_unspecified(module, which) for which in ("arg_attrs", "res_attrs"))
        # As `jax.jit` sets them: XLA may split what the program says nothing about.
        build = options.executable_build_options
        build.allow_spmd_sharding_propagation_to_parameters = inputs
        build.allow_spmd_sharding_propagation_to_output = outputs
        if b"mhlo.sharding" in code and hasattr(build, "use_shardy_partitioner"):
            build.use_shardy_partitioner = False  # nor did what lowered it
        options.parameter_is_tupled_arguments = client.platform == "tpu" and len(inputs) > 2000
        given = {
            "executable_devices": xla_client.DeviceList(tuple(devices)),
            "compile_options": options,
        }
        try:
            return compile(module, **given)
        except TypeError:  # 0.7 takes the bytes themselves
            return compile(code, **given)


def numbers_frames() -> bool:
    """Return whether the stack frames of an HLO instruction are numbered as those of its module.

    Not before jaxlib 0.9: the pass that splits programs numbers those of the instructions anew.
    """
    major, minor = jaxlib_version().split(".")[:2]
    return (int(major), int(minor)) >= (0, 9)


def _unspecified(module: Any, attributes: str) -> list[bool]:
    """Return for each parameter or result of a module whether the compiler chooses its sharding."""
    main = next(op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"')
    if attributes not in main.attributes:  # of none anything is said
        types = main.attributes["function_type"].value
        return [True] * len(types.inputs if attributes == "arg_attrs" else types.results)
    found = []
    for each in main.attributes[attributes]:
        given = [str(each[n]) for n in ("sdy.sharding", "mhlo.sharding") if n in each]
        found.append(not given or "?" in given[0])  # a dimension left open
    return found


def axes_of(mesh: Any) -> dict[str, int]:
    """Return the axes of a Mesh or an AbstractMesh with their sizes, in order."""
    return {str(name): int(size) for name, size in mesh.shape.items()}


def is_explicit(mesh: Any) -> bool:
    """Return whether the types say over every axis of a mesh how each value is split."""
    return all(str(kind).endswith("Explicit") for kind in mesh.axis_types)


def new_mesh(axes: Mapping[str, int], *, explicit: bool) -> Any:
    """Return a mesh of as many CPU devices as its axes take.

    If there are too few and no backend has started yet, JAX is asked for more.

    Args:
      axes: the size of each axis.
      explicit: whether the axes are explicit; else they are automatic.

    Raises:
      InputsError: there are too few.
    """
    import numpy as np

    jax = import_jax()
    count = math.prod(axes.values())
    if jax.config.jax_num_cpu_devices < count:
        with contextlib.suppress(RuntimeError):  # a backend has started
            jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise InputsError(
            f"a mesh of {count} devices needs {count} CPU devices to trace on, and JAX started with"
            f" {len(devices)}; set JAX_NUM_CPU_DEVICES={count} before JAX is imported"
        )
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    shaped = np.array(devices[:count]).reshape(tuple(axes.values()))
    return jax.sharding.Mesh(shaped, tuple(axes), axis_types=(kind,) * len(axes))


def new_abstract_mesh(axes: Mapping[str, int]) -> Any:
    """Return an AbstractMesh of automatic axes with these sizes, which takes no devices."""
    sharding = import_jax().sharding
    kinds = (sharding.AxisType.Auto,) * len(axes)
    return sharding.AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def in_mesh(mesh: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which PartitionSpecs refer to a mesh.

    Without a mesh (None) nothing changes.
    """
    jax = import_jax()
    if mesh is None:
        return contextlib.nullcontext()
    if not isinstance(mesh, jax.sharding.Mesh):
        use = getattr(jax.sharding, "use_abstract_mesh", None)  # 0.7.2
        return contextlib.nullcontext() if use is None else use(mesh)
    use = getattr(jax, "set_mesh", None) or jax.sharding.use_mesh  # the former since 0.7.1
    return use(mesh)  # type: ignore[no-any-return]


def without_callers() -> contextlib.AbstractContextManager[Any]:
    """Return the context in which what JAX traces has no line of those who asked for it.

    Modules of the same program are equal then, wherever they are lowered. Eqns that are traced
    already keep their lines.
    """
    from jax._src import source_info_util

    return source_info_util.user_context(_no_callers())  # type: ignore[no-any-return]


def untagged() -> contextlib.AbstractContextManager[None]:
    """Return the context in which what JAX traces has no tag of a derivative that is taken."""
    from jax._src import source_info_util

    return source_info_util.reset_name_stack()  # type: ignore[no-any-return]


@contextlib.contextmanager
def keeping_callers() -> Iterator[None]:
    """Let the first trace within the context keep the lines of those who asked for it.

    JAX forgets them since 0.7.1, but for the outermost trace.
    """
    from jax._src.interpreters import partial_eval

    cutting = getattr(partial_eval, "TracebackScope", None)

    def keep() -> contextlib.AbstractContextManager[None]:
        partial_eval.TracebackScope = cutting
        return contextlib.nullcontext()

    if cutting is None:
        yield
        return
    with _patched({(partial_eval, "TracebackScope"): keep}):
        yield


@functools.cache
def _no_callers() -> Any:
    """Return the traceback of a thread, which has no callers."""
    from jax._src.lib import xla_client

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(xla_client.Traceback.get_traceback()))
    thread.start()
    thread.join()
    return found[0]


def split_of(sharding: Any, rank: int) -> tuple[tuple[str, ...], ...] | None:
    """Return the mesh axes that a NamedSharding splits each dim over.

    None for another kind of sharding, and for one that leaves dims to the compiler.
    """
    spec = getattr(sharding, "spec", None)
    if spec is None or import_jax().sharding.PartitionSpec.UNCONSTRAINED in tuple(spec):
        return None
    return spec_split(spec, rank)


def spec_split(spec: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    """Return the mesh axes that a PartitionSpec splits each dim over, as `split_of` does."""
    entries = [_entry(e) for e in tuple(spec)]
    return tuple((*entries, *[()] * rank)[:rank])


def _entry(entry: Any) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    # None, or UNCONSTRAINED.
    return tuple(str(name) for name in entry) if isinstance(entry, tuple) else ()


def typed_split(aval: Aval) -> tuple[tuple[str, ...], ...] | None:
    """Return how an aval's type says that it is split.

    None where the type does not say, which it does over explicit axes only.
    """
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or mesh.empty or not is_explicit(mesh):
        return None
    return split_of(sharding, len(aval.shape))


def tells_memory() -> bool:
    """Return whether avals know their memory, and values can be put into one: since 0.7.2."""
    import_jax()
    return _numbers(jax_version()) >= (0, 7, 2)


def put_in(value: Any, memory: str) -> Any:
    """Return a traced value put into the memory `device` or `host`; see `tells_memory`."""
    jax = import_jax()
    space = jax.memory.Space
    return jax.device_put(value, space.Host if memory == "host" else space.Device)


def host_sharding() -> Any:
    """Return a sharding in the host memory of one CPU device, so that no other is looked for.

    Raises:
      ValueError: it has none.
    """
    jax = import_jax()
    mesh = jax.sharding.Mesh(jax.devices("cpu")[:1], "device")
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(), memory_kind="pinned_host")


def host_results(eqn: Eqn) -> tuple[int, ...]:
    """Return the results of a jit eqn that its `out_shardings` put in host memory.

    Their avals do not tell.
    """
    asked = params(eqn).get("out_shardings", ())
    return tuple(i for i, s in enumerate(asked) if getattr(s, "memory_kind", None) == "pinned_host")


def as_host_put(var: Var, like: Eqn) -> Eqn:
    """Return the eqn that moves a value like a variable to host memory.

    Its input and its output are new variables.

    Args:
      var: the variable.
      like: a jit eqn with a result in host memory, whose host sharding and source line it is given.
    """
    jax = import_jax()
    host = next(
        s for s in params(like)["out_shardings"] if getattr(s, "memory_kind", None) == "pinned_host"
    )
    traced = jax.make_jaxpr(lambda x: jax.device_put(x, host))(var.aval)
    return open_jaxpr(traced).eqns[0].replace(source_info=like.source_info)
