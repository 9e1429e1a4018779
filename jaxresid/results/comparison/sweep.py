"""The values of `jaxresid sweep`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.base.text.short_repr import Shown
from jaxresid.results.compiled import Compiled
from jaxresid.results.display import to_json
from jaxresid.results.headline import count_text, headline
from jaxresid.results.result import Result
from jaxresid.results.target import JaxInfo, Mesh, PlaceInfo, Target


@dataclass(frozen=True, slots=True, repr=False)
class SweepRow(Shown):
    """A policy at a batch size for a place: one result of a sweep, one line of its file.

    Attributes:
      target: the function, as the user wrote it.
      policy: the policy, as in `Row`.
      batch: the batch size; None where the inputs are as they are.
      on: the place, `tpu:v5e:2x4`.
      at: where the policy goes, as in `Row`.
      key: a key of all that the result depends on: the target, what it lowers to, the compiler and
        its flags; '' where it could not be lowered.
      kept_nbytes: a static figure of the variant, as in `Row`.
      host_nbytes: a static figure of the variant, as in `Row`.
      peak_nbytes: a static figure of the variant, as in `Row`.
      recompute_flops: FLOPs that it adds to the function without any checkpoint.
      recompute_fraction: that as a share of the function without any checkpoint.
      compiled: the figures of XLA.
      error: why there is no `compiled` or nothing in it.
      transient: whether the error may not come again.
      resumed: whether the row was read from the results file of an earlier run.
    """

    target: str
    policy: str
    batch: int | None
    on: str
    at: str
    key: str = ""
    kept_nbytes: int | None = None
    host_nbytes: int | None = None
    peak_nbytes: int | None = None
    recompute_flops: int | None = None
    recompute_fraction: float | None = None
    compiled: Compiled | None = None
    error: str | None = None
    transient: bool = False
    resumed: bool = False

    def to_json(self) -> str:
        """Return the row as one line of JSON, as in the file of `jaxresid sweep -o`.

        Its schema is `jaxresid/schema/sweep-row.schema.json`.
        """
        return to_json(self)


@dataclass(frozen=True, slots=True, repr=False)
class Sweep(Result):
    """A function compiled under several policies, at several batch sizes, for several places.

    Attributes:
      target: what was swept.
      jax: the JAX that traced.
      at: where the policies go, as in `Row`; '' where the program takes no gradient, and is
        compiled as it is.
      places: where the policy goes, as a user finds them: `model.py:42 (layer) ×48`.
      policies: the policies that were asked for.
      batches: the batch sizes that were asked for; empty where the inputs are as they are.
      on: the places that were asked for.
      rows: one row for each combination of these.
      warnings: what was assumed, and what may be wrong.
      mesh: the devices that the program is split over; None: one device.
      size_name: what `batches` are the sizes of: `batch`, `context`.
    """

    target: Target
    jax: JaxInfo
    at: str
    places: tuple[str, ...]
    policies: tuple[str, ...]
    batches: tuple[int, ...]
    on: tuple[PlaceInfo, ...]
    rows: tuple[SweepRow, ...]
    warnings: tuple[str, ...] = ()
    mesh: Mesh | None = None
    size_name: str = "batch"

    def _headline(self) -> str:
        fitting = sum(row.compiled is not None and bool(row.compiled.fits) for row in self.rows)
        failed = sum(row.error is not None for row in self.rows)
        return headline(
            "Sweep",
            self.target,
            [place.name for place in self.on],
            [
                count_text(len(self.rows), "program"),
                count_text(len(self.batches), f"{self.size_name} size") if self.batches else "",
                f"{fitting} fit",
                f"{failed} could not be compiled" if failed else "",
            ],
        )
