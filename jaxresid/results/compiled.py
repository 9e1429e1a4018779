"""The figures that XLA gives for a compiled program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.display import to_pprof
from jaxresid.results.headline import headline, peak_text
from jaxresid.results.result import Result
from jaxresid.results.target import JaxInfo, Mesh, PlaceInfo, Target
from jaxresid.results.values import NOWHERE, Computed, Location, Source

# What a program takes with cuBLAS's matmuls is at most this many times what it takes with Triton's
# (1.65 in 56 programs: tests/benchmarks/accuracy/autotuned.py), and cuBLAS's workspace.
_MOST_WITH_CUBLAS = 2
_CUBLAS_WORKSPACE_NBYTES = 64 << 20
# What XLA holds a buffer for.
BufferKind = OneOf["argument", "output", "temporary", "constant"]


@dataclass(frozen=True, slots=True, repr=False)
class CompiledBuffer(Shown):
    """A buffer live at XLA's peak, in the user's terms.

    Attributes:
      kind: `argument`, `output`, `temporary`, `constant`.
      nbytes: the bytes of all `count` of them.
      count: how many equal ones there are.
      shape: the shape on one device, as XLA writes it; '' where it is not known.
      opcode: the HLO instruction that makes it; '' where it is not known.
      source: the source of what it was matched to; else the line in the HLO metadata, if there is
        one.
      residual: the residual that it was matched to, `sin`; of an argument its path,
        `params['w']`; None if neither is known.
      memory: whether it is in device or in host memory.
      origin: that residual in full, except where it is made.
    """

    kind: BufferKind
    nbytes: int
    count: int = 1
    shape: str = ""
    opcode: str = ""
    source: Source = NOWHERE
    residual: str | None = None
    memory: OneOf["device", "host"] = "device"
    origin: Computed | None = None

    @property
    def location(self) -> Location | None:
        """The user's line; None where none is known."""
        return self.source.location


@dataclass(frozen=True, slots=True, repr=False)
class Collective(Shown):
    """Collectives of the compiled program.

    Attributes:
      opcode: the HLO instruction.
      count: how many there are.
      nbytes: the bytes of their results on one device, all trips of loops together (once, where
        `exact` is False).
      exact: whether the trips are known.
    """

    opcode: str
    count: int
    nbytes: int
    exact: bool = True


@dataclass(frozen=True, slots=True, repr=False)
class CompilerWarning(Shown):
    """Something that XLA says of a program's memory, in the user's terms.

    Attributes:
      kind: `resharding` (each device makes an array whole, to split it another way), `replicated`
        (each device does an operation whole), `memory-limit` (the program stays above what XLA aims
        for), `recomputed` (values that XLA chose to compute twice), `host-compute` (the host does
        an operation, since its operands are there).
      count: how often XLA says it.
      said: XLA's words, shortened; of `recomputed` the name of an HLO instruction.
      nbytes: the bytes on one device of the whole array; of `memory-limit` those that XLA got down
        to, of `recomputed` those of all the values; None where they are not known.
      limit_nbytes: the bytes that XLA aims for; None where it names none.
      shape: the shape that `nbytes` are of, as XLA writes it; of `recomputed` that of each value.
      op_name: JAX's name stack of the operation; '' where XLA names none.
      source: the line in the HLO metadata, if there is one.
    """

    kind: OneOf["resharding", "replicated", "memory-limit", "recomputed", "host-compute"]
    count: int = 1
    said: str = ""
    nbytes: int | None = None
    limit_nbytes: int | None = None
    shape: str = ""
    op_name: str = ""
    source: Source = NOWHERE


@dataclass(frozen=True, slots=True, repr=False)
class Compiled(Shown):
    """The figures that XLA gives for a program on one device of a place; None where it gives none.

    Attributes:
      on: the place, `cpu`, `gpu:h100:8`, `tpu:v5e:2x4`.
      policy: the policy that the program was compiled with; `as-written` for the code as it is.
      devices: how many devices the program is split over.
      temp_nbytes: the bytes of temporaries in device memory.
      argument_nbytes: the bytes of arguments in device memory.
      output_nbytes: the bytes of outputs in device memory.
      alias_nbytes: the bytes of outputs that take over the buffers of donated arguments.
      generated_code_nbytes: the bytes of the program's own code.
      host_temp_nbytes: the bytes of temporaries in host memory.
      host_argument_nbytes: the bytes of arguments in host memory.
      host_output_nbytes: the bytes of outputs in host memory.
      host_alias_nbytes: as `alias_nbytes`, in host memory.
      peak_nbytes: arguments + outputs + temporaries - aliased, all of device memory; where memory
        ran out what XLA says the program needs.
      cublas_peak_nbytes: the same of the program with cuBLAS's matmuls alone, which XLA may choose
        where it can time them, on a GPU; None where that was not asked, as it changes nothing. The
        peak itself where only cuBLAS's compiled.
      cublas_error: why that was to be asked, and was not; None where it was, or was not to be.
      estimate_nbytes: the static estimate of the same.
      estimate_low_nbytes: the lower end of the interval around the estimate, as in `Peak`.
      estimate_high_nbytes: the upper end.
      profile: the compiler whose rules the estimate follows.
      capacity_nbytes: the device's memory as its compiler has it.
      fits: whether the peak fits the capacity, and that with cuBLAS's matmuls too; None where one
        of them is not known and could matter, or where the program has lost its backward pass.
      seconds: the seconds that compiling took.
      cached: whether it was compiled before, by an earlier run.
      error: why there are no figures; a program that does not fit is no error.
      compiler: the compiler and its version.
      buffers: the buffers live at the peak, largest first; empty where the compiler does not list
        them.
      matched_nbytes: of the buffers live at the peak, the bytes that were matched to residuals,
        arguments or outputs; None where the compiler does not list them.
      live_nbytes: the bytes of all buffers live at the peak; None where the compiler does not list
        them.
      collectives: the collectives of the program.
      notes: what restricts the figures.
      warnings: what XLA says of the program's memory, that of the most bytes first.
    """

    on: str
    policy: str = "as-written"
    devices: int = 1
    temp_nbytes: int | None = None
    argument_nbytes: int | None = None
    output_nbytes: int | None = None
    alias_nbytes: int | None = None
    generated_code_nbytes: int | None = None
    host_temp_nbytes: int | None = None
    host_argument_nbytes: int | None = None
    host_output_nbytes: int | None = None
    host_alias_nbytes: int | None = None
    peak_nbytes: int | None = None
    cublas_peak_nbytes: int | None = None
    cublas_error: str | None = None
    estimate_nbytes: int | None = None
    estimate_low_nbytes: int | None = None
    estimate_high_nbytes: int | None = None
    profile: str | None = None
    capacity_nbytes: int | None = None
    fits: bool | None = None
    seconds: float | None = None
    cached: bool = False
    error: str | None = None
    compiler: str = ""
    buffers: tuple[CompiledBuffer, ...] = ()
    matched_nbytes: int | None = None
    live_nbytes: int | None = None
    collectives: tuple[Collective, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[CompilerWarning, ...] = ()

    @property
    def needed_nbytes(self) -> int | None:
        """The larger of the peaks: what a device must have for it to fit; None: not known."""
        known = [n for n in (self.peak_nbytes, self.cublas_peak_nbytes) if n is not None]
        return None if self.cublas_error is not None else max(known, default=None)

    def needed_for(self, limit_nbytes: int | None) -> int | None:
        """Return `needed_nbytes`, for the question whether it fits a limit.

        Where cuBLAS's matmuls were not tried it is the peak without them, if that is so far below
        the limit that they cannot matter; else None.
        """
        if self.needed_nbytes is not None or self.peak_nbytes is None or limit_nbytes is None:
            return self.needed_nbytes
        most = _MOST_WITH_CUBLAS * self.peak_nbytes + _CUBLAS_WORKSPACE_NBYTES
        is_clear = max(most, self.estimate_high_nbytes or 0) <= limit_nbytes
        return self.peak_nbytes if is_clear else None

    @property
    def may_fit(self) -> bool:
        """Whether it fits with Triton's matmuls, and not, or not for sure, with cuBLAS's."""
        nbytes, capacity = self.peak_nbytes, self.capacity_nbytes
        fits_first = nbytes is not None and capacity is not None and nbytes <= capacity
        asked = self.cublas_peak_nbytes is not None or self.cublas_error is not None
        return fits_first and asked and not self.fits


@dataclass(frozen=True, slots=True, repr=False)
class CompiledReport(Result):
    """A target as XLA compiles it for several places.

    Attributes:
      target: what was compiled.
      jax: the JAX that traced.
      places: the places that it was compiled for.
      compiled: the figures, one for each place.
      mesh: the devices that the program is split over; None: one device.
      warnings: what was assumed, and what may be wrong.
    """

    target: Target
    jax: JaxInfo
    places: tuple[PlaceInfo, ...]
    compiled: tuple[Compiled, ...]
    mesh: Mesh | None = None
    warnings: tuple[str, ...] = ()

    def to_pprof(self) -> bytes:
        """Return what XLA has live at the peak by stacks, as a pprof profile.

        Raises:
          ValueError: it is of several places, or the compiler does not list its buffers.
        """
        return to_pprof(self)

    def _headline(self) -> str:
        parts = []
        for each in self.compiled:
            fits = {True: " fits", False: " does not fit", None: ""}[each.fits]
            parts.append("error" if each.error else peak_text(each.peak_nbytes) + fits)
        places = [place.name for place in self.places]
        return headline("CompiledReport", self.target, places, parts)
