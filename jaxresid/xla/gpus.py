"""Hold the GPUs that programs are compiled for without one, as XLA describes them.

XLA compiles for a GPU from a text of its properties, the target config. It publishes some under
`xla/backends/gpu/target_config/specs` of openxla/xla, where the figures here are from; the texts
are made here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that XLA publishes the properties of.

    Attributes:
      name: the name in a place, `h100`.
      title: the full name.
      memory_nbytes: the bytes of its memory that CUDA reports; None where a description has none.
      target_config: what XLA compiles from, a text proto of GpuTargetConfigProto.
      aliases: other names, in lower case.
    """

    name: str
    title: str
    memory_nbytes: int | None
    target_config: str
    aliases: tuple[str, ...] = ()


_H100 = """\
gpu_device_info {
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

GPUS = (Gpu("h100", "NVIDIA H100 SXM 80 GB", 84942979072, _H100, ("h100-sxm",)),)
