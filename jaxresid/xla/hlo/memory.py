"""Read how much memory a program takes from its buffer assignment, as XLA's own statistics do."""

from __future__ import annotations

from jaxresid.xla.hlo.wire import Message

# Of XLA's memory spaces.
_DEVICE, _HOST = 0, 5


def memory_stats(assignment: bytes, platform: str = "cuda") -> dict[str, int]:
    """Return the figures of CompiledMemoryStats, by their names in `model.Compiled`.

    It has no bytes of code, of which a buffer assignment knows nothing. Of a TPU's, libtpu
    0.0.52's own figure for temporaries is 15,872 bytes higher, whatever the program.

    Args:
      platform: what it is of; the memory that a TPU has on the chip does not count.

    Raises:
      ValueError: the bytes are not one.
    """
    kinds = ("temp", "argument", "output", "alias")
    stats = {f"{host}{kind}_nbytes": 0 for host in ("", "host_") for kind in kinds}
    for allocation in Message.read(assignment).messages(3):
        is_thread_local, is_constant = allocation.integer(3), allocation.integer(12)
        is_argument, is_output = allocation.integer(5), allocation.integer(7)
        space = allocation.integer(8)
        if platform == "tpu" and space not in (_DEVICE, _HOST):
            continue
        host = "host_" if space == _HOST else ""
        which = ["argument"] * bool(is_argument) + ["output"] * bool(is_output)
        if is_argument and is_output:  # given away
            which.append("alias")
        elif not (which or is_thread_local or is_constant):
            which.append("temp")
        for kind in which:
            stats[f"{host}{kind}_nbytes"] += allocation.integer(2)
    return stats
