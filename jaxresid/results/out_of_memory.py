"""What a log or a dump of XLA's says of a program that ran out of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.budget import LineBytes
from jaxresid.results.compiled import BufferKind
from jaxresid.results.display import show
from jaxresid.results.result import Result
from jaxresid.results.target import Target
from jaxresid.results.values import NOWHERE, Computed, Source

OomCause = OneOf[
    "padding",
    "arguments",
    "outputs",
    "temporaries",
    "too-large",
    "held",
    "fragmentation",
    "other-program",
    "preallocation",
    "on-chip",
    "host",
    "pinned-host",
    "unknown",
]
WayOutKind = OneOf[
    "shapes",
    "plan",
    "finding",
    "batch",
    "shard",
    "state",
    "donate",
    "list-buffers",
    "dump",
    "other-program",
    "other-device",
    "live-arrays",
    "fraction",
    "less-fraction",
    "allocator",
    "kernel",
    "host-profile",
    "host-limit",
]
OomRole = OneOf["forward", "backward", "recompute", ""]


@dataclass(frozen=True, slots=True, repr=False)
class OomBuffer(Shown):
    """Equal buffers of a program that ran out of memory.

    Attributes:
      kind: `argument`, `output`, `temporary`, `constant`.
      nbytes: the bytes of all `count` of them on one device, padding included.
      count: how many equal ones there are.
      padding_nbytes: how many of the bytes are padding, by the shape; 0 where that is not known.
      shape: the shape on one device, as XLA writes it; '' where it is not known.
      opcode: the HLO instruction that makes it; '' where it is not known.
      role: which pass makes it, by JAX's name of the operation; '' where the name does not say.
      stacked: whether a loop of the forward pass stacks it up, one part for each trip: little but
        residuals is.
      source: the user's line and the module, as far as the HLO metadata has them.
      residual: the residual that it was matched to, `sin`; of an argument its path; None if neither
        is known.
      origin: that residual in full, except where it is made; None without a target.
    """

    kind: BufferKind
    nbytes: int
    count: int = 1
    padding_nbytes: int = 0
    shape: str = ""
    opcode: str = ""
    role: OomRole = ""
    stacked: bool = False
    source: Source = NOWHERE
    residual: str | None = None
    origin: Computed | None = None


@dataclass(frozen=True, slots=True, repr=False)
class OomParts(Shown):
    """What the memory that a program needs is made of; None: it is not known.

    Attributes:
      argument_nbytes: the bytes of arguments.
      output_nbytes: the bytes of outputs that share none with arguments.
      temp_nbytes: the bytes of temporaries.
      constant_nbytes: the bytes of constants.
      padding_nbytes: how many of the bytes are padding.
      fragmentation_nbytes: the bytes between the program's own buffers.
      reserved_nbytes: the bytes that the device keeps for itself.
    """

    argument_nbytes: int | None = None
    output_nbytes: int | None = None
    temp_nbytes: int | None = None
    constant_nbytes: int | None = None
    padding_nbytes: int | None = None
    fragmentation_nbytes: int | None = None
    reserved_nbytes: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class OomPool(Shown):
    """What an allocator said of the memory that it hands out; None: it did not say.

    Attributes:
      limit_nbytes: the bytes that it may take of the device.
      in_use_nbytes: the bytes that it had handed out.
      free_nbytes: the bytes that it could still hand out, in however many pieces.
      largest_free_nbytes: the largest piece of them.
      device_nbytes: the bytes of the whole device.
      device_free_nbytes: the bytes of the device that nobody has.
      used_fraction: the share in use, by the bar that JAX's allocator for GPUs draws.
    """

    limit_nbytes: int | None = None
    in_use_nbytes: int | None = None
    free_nbytes: int | None = None
    largest_free_nbytes: int | None = None
    device_nbytes: int | None = None
    device_free_nbytes: int | None = None
    used_fraction: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class WayOut(Shown):
    """Something to try.

    Attributes:
      kind: what is changed, or looked at: `shapes`, `plan`, `finding` (what the report of the
        target proposes), `batch`, `shard`, `state` (the optimizer's), `donate`, `list-buffers`,
        `dump`, `other-program`, `other-device`, `live-arrays`, `fraction` (more of the GPU for
        JAX), `less-fraction`, `allocator`, `kernel`, `host-profile`, `host-limit` (more host memory
        for devices).
      command: the command that tries it, of `live-arrays` a line to put into the program; words in
        capitals stand for what the log does not say.
      nbytes: the bytes that it is about; None where they are not known.
    """

    kind: WayOutKind
    command: str
    nbytes: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class OomTrace(Shown):
    """What the trace of the target says of its memory, beside what the log says.

    Attributes:
      place: the place that the estimate is for.
      origin: who chose that place.
      peak_nbytes: the estimated peak; None where none is estimated, as on a CPU.
      low_nbytes: the lower end of the interval around it; None where none is known.
      high_nbytes: the upper end.
      arguments_nbytes: the bytes of arguments, at the peak.
      kept_nbytes: what the backward pass keeps in device memory.
      lines: the lines that have most at the peak, largest first; without a peak, of what is kept.
    """

    place: str
    origin: str
    peak_nbytes: int | None
    low_nbytes: int | None
    high_nbytes: int | None
    arguments_nbytes: int | None
    kept_nbytes: int
    lines: tuple[LineBytes, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class OomOther(Shown):
    """A further lack of memory in the same log.

    Attributes:
      said: what says so, shortened.
      required_nbytes: the bytes that the program needs; None where the log does not say.
      requested_nbytes: the bytes of the allocation that failed; None where the log does not say.
      processes: how many processes said so.
    """

    said: str
    required_nbytes: int | None = None
    requested_nbytes: int | None = None
    processes: int = 1


@dataclass(frozen=True, slots=True, repr=False)
class OomReport(Result):
    """What a log or a dump says of a program that ran out of memory, and what to try.

    Attributes:
      cause: what filled the memory: `padding` of arrays, `arguments`, `outputs`, `temporaries`,
        the program as a whole (`too-large`, where the log does not say what it is made of); or
        memory that the program did not take itself: `held` by arrays that were there before or by
        other programs, free but not in one piece (`fragmentation`), taken before this program began
        (`other-program`), or by JAX's own preallocation so that libraries have none
        (`preallocation`); `on-chip`: the small memory on a TPU's core; `host`: the host's memory;
        `pinned-host`: the part of it that a GPU reads, of which JAX takes no more than a limit;
        `unknown`.
      is_certain: whether the figures of the log leave no other cause.
      source: what was read: `log` or `dump`.
      platform: `tpu`, `gpu`, `cpu`; '' where it cannot be told.
      on: the place that the figures or the log name, `tpu:v5e`; '' where they name none.
      phase: when memory ran out: `compile`, `load` (of the program), `run`, `transfer` (of an
        array), `start` (of JAX); '' where it cannot be told.
      program: the name of the HLO module, `jit_train_step`; '' where it is not named.
      required_nbytes: the bytes that the program needs on one device; None: not known, as below.
      capacity_nbytes: the bytes that a program can have there.
      requested_nbytes: the bytes of the one allocation that failed.
      rematerialized_nbytes: what XLA could bring the program down to by computing values twice,
        where it says that this was not enough.
      rematerialization_limit_nbytes: what it aimed at.
      parts: what the program's memory is made of.
      pool: what the allocator said.
      buffers: the largest buffers, largest first, equal ones as one.
      matched_nbytes: of these the bytes that were matched to residuals, arguments or outputs of the
        target; None without a target.
      ways: what to try, in this order.
      said: the sentence of the log that says so, shortened.
      processes: how many processes said the same.
      others: further lacks of memory in the log.
      hints: where the cause is unknown, lines that speak of memory.
      target: the target that buffers were matched to; None without one.
      trace: what its trace says; None without a target.
      function: the function that the traceback in the log ends in, `train.py:train_step`; '' where
        it ends in none that has a name.
      notes: what restricts the answer.
    """

    cause: OomCause
    is_certain: bool = False
    source: OneOf["log", "dump"] = "log"
    platform: OneOf["tpu", "gpu", "cpu", ""] = ""
    on: str = ""
    phase: OneOf["compile", "load", "run", "transfer", "start", ""] = ""
    program: str = ""
    required_nbytes: int | None = None
    capacity_nbytes: int | None = None
    requested_nbytes: int | None = None
    rematerialized_nbytes: int | None = None
    rematerialization_limit_nbytes: int | None = None
    parts: OomParts = field(default_factory=OomParts)
    pool: OomPool = field(default_factory=OomPool)
    buffers: tuple[OomBuffer, ...] = ()
    matched_nbytes: int | None = None
    ways: tuple[WayOut, ...] = ()
    said: str = ""
    processes: int = 1
    others: tuple[OomOther, ...] = ()
    hints: tuple[str, ...] = ()
    target: Target | None = None
    trace: OomTrace | None = None
    function: str = ""
    notes: tuple[str, ...] = ()

    def print(self, *, verbose: bool = False) -> None:
        """Print the text of `jaxresid oom` to stdout, with every buffer if it is to be verbose."""
        show(self, verbose=verbose)
