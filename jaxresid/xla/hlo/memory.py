"""Read how much memory a program takes from its buffer assignment, as XLA's own statistics do."""

from __future__ import annotations

from jaxresid.xla.hlo.wire import Message

_HOST = 5  # of XLA's memory spaces


def memory_stats(assignment: bytes) -> dict[str, int]:
    """Return the figures of CompiledMemoryStats, by their names in `model.Compiled`.

    It has no bytes of code, of which a buffer assignment knows nothing.

    Args:
      assignment: a BufferAssignmentProto.

    Raises:
      ValueError: the bytes are not one.
    """
    kinds = ("temp", "argument", "output", "alias")
    found = {f"{host}{kind}_nbytes": 0 for host in ("", "host_") for kind in kinds}
    for allocation in Message.read(assignment).messages(3):
        is_thread_local, is_constant = allocation.integer(3), allocation.integer(12)
        is_argument, is_output = allocation.integer(5), allocation.integer(7)
        host = "host_" if allocation.integer(8) == _HOST else ""
        which = ["argument"] * bool(is_argument) + ["output"] * bool(is_output)
        if is_argument and is_output:  # given away
            which.append("alias")
        elif not (which or is_thread_local or is_constant):
            which.append("temp")
        for kind in which:
            found[f"{host}{kind}_nbytes"] += allocation.integer(2)
    return found
