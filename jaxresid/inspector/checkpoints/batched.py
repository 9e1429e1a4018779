"""Find matmuls of parameters that a policy would save, had a vmap not given them a batch dimension.

A policy is asked about the eqns of a checkpoint after the vmaps around it have been through them.
Which dimensions these added shows where the checkpoint is bound: its body is as written there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import calls_user_code
from jaxresid.inspector.checkpoints.policies import answers, description, means_nothing
from jaxresid.inspector.checkpoints.sites import Call, CheckpointSite, calls, sites
from jaxresid.inspector.jaxpr.bindings import checkpoint_binding, intercept_bind
from jaxresid.inspector.jaxpr.frames import Frame, Frames
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.primitives import CALLS, PARTS, TRANSPARENT
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var
from jaxresid.results import Location

# What takes a parameter, or a part of it, to where it is multiplied.
_HANDS_ON = TRANSPARENT | PARTS | {"name", "optimization_barrier"}
# The function of JAX that calls what `jax.vmap` was given.
_VMAP = "vmap.<locals>.vmap_f"

# A policy, and the stack of a matmul that it saves as it is written.
_Written = frozenset[tuple[str | None, tuple[Frame, ...]]]


@dataclass(frozen=True, slots=True, eq=False)
class BatchedMatmuls:
    """The matmuls of a checkpoint that its policy would save without the vmaps around it.

    Attributes:
      site: the checkpoint.
      matmuls: their eqns, each once.
      saved: how many matmuls of parameters the policy saves as it is.
      vmap: the line that calls the innermost vmap; None where it is not known.
    """

    site: CheckpointSite
    matmuls: tuple[Eqn, ...]
    saved: int
    vmap: Location | None

    @property
    def size(self) -> int:
        """The size of the dimension that the outermost vmap added."""
        matmul = self.matmuls[0]
        _, (batch, _) = jax_compat.params(matmul)["dimension_numbers"]
        return int(matmul.invars[0].aval.shape[batch[0]])


def may_be_batched(jaxprs: Iterable[Jaxpr]) -> bool:
    """Return whether any of some open jaxprs holds a checkpoint with a policy inside a vmap."""
    seen: set[tuple[int, bool]] = set()
    todo = [(jaxpr, False) for jaxpr in jaxprs]
    while todo:
        jaxpr, is_inside = todo.pop()
        if (id(jaxpr), is_inside) in seen:
            continue
        seen.add((id(jaxpr), is_inside))
        for eqn in jaxpr.eqns:
            inner = [nest.jaxpr for nest in nests(eqn)]
            is_in_vmap = is_inside or (bool(inner) and _is_mapped(eqn))
            if is_in_vmap and jax_compat.primitive_name(eqn) == "remat":
                is_policy = not means_nothing(jax_compat.params(eqn)["policy"])
                if is_policy and any(_batch_dims(e) for body in inner for e in eqns_in(body)):
                    return True
            todo += [(body, is_in_vmap) for body in inner]
    return False


def batched_matmuls(
    levels: Levels, jaxpr: Jaxpr, run_again: Callable[[], object]
) -> Iterator[BatchedMatmuls]:
    """Yield, for each checkpoint, the matmuls of parameters that vmaps hide from its policy.

    Args:
      levels: the descent into the jaxpr.
      jaxpr: an open jaxpr that is differentiated.
      run_again: runs the function that the jaxpr is of, while JAX traces it.

    Raises:
      RetraceError: the function cannot be traced again.
      InputsError: a policy fails for what is written.
    """
    written: _Written | None = None
    top = Level(jaxpr)
    places = {id(call.eqn): level for level, call in calls(levels, top)}
    for site in sites(levels, top):
        mapped = [c for c in site.calls if any(map(_is_mapped, (*c.enclosing, c.eqn)))]
        if not mapped or means_nothing(site.policy):
            continue
        saved, left = list[Eqn](), list[Eqn]()
        for eqn in _of_parameters(levels, [(places[id(c.eqn)], c) for c in mapped]):
            is_saved = answers(site.policy, [eqn], str(site)).saves
            (saved if is_saved else left).append(eqn)
        left = [eqn for eqn in left if _batch_dims(eqn)]
        if not left:
            continue
        if written is None:
            written = _written(levels.frames, run_again)
        policy = description(site.policy)
        hidden = [e for e in left if (policy, levels.frames.of(e).frames) in written]
        if hidden:
            vmap = _vmap_line(levels.frames, mapped[0])
            yield BatchedMatmuls(site, tuple(hidden), len(saved), vmap)


def _of_parameters(levels: Levels, placed: Iterable[tuple[Level, Call]]) -> list[Eqn]:
    """Return the matmuls with inputs of the program in some checkpoints, each once."""
    found = {
        id(eqn): eqn
        for level, call in placed
        for inner, eqn in _below(levels, levels.enter(level, call.eqn, 0))
        if jax_compat.primitive_name(eqn) == "dot_general"
        and any(_is_input(levels, inner, v) for v in eqn.invars)
    }
    return list(found.values())


def saving_as_well(policy: Any, matmuls: Iterable[Eqn]) -> Callable[..., Any]:
    """Return a policy that saves what another does, and some matmuls."""
    kinds = {
        _kind([v.aval for v in eqn.invars], jax_compat.params(eqn)): eqn.primitive
        for eqn in matmuls
    }

    @calls_user_code
    def saving(primitive: Any, *avals: Any, **params: Any) -> Any:
        if "dimension_numbers" in params and kinds.get(_kind(avals, params)) is primitive:
            return True
        return policy(primitive, *avals, **params)

    return saving


def _kind(avals: Iterable[Any], params: Mapping[str, Any]) -> tuple[object, ...]:
    return params["dimension_numbers"], *((aval.shape, aval.dtype) for aval in avals)


def _is_mapped(eqn: Eqn) -> bool:
    return "vmap(" in jax_compat.name_stack(eqn)


def _batch_dims(eqn: Eqn) -> int:
    """Return how many batch dimensions a matmul has; 0 for other eqns."""
    if jax_compat.primitive_name(eqn) != "dot_general":
        return 0
    _, (batch, _) = jax_compat.params(eqn)["dimension_numbers"]
    return len(batch)


def _below(levels: Levels, level: Level) -> Iterator[tuple[Level, Eqn]]:
    """Yield the eqns of a level and of those inside it, each with its level."""
    for eqn in level.jaxpr.eqns:
        yield level, eqn
        for which, _ in enumerate(levels.nests(eqn)):
            yield from _below(levels, levels.enter(level, eqn, which))


def _is_input(levels: Levels, level: Level, var: Var) -> bool:
    """Return whether a value is an input of the top level, or a part or another form of one."""
    while not jax_compat.is_literal(var):
        number = levels.invar(level, var)
        if number is not None:
            if level.parent is None or level.nest is None:
                return True
            if number in level.nest.carries:
                return False
            var, level = level.eqn.invars[level.nest.operands[number]], level.parent
            continue
        made = levels.producer(level, var)
        if made is None:
            return False
        eqn, which = made
        name = jax_compat.primitive_name(eqn)
        if name in CALLS and levels.nests(eqn):
            level = levels.enter(level, eqn, 0)
            var = level.jaxpr.outvars[which]
        elif name in _HANDS_ON:
            var = eqn.invars[which if name == "optimization_barrier" else 0]
        else:
            return False
    return False


def _written(frames: Frames, run_again: Callable[[], object]) -> _Written:
    """Return which matmuls the policies of checkpoints save as they are written."""
    found: set[tuple[str | None, tuple[Frame, ...]]] = set()

    def note(params: Mapping[str, Any], _: FrameType) -> Mapping[str, Any]:
        held = jax_compat.bound_params(params)
        policy = description(held["policy"])
        for eqn in eqns_in(jax_compat.open_jaxpr(held["jaxpr"])):
            is_matmul = jax_compat.primitive_name(eqn) == "dot_general"
            if is_matmul and answers(held["policy"], [eqn], "").saves:
                found.add((policy, frames.of(eqn).frames))
        return params

    with retracing("the function"), intercept_bind({checkpoint_binding(): note}):
        run_again()
    return frozenset(found)


def _vmap_line(frames: Frames, call: Call) -> Location | None:
    """Return the user's line that calls the innermost vmap around a checkpoint.

    That of a library, where the user's is not known.
    """
    for eqn in (call.eqn, *reversed(call.enclosing)):
        traceback = jax_compat.traceback(eqn)
        codes, lastis = ((), ()) if traceback is None else traceback.raw_frames()
        names = [code.co_qualname for code in codes]
        if _VMAP not in names:
            continue
        outside = list(zip(codes, lastis, strict=True))[names.index(_VMAP) :]
        made = [Frame(c, i, frames.kind(c.co_filename, c.co_qualname)) for c, i in outside]
        return frames.innermost_user(f for f in reversed(made) if f.kind in ("user", "library"))
    return None
