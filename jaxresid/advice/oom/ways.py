"""Say what to try about a lack of memory, the likeliest first, each with the command for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxresid.model import OomBuffer, OomCause, OomParts, WayOut
from jaxresid.xla.logs.failure import Failure

_GIB = 2**30
# Outputs that take this share of what a program needs could take over donated arguments.
_MUCH = 0.1
# The part of a GPU that JAX can be told to take, and leave something to CUDA's libraries.
_MOST_FRACTION = 0.95
# What CUDA's libraries need beside JAX is less than this part of a GPU.
_LIBRARIES_FRACTION = 0.1
_SUM = "print(sum(x.nbytes for x in jax.live_arrays()))"
_SMI = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"


@dataclass(frozen=True, slots=True)
class Names:
    """What commands are written with.

    Attributes:
      target: the function or step that ran out of memory; the word TARGET where it is not known.
      place: the place that it ran on; the word PLACE where it is not known.
    """

    target: str = "TARGET"
    place: str = "PLACE"


def ways_out(
    cause: OomCause,
    failure: Failure,
    parts: OomParts,
    buffers: Sequence[OomBuffer],
    names: Names,
    *,
    from_dump: bool,
) -> tuple[WayOut, ...]:
    """Return what to try, in order: only what the figures of the log speak for.

    Args:
      cause: what filled the memory.
      failure: what the log says.
      parts: what the program's memory is made of.
      buffers: its largest buffers.
      names: what the commands are written with.
      from_dump: whether all this was read from a dump, so that another tells nothing new.
    """
    return tuple(_Ways(failure, parts, buffers, names, from_dump).of(cause))


class _Ways:
    def __init__(
        self,
        failure: Failure,
        parts: OomParts,
        buffers: Sequence[OomBuffer],
        names: Names,
        from_dump: bool,
    ) -> None:
        self._failure = failure
        self._parts = parts
        self._buffers = buffers
        self._names = names
        self._from_dump = from_dump

    def of(self, cause: OomCause) -> Iterator[WayOut]:
        """Yield the ways out of a lack of memory with this cause."""
        if cause == "padding":
            nbytes = self._parts.padding_nbytes or sum(b.padding_nbytes for b in self._buffers)
            yield WayOut("shapes", self._jaxresid("compile"), nbytes)
            yield from self._smaller()
        elif cause in ("temporaries", "too-large"):
            yield from self._smaller()
        elif cause in ("arguments", "outputs"):
            yield from self._arguments(cause)
        elif cause == "held":
            yield from self._held()
        elif cause == "fragmentation":
            yield from self._in_pieces()
        elif cause == "other-program":
            yield WayOut("other-program", _SMI)
            yield WayOut("other-device", "CUDA_VISIBLE_DEVICES=1 python train.py")
        elif cause == "preallocation":
            yield WayOut("less-fraction", _with_fraction(self._less()))
        elif cause == "on-chip":
            limit = "LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=65536 python train.py"
            yield WayOut("kernel", limit)
        elif cause == "host":
            yield WayOut("host-profile", "python -m memray run train.py")
        elif not self._from_dump:
            yield self._dump()

    def _smaller(self) -> Iterator[WayOut]:
        if not self._buffers and not self._from_dump:
            yield WayOut("list-buffers", self._jaxresid("compile"))
        yield from self._donation()
        if self._differentiates() is not False:
            yield WayOut("plan", self._budgeted("plan"), self._parts.temp_nbytes)
            yield WayOut("batch", self._budgeted("plan", "--batch 8..64"))
        yield WayOut("shard", self._budgeted("plan", "--mesh data=8"))
        if not self._buffers and not self._from_dump:
            yield self._dump()

    def _arguments(self, cause: OomCause) -> Iterator[WayOut]:
        parts = self._parts
        if cause == "outputs" and not self._buffers and not self._from_dump:
            yield WayOut("list-buffers", self._jaxresid("compile"))
        yield from self._donation()
        nbytes = parts.argument_nbytes if cause == "arguments" else parts.output_nbytes
        yield WayOut("shard", self._budgeted("plan", "--mesh data=8"), nbytes)
        if cause == "arguments":
            yield WayOut("state", self._budgeted("plan"), nbytes)
        if not self._buffers and not self._from_dump:
            yield self._dump()

    def _donation(self) -> Iterator[WayOut]:
        """Yield that outputs could take over arguments, where that would save much."""
        parts, need = self._parts, self._failure.required_nbytes or 0
        given = min(parts.output_nbytes or 0, parts.argument_nbytes or 0)
        if given and given >= _MUCH * need:
            yield WayOut("donate", self._budgeted("plan"), given)

    def _held(self) -> Iterator[WayOut]:
        is_gpu = self._failure.platform == "gpu"
        if is_gpu:
            yield WayOut("other-program", _SMI)
        held = self._failure.pool.in_use_nbytes
        yield WayOut("live-arrays", _SUM, held)
        if is_gpu and self._can_grow():
            yield WayOut("fraction", _with_fraction(_MOST_FRACTION))

    def _in_pieces(self) -> Iterator[WayOut]:
        if self._failure.platform == "gpu":
            yield WayOut("allocator", "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async python train.py")
            if self._can_grow():
                yield WayOut("fraction", _with_fraction(_MOST_FRACTION))
        yield WayOut("live-arrays", _SUM, self._failure.pool.in_use_nbytes)

    def _can_grow(self) -> bool:
        """Return whether JAX might be given more of the GPU than it had."""
        pool = self._failure.pool
        if pool.limit_nbytes is None or pool.device_nbytes is None:
            return True
        return pool.limit_nbytes < _MOST_FRACTION * pool.device_nbytes

    def _less(self) -> float:
        pool = self._failure.pool
        if not pool.limit_nbytes or not pool.device_nbytes:
            return 0.75 - _LIBRARIES_FRACTION
        taken = pool.limit_nbytes / pool.device_nbytes
        return max(round(taken - _LIBRARIES_FRACTION, 2), 0.1)

    def _differentiates(self) -> bool | None:
        """Return whether the program takes gradients; None where no name says."""
        names = [buffer.op_name for buffer in self._failure.buffers if buffer.op_name]
        return any(buffer.role for buffer in self._buffers) if names else None

    def _dump(self) -> WayOut:
        return WayOut("dump", "XLA_FLAGS=--xla_dump_to=DUMP python train.py; jaxresid oom DUMP")

    def _jaxresid(self, command: str) -> str:
        return f"jaxresid {command} {self._names.target} --on {self._names.place}"

    def _budgeted(self, command: str, *options: str) -> str:
        capacity = self._failure.capacity_nbytes or self._failure.pool.limit_nbytes
        budget = "SIZE" if capacity is None else f"{int(capacity / _GIB * 100) / 100:g}GiB"
        return " ".join((self._jaxresid(command), *options, f"--budget {budget}"))


def _with_fraction(fraction: float) -> str:
    return f"XLA_CLIENT_MEM_FRACTION={fraction:.2f} python train.py"
