"""What is lowered, read and compiled."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from jaxresid.jax_compat.version import jaxlib_version


def bytecode(lowered: Any) -> tuple[bytes, int]:
    """Return a `jax.stages.Lowered` as StableHLO bytecode, and how many devices it is split over.

    The bytecode has debug locations.
    """
    operation = lowered.compiler_ir("stablehlo").operation
    buffer = io.BytesIO()
    operation.write_bytecode(buffer)
    return buffer.getvalue(), operation.attributes["mhlo.num_partitions"].value


def without_locations(code: bytes) -> str:
    """Return StableHLO bytecode as text, without debug locations.

    It is the same wherever in a file the program's lines are.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        return str(ir.Module.parse(code).operation.get_asm(enable_debug_info=False))


def compiled(code: bytes, devices: Sequence[Any], flags: Mapping[str, Any]) -> Any:
    """Return the executable of StableHLO, text or bytecode, partitioned over devices of one client.

    This is what `Lowered.compile` ends in; that one needs the function and, when it lowers, devices
    of the platform.
    """
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    client = devices[0].client
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=dict(flags),
        backend=client,
    )
    # For what is only described nothing can be loaded; the CPU's compiles no other way until 0.10.
    is_described = type(client).__name__ == "CompileOnlyPyClient"
    compile = client.compile if is_described else client.compile_and_load
    with mlir.make_ir_context():
        module = ir.Module.parse(code)
        inputs, outputs = (_unspecified(module, which) for which in ("arg_attrs", "res_attrs"))
        # As `jax.jit` sets them: XLA may split what the program says nothing about.
        build = options.executable_build_options
        build.allow_spmd_sharding_propagation_to_parameters = inputs
        build.allow_spmd_sharding_propagation_to_output = outputs
        if b"mhlo.sharding" in code and hasattr(build, "use_shardy_partitioner"):
            build.use_shardy_partitioner = False  # nor did what lowered it
        options.parameter_is_tupled_arguments = client.platform == "tpu" and len(inputs) > 2000
        keywords = {
            "executable_devices": xla_client.DeviceList(tuple(devices)),
            "compile_options": options,
        }
        try:
            return compile(module, **keywords)
        except TypeError:  # 0.7 takes the bytes themselves
            return compile(code, **keywords)


def numbers_frames() -> bool:
    """Return whether the stack frames of an HLO instruction are numbered as those of its module.

    Not before jaxlib 0.9: the pass that splits programs numbers those of the instructions anew.
    """
    major, minor = jaxlib_version().split(".")[:2]
    return (int(major), int(minor)) >= (0, 9)


def _unspecified(module: Any, attributes: str) -> list[bool]:
    main = next(op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"')
    if attributes not in main.attributes:  # of none anything is said
        types = main.attributes["function_type"].value
        return [True] * len(types.inputs if attributes == "arg_attrs" else types.results)
    unspecified = []
    for attribute in main.attributes[attributes]:
        shardings = [str(attribute[n]) for n in ("sdy.sharding", "mhlo.sharding") if n in attribute]
        unspecified.append(not shardings or "?" in shardings[0])  # a dimension left open
    return unspecified
