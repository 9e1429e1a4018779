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
    """What XLA could bring a program down to by computing values twice, and what it aimed at."""

    nbytes: int
    limit_nbytes: int


@dataclass(frozen=True, slots=True)
class Failure:
    """One lack of memory.

    Attributes:
      platform: whose text it is; '' where that cannot be told.
      program: the name of the HLO module, `jit_train_step`; '' where it is not named.
      device: the device's name, `NVIDIA H100 80GB HBM3`; '' where the log does not say.
      required_nbytes: the bytes that the whole program needs on one device.
      count: how often it was said in one process.
      before_start: whether the device was full before this program had anything on it.
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
      hints: lines that speak of memory or of a failure, where there is no failure that is known.
      not_failures: how often an allocator said that it would have liked more memory, no failure.
    """

    failures: tuple[Failure, ...] = ()
    hints: tuple[str, ...] = ()
    not_failures: int = 0
    notes: tuple[str, ...] = ()
