"""Read XLA's dump of a compile.

It holds the buffer assignment where the executable has none, and that of a program that ran out
of memory. libtpu fills in no `serialized_buffer_assignment_proto` and an executable that does not
fit there is none, but both are dumped, on jax 0.7.0 to 0.12.0 with libtpu 0.0.52.
"""

from __future__ import annotations

from pathlib import Path

from jaxresid.xla.hlo.wire import Message


def flags(folder: str) -> dict[str, str | bool]:
    return {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}


def read(folder: str) -> tuple[bytes, bytes]:
    """Return the HloModuleProto and the BufferAssignmentProto of a folder's biggest module.

    Both are empty if there is none. Never raises.
    """
    biggest = b"", b""
    for path in Path(folder).glob("*after_optimizations.hlo.pb"):
        try:
            message = Message.read(path.read_bytes())
            module, assignment = message.data(1), message.data(3)
        except (OSError, ValueError):
            continue
        if assignment and len(module) > len(biggest[0]):
            biggest = module, assignment
    return biggest
