"""Say what to try about a lack of memory, the likeliest first, each with the command for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxresid.results import Finding, OomBuffer, OomCause, OomParts, Report, WayOut
from jaxresid.results.out_of_memory import WayOutKind
from jaxresid.xla.logs.failure import Failure

_GIB = 2**30
# Outputs that take this share of what a program needs could take over donated arguments.
_MUCH = 0.1
# The part of a GPU that JAX can be told to take, and leave something to CUDA's libraries.
_MOST_FRACTION = 0.95
# What CUDA's libraries need beside JAX is less than this part of a GPU.
_LIBRARIES_FRACTION = 0.1
_HOST_LIMIT = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
_SUM = "print(sum(x.nbytes for x in jax.live_arrays()))"
_SMI = "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv"


@dataclass(frozen=True, slots=True)
class Names:
    """What commands are written with.

    Attributes:
      target: the function or step that ran out of memory, with its inputs; the word TARGET where it
        is not known.
      place: the place that it ran on; the word PLACE where it is not known.
      batched: the target with smaller batches to choose from; None where its inputs have no batch
        that can be another.
      split: the target with its inputs split over devices; None where none can be.
    """

    target: str = "TARGET"
    place: str = "PLACE"
    batched: str | None = "TARGET --batch 8..64"
    split: str | None = "TARGET --mesh data=8"


def ways_out(
    cause: OomCause,
    failure: Failure,
    parts: OomParts,
    buffers: Sequence[OomBuffer],
    names: Names,
    *,
    from_dump: bool,
    report: Report | None = None,
) -> tuple[WayOut, ...]:
    """Return what to try, in order: only what the figures of the log speak for.

    Args:
      cause: what filled the memory.
      failure: what the log says.
      parts: what the program's memory is made of.
      buffers: its largest buffers.
      names: what the commands are written with.
      from_dump: whether all this was read from a dump, so that another tells nothing new.
      report: the report of the target; None where it is not known.
    """
    return tuple(_Ways(failure, parts, buffers, names, from_dump, report).of(cause))


class _Ways:
    def __init__(
        self,
        failure: Failure,
        parts: OomParts,
        buffers: Sequence[OomBuffer],
        names: Names,
        from_dump: bool,
        report: Report | None,
    ) -> None:
        self._failure = failure
        self._parts = parts
        self._buffers = buffers
        self._names = names
        self._from_dump = from_dump
        self._report = report

    def of(self, cause: OomCause) -> Iterator[WayOut]:
        """Yield the ways out of a lack of memory with this cause."""
        if cause == "padding":
            nbytes = self._parts.padding_nbytes or sum(b.padding_nbytes for b in self._buffers)
            yield WayOut("shapes", self._jaxresid("compile", self._names.target), nbytes)
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
        elif cause == "pinned-host":
            limit = f"{_HOST_LIMIT}={self._host_limit()}"
            yield WayOut("host-limit", f"{limit} python train.py", self._failure.requested_nbytes)
        elif not self._from_dump:
            yield self._dump()

    def _smaller(self) -> Iterator[WayOut]:
        yield from self._listing()
        yield from self._finding()
        yield from self._donation()
        if self._differentiates() is not False:
            yield from self._planned("plan", self._names.target, self._parts.temp_nbytes)
        yield from self._planned("batch", self._names.batched)
        yield from self._planned("shard", self._names.split)
        if self._lists_nothing() and self._report is None:
            yield self._dump()

    def _arguments(self, cause: OomCause) -> Iterator[WayOut]:
        parts = self._parts
        if cause == "outputs":
            yield from self._listing()
        yield from self._donation()
        nbytes = parts.argument_nbytes if cause == "arguments" else parts.output_nbytes
        yield from self._planned("shard", self._names.split, nbytes)
        if cause == "arguments" and self._differentiates() is not False:
            yield from self._planned("state", self._names.target, nbytes)
        if self._lists_nothing() and self._report is None:
            yield self._dump()

    def _listing(self) -> Iterator[WayOut]:
        """Yield where the buffers are listed; the estimate of a report has their lines already."""
        has_lines = self._report is not None and self._report.peak is not None
        if self._lists_nothing() and not has_lines:
            yield WayOut("list-buffers", self._jaxresid("compile", self._names.target))

    def _lists_nothing(self) -> bool:
        return not self._buffers and not self._from_dump

    def _finding(self) -> Iterator[WayOut]:
        """Yield what the report proposes, where that lowers the estimated peak by much."""
        peak = None if self._report is None else self._report.peak
        if self._report is None or peak is None:
            return
        saved = max(map(_saved, self._report.findings), default=0)
        if saved >= _MUCH * peak.nbytes:
            yield WayOut("finding", self._jaxresid("check", self._names.target), saved)

    def _donation(self) -> Iterator[WayOut]:
        """Yield that outputs could take over arguments, where that would save much."""
        parts, need = self._parts, self._failure.required_nbytes or 0
        given = min(parts.output_nbytes or 0, parts.argument_nbytes or 0)
        if given and given >= _MUCH * need:
            yield from self._planned("donate", self._names.target, given)

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
        """Return whether the program takes gradients; None where nothing says."""
        if self._report is not None and not self._report.target.has_gradient:
            return False
        names = [buffer.op_name for buffer in self._failure.buffers if buffer.op_name]
        return any(buffer.role for buffer in self._buffers) if names else None

    def _dump(self) -> WayOut:
        return WayOut("dump", "XLA_FLAGS=--xla_dump_to=DUMP python train.py; jaxresid oom DUMP")

    def _host_limit(self) -> int:
        """Return a limit in GB that is above JAX's own, 64, and has room for what was asked for."""
        asked = self._failure.requested_nbytes or 0
        return max(128, 1 << (2 * asked // 10**9).bit_length())

    def _jaxresid(self, command: str, target: str) -> str:
        return f"jaxresid {command} {target} --on {self._names.place}"

    def _planned(
        self, kind: WayOutKind, target: str | None, nbytes: int | None = None
    ) -> Iterator[WayOut]:
        """Yield the plan of a target, where it has such inputs and something to fit into.

        Without a size in the log that is the memory of the place.
        """
        capacity = self._failure.capacity_nbytes or self._failure.pool.limit_nbytes
        if target is None or (capacity is None and self._names.place == "cpu"):
            return
        budget = "" if capacity is None else f" --budget {int(capacity / _GIB * 100) / 100:g}GiB"
        yield WayOut(kind, self._jaxresid("plan", target) + budget, nbytes)


def _saved(finding: Finding) -> int:
    """Return by how much the change that a finding proposes lowers the estimated peak."""
    before, after = (finding.measured.get(f"peak_{name}nbytes") for name in ("before_", ""))
    return before - after if isinstance(before, int) and isinstance(after, int) else 0


def _with_fraction(fraction: float) -> str:
    return f"XLA_CLIENT_MEM_FRACTION={fraction:.2f} python train.py"
