"""The values that are in host memory, and the transfers to and from it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.base.text.short_repr import Shown


@dataclass(frozen=True, slots=True, repr=False)
class Transfers(Shown):
    """The bytes that one step moves between device and host memory, all trips of loops together.

    Attributes:
      to_host_nbytes: bytes moved to the host.
      to_device_nbytes: bytes moved to the device.
    """

    to_host_nbytes: int = 0
    to_device_nbytes: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Offloading(Shown):
    """The memory that holds what the backward pass needs, against the function without checkpoints.

    The parts add up to what the function without any checkpoint keeps in `kept_without_nbytes`,
    except for what checkpoints keep that it would not (`added_nbytes`).

    Attributes:
      kept_nbytes: bytes of computed residuals in device memory.
      offloaded_nbytes: bytes of computed residuals in host memory.
      recomputed_nbytes: bytes of what is kept in neither memory, and made again.
      added_nbytes: bytes that checkpoints keep and the function without any would not.
      kept_without_nbytes: bytes that the function without any checkpoint keeps.
      transfers: the bytes moved between device and host memory.
      host_arguments: bytes of arguments that live in host memory, by kind (`parameters`,
        `optimizer-state`, `argument`, ...).
      refetched_nbytes: bytes of device copies of arguments in host memory that are not kept, and
        moved to the device again.
      without_effect: whether a policy offloads something that is not moved.
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
