"""What a log says of one lack of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf

from jaxresid.xla.job import PeakBuffer

# When memory ran out: as the program was compiled, as it was loaded onto the device, as it ran (a
# GPU's temporaries are allocated then), as an array was put onto the device, as JAX began.
Phase = OneOf["compile", "load", "run", "transfer", "start", ""]
# Which memory: the device's, the small one on a TPU's core, the host's.
Memory = OneOf["device", "on-chip", "host"]


@dataclass(frozen=True, slots=True)
class Pool:
    """What an allocator says of the memory that it hands out; None: it does not say.

    Attributes:
      limit_nbytes: the bytes that it may take of the device.
      in_use_nbytes: the bytes that it had handed out.
      free_nbytes: the bytes that it could have handed out, in however many pieces.
      largest_free_nbytes: the largest piece of them.
      device_nbytes: the bytes of the whole device.
      device_free_nbytes: the bytes of the device that nobody has.
      used_fraction: the share in use by the bar that BFC draws, where there is one.
    """

    limit_nbytes: int | None = None
    in_use_nbytes: int | None = None
    free_nbytes: int | None = None
    largest_free_nbytes: int | None = None
    device_nbytes: int | None = None
    device_free_nbytes: int | None = None
    used_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What the memory that a program needs is made of; None: the log does not say.

    Attributes:
      argument_nbytes: the bytes of arguments.
      output_nbytes: the bytes of outputs that share none with arguments.
      temp_nbytes: the bytes of temporaries.
      constant_nbytes: the bytes of constants.
      padding_nbytes: the bytes that are padding, of temporaries.
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


@dataclass(frozen=True, slots=True)
class Failure:
    """One lack of memory.

    Attributes:
      said: the sentence that says so, shortened.
      platform: whose text it is; '' where that cannot be told.
      phase: when it was.
      memory: which memory ran out.
      program: the name of the HLO module, `jit_train_step`; '' where it is not named.
      device: the device's name, `NVIDIA H100 80GB HBM3`; '' where the log does not say.
      required_nbytes: the bytes that the whole program needs on one device.
      capacity_nbytes: the bytes that a program can have.
      requested_nbytes: the bytes of the one allocation that failed.
      pool: what the allocator says.
      parts: what the program's memory is made of.
      buffers: the largest buffers, largest first.
      processes: how many processes said the same.
      count: how often it was said in one process.
      before_start: whether the device was full before this program had anything on it.
    """

    said: str
    platform: OneOf["tpu", "gpu", "cpu", ""] = ""
    phase: Phase = ""
    memory: Memory = "device"
    program: str = ""
    device: str = ""
    required_nbytes: int | None = None
    capacity_nbytes: int | None = None
    requested_nbytes: int | None = None
    pool: Pool = field(default_factory=Pool)
    parts: Parts = field(default_factory=Parts)
    buffers: tuple[PeakBuffer, ...] = ()
    processes: int = 1
    count: int = 1
    before_start: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """What was read of a log.

    Attributes:
      failures: the lacks of memory, the one that says most first.
      hints: lines that speak of memory or of a failure, where there is no failure that is known.
      lines: how many lines were read.
      processes: how many processes wrote them, by their prefixes.
      not_failures: how often an allocator said that it would have liked more memory, no failure.
      notes: what restricts the reading.
    """

    failures: tuple[Failure, ...] = ()
    hints: tuple[str, ...] = ()
    lines: int = 0
    processes: int = 1
    not_failures: int = 0
    notes: tuple[str, ...] = ()
