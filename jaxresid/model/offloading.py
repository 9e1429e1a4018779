"""What is in host memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfers:
    """What one step moves between device and host memory, all trips of loops together."""

    to_host_nbytes: int = 0
    to_device_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Offloading:
    """Where the values that the backward pass needs are, against the function without checkpoints.

    The parts add up to what the function without any checkpoint keeps in `kept_without_nbytes`,
    but for what checkpoints keep that it would not (`added_nbytes`).

    Attributes:
      kept_nbytes: computed residuals in device memory.
      offloaded_nbytes: computed residuals in host memory.
      recomputed_nbytes: what is kept neither here nor there, and made again.
      refetched_nbytes: device copies of arguments in host memory that are not kept, and moved to
        the device again.
      without_effect: a policy offloads something, and it is not moved.
      host_arguments: bytes of arguments that live in host memory, by kind (`parameters`,
        `optimizer-state`, `argument`, ...).
    """

    kept_nbytes: int
    offloaded_nbytes: int
    recomputed_nbytes: int
    added_nbytes: int
    kept_without_nbytes: int
    transfers: Transfers
    host_arguments: tuple[tuple[str, int], ...] = ()
    refetched_nbytes: int = 0
    without_effect: bool = False
