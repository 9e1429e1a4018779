"""What a log says of one lack of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf

from jaxresid.results import OomParts, OomPool
from jaxresid.xla.job import PeakBuffer
from jaxresid.xla.logs.tracebacks import UserFunction

# When memory ran out: as the program was compiled, as it was loaded onto the device, as it ran (a
# GPU's temporaries are allocated then), as an array was put onto the device, as JAX began.
Phase = OneOf["compile", "load", "run", "transfer", "start", ""]
# Which memory: the device's, the small one on a TPU's core, the host's, or of that the part that
# devices read themselves, of which JAX takes no more than a limit.
Memory = OneOf["device", "on-chip", "host", "pinned-host"]


@dataclass(frozen=True, slots=True)
class Rematerialized:
    """What XLA says where it cannot make a program small enough by computing values twice.

    Attributes:
      nbytes: what it could bring the program down to.
      limit_nbytes: what it aimed at.
    """

    nbytes: int
    limit_nbytes: int


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
      rematerialized: what XLA says of its own attempt to make the program smaller.
      function: the user's function that the traceback ends in; None where there is none.
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
    pool: OomPool = field(default_factory=OomPool)
    parts: OomParts = field(default_factory=OomParts)
    buffers: tuple[PeakBuffer, ...] = ()
    processes: int = 1
    count: int = 1
    before_start: bool = False
    rematerialized: Rematerialized | None = None
    function: UserFunction | None = None


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
