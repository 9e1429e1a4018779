"""Compile jobs and their results: values that go between processes and onto disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal as OneOf

from jaxresid.results import BufferKind
from jaxresid.xla.places import Place


@dataclass(frozen=True, slots=True)
class LoweredModule:
    """A lowered program, free of devices.

    Attributes:
      code: StableHLO bytecode with debug locations.
      platform: the platform that it was lowered for, `cpu`, `tpu`, `cuda`.
      devices: how many devices it is partitioned over.
    """

    code: bytes = field(repr=False)
    platform: str
    devices: int = 1


@dataclass(frozen=True, slots=True)
class Job:
    """One compile.

    Attributes:
      module: the program to compile.
      place: the place to compile for, with its devices.
      flags: names and values of the compiler's flags.
      timeout_s: seconds after which the process is ended.
      memory_nbytes: once the process takes more than this it is ended; None: no limit.
      within_nbytes: the peak that it is said to fit with; None: nobody asks whether it fits. It is
        not part of its key.
      label: what progress messages call it; not part of its key.
    """

    module: LoweredModule
    place: Place
    flags: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 600.0
    memory_nbytes: int | None = None
    within_nbytes: int | None = None
    label: str = ""


# A file and a line in it.
Line = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PeakBuffer:
    """One buffer that is live at XLA's peak, or one of the largest where XLA does not list those.

    Attributes:
      kind: `argument`, `output`, `temporary`, `constant`.
      nbytes: its bytes on one device, padding included.
      shape: its shape on one device, as XLA writes it, `f32[512,512]`; '' where it is not known.
      opcode: the HLO instruction that makes it; '' where it is not known.
      op_name: JAX's name stack, from the HLO metadata.
      file: the file of the user's line in the HLO metadata; '' where there is none.
      line: the number of that line; 0 where there is none.
      memory: `device` or `host`.
      callers: the lines of the calls that led to that line, the nearest first.
    """

    kind: BufferKind
    nbytes: int
    shape: str = ""
    opcode: str = ""
    op_name: str = ""
    file: str = ""
    line: int = 0
    memory: str = "device"
    callers: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectiveOp:
    """A collective of the optimized HLO: how often it runs in one step and what it moves.

    Attributes:
      opcode: `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `collective-permute`.
      count: the number of instructions times the trips of the loops around them.
      nbytes: the bytes of the results of all of them together, on one device.
      exact: False where a loop's trips are not known (it then counts once).
    """

    opcode: str
    count: int
    nbytes: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class CompilerMessage:
    """Something that a compiler says of a program's memory.

    Attributes:
      kind: `resharding` (an array is made whole on each device, to split it another way),
        `replicated` (an operation is done whole on each device), `memory-limit` (the program stays
        above what the compiler aims for), `recomputed` (values that the compiler chose to compute
        twice), `host-compute` (an operation that the host does, since its operands are there).
      count: how often it is said.
      said: the compiler's words, shortened; of `recomputed` an instruction's name.
      nbytes: the bytes on one device of the whole array; of `memory-limit` those that the compiler
        got down to, of `recomputed` those of all the values; None where they are not known.
      limit_nbytes: the bytes that the compiler aims for; None where it names none.
      shape: the shape that `nbytes` are of; of `recomputed` that of each value.
      op_name: JAX's name stack, from the HLO metadata.
      file: the file in the HLO metadata; '' where there is none.
      line: the number of that line; 0 where there is none.
      callers: as of a `PeakBuffer`.
    """

    kind: OneOf["resharding", "replicated", "memory-limit", "recomputed", "host-compute"]
    count: int = 1
    said: str = ""
    nbytes: int | None = None
    limit_nbytes: int | None = None
    shape: str = ""
    op_name: str = ""
    file: str = ""
    line: int = 0
    callers: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class Compilation:
    """The result of a compile; everything in bytes is of one device.

    Attributes:
      stats: the figures of CompiledMemoryStats by the names of `model.Compiled`'s fields
        (`temp_nbytes`, `host_argument_nbytes`, ...); what the version does not know is absent.
      required_nbytes: what the program needs by XLA's own account, where it ran out of memory.
      capacity_nbytes: the memory of one device by the compiler's own account; None: not known.
      error: why there are no figures, in one line; None also where it only did not fit.
      transient: whether the error may not come again: a time limit, a killed process.
      buffers: the buffers live at the peak, biggest first; at most 512.
      live_nbytes: the bytes of all buffers that are live at the peak, including those that are not
        listed; None where the compiler does not say.
      collectives: the collectives that the program runs.
      output_shards: the shape of each output on one device; None where the compiler does not say.
      cached: whether it was read from the cache.
      seconds: the seconds that compiling took (when it was done, if it is cached).
      compiler: the compiler's version, `jaxlib 0.10.2, libtpu 0.0.52`.
      notes: what is not exact about any of this.
      messages: what the compiler says of the program's memory.
      has_triton_matmul: whether it has a matmul for which a GPU that is there might take another
        kernel.
      cublas_nbytes: the peak of the same program with cuBLAS's matmuls alone; None where it was not
        compiled so.
      cublas_error: why it was to be compiled so, but was not, in one line.
      triton_error: why it could not be compiled with Triton's matmuls, in one line; the figures are
        then those with cuBLAS's alone.
    """

    stats: Mapping[str, int] = field(default_factory=dict)
    required_nbytes: int | None = None
    capacity_nbytes: int | None = None
    error: str | None = None
    transient: bool = False
    buffers: tuple[PeakBuffer, ...] = ()
    live_nbytes: int | None = None
    collectives: tuple[CollectiveOp, ...] = ()
    output_shards: tuple[tuple[int, ...] | None, ...] | None = None
    cached: bool = False
    seconds: float | None = None
    compiler: str = ""
    notes: tuple[str, ...] = ()
    messages: tuple[CompilerMessage, ...] = ()
    has_triton_matmul: bool = False
    cublas_nbytes: int | None = None
    cublas_error: str | None = None
    triton_error: str | None = None

    @property
    def is_out_of_memory(self) -> bool:
        """Return whether the program does not fit by XLA's own account."""
        return self.required_nbytes is not None
