"""Hold the GPUs that programs are compiled for without one, as XLA describes them.

XLA compiles for a GPU from a text of its properties, the target config. It publishes some under
`xla/backends/gpu/target_config/specs` of openxla/xla, where the figures here are from; the texts
are made here, of what the compiler asks for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that XLA publishes the properties of.

    Attributes:
      memory_nbytes: the bytes of its memory that CUDA reports; None where a description has none.
      target_config: what XLA compiles from, a text proto of GpuTargetConfigProto.
    """

    name: str
    title: str
    memory_nbytes: int | None
    target_config: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What the GPUs of one compute capability share.

    Attributes:
      accelerated: whether it has instructions that no later one has, as `sm_90a`.
    """

    major: int
    minor: int
    accelerated: bool
    fpus: int
    threads: int
    shared_nbytes: int
    shared_of_block_nbytes: int


_SM_70 = _Architecture(7, 0, False, 64, 2048, 98304, 98304)
_SM_80 = _Architecture(8, 0, False, 64, 2048, 167936, 166912)
_SM_86 = _Architecture(8, 6, False, 128, 1536, 102400, 101376)
_SM_90 = _Architecture(9, 0, True, 128, 2048, 233472, 232448)
_SM_100 = _Architecture(10, 0, True, 128, 2048, 233472, 232448)
_SM_103 = _Architecture(10, 3, False, 128, 2048, 233472, 232448)
_SM_120 = _Architecture(12, 0, False, 128, 1536, 131072, 101376)


def _gpu(
    name: str,
    title: str,
    described: str,
    it: _Architecture,
    figures: tuple[int, int, int, float, int],
    aliases: tuple[str, ...] = (),
) -> Gpu:
    """`described` is what CUDA calls it; bytes of `figures` are those that CUDA reports."""
    # Published texts also hold the rates of each unit by type, the buses and CUDA's versions. The
    # bytes are the same without them: run with both for a scanned GPT and convolutions, on h100,
    # b200 and v100 with jaxlib 0.10.2 and 0.12.0.1, on a100-40 with 0.10.2, and for two unrolled
    # GPT layers where that was 0.12.0.1 or a100-40.
    cores, bandwidth, l2_nbytes, clock_ghz, memory_nbytes = figures
    info = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": it.shared_nbytes,
        "shared_memory_per_block_optin": it.shared_of_block_nbytes,
        "threads_per_core_limit": it.threads,
        "core_count": cores,
        "fpus_per_core": it.fpus,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": bandwidth,
        "l2_cache_size": l2_nbytes,
        "clock_rate_ghz": clock_ghz,
        "device_memory_size": memory_nbytes,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    lines = [f"  {field}: {value}" for field, value in info.items()]
    capability = f"major: {it.major} minor: {it.minor}"
    if it.accelerated:
        capability += " feature_extension: ACCELERATED_FEATURES"
    config = [
        "gpu_device_info {",
        f"  cuda_compute_capability {{ {capability} }}",
        *lines,
        "}",
        'platform_name: "CUDA"',
        # What JAX's CUDA plugins ask for is 9.8 or newer.
        "dnn_version_info { major: 9 minor: 10 }",
        f'device_description_str: "{described}"',
    ]
    return Gpu(name, title, memory_nbytes, "\n".join(config) + "\n", aliases)


GPUS = (
    _gpu(
        *("h100", "NVIDIA H100 SXM 80 GB", "NVIDIA H100 80GB HBM3", _SM_90),
        (132, 3352320000000, 52428800, 1.98, 84942979072),
        ("h100-sxm", "h100-80"),
    ),
    _gpu(
        *("h100-pcie", "NVIDIA H100 PCIe 80 GB", "NVIDIA H100 PCIe", _SM_90),
        (114, 2039040000000, 52428800, 1.755, 84942979072),
    ),
    _gpu(
        # The name and the memory are what CUDA says on one (driver 580.159.04, jaxlib 0.11.2), not
        # those of XLA's file.
        *("h200", "NVIDIA H200 141 GB", "NVIDIA H200", _SM_90),
        (132, 4800000000000, 52428800, 1.98, 150109945856),
    ),
    _gpu(
        *("b200", "NVIDIA B200", "NVIDIA B200", _SM_100),
        (148, 7672320000000, 132644864, 1.965, 191514411008),
    ),
    _gpu(
        *("b300", "NVIDIA B300", "NVIDIA B300", _SM_103),
        (158, 7936000000000, 135528448, 1.965, 297021865984),
    ),
    _gpu(
        *("gb200", "NVIDIA GB200", "NVIDIA GB200", _SM_100),
        (152, 7928064000000, 135528448, 2.062, 197897748480),
    ),
    _gpu(
        *("a100-40", "NVIDIA A100 SXM 40 GB", "NVIDIA A100-SXM4-40GB", _SM_80),
        (108, 1555200000000, 41943040, 1.41, 42331013120),
    ),
    _gpu(
        *("a100-80", "NVIDIA A100 SXM 80 GB", "NVIDIA A100-SXM4-80GB", _SM_80),
        (108, 2039040000000, 41943040, 1.41, 85100068864),
        ("a100", "a100-sxm"),
    ),
    _gpu(
        *("a100-80-pcie", "NVIDIA A100 PCIe 80 GB", "A100 80GB", _SM_80),
        (108, 2039000000000, 41943040, 1.1105, 79050250240),
        ("a100-pcie",),
    ),
    _gpu(
        *("a6000", "NVIDIA RTX A6000", "NVIDIA RTX A6000", _SM_86),
        (84, 768096000000, 6291456, 1.8, 51041271808),
        ("rtxa6000",),
    ),
    _gpu(
        *("rtx6000pro", "NVIDIA RTX PRO 6000 Blackwell", "NVIDIA RTX PRO 6000 Blackwell", _SM_120),
        (188, 1792000000000, 134217728, 2.6, 103079215104),
    ),
    _gpu(
        *("v100", "NVIDIA V100 SXM 16 GB", "Tesla V100-SXM2-16GB", _SM_70),
        (80, 898048000000, 6291456, 1.53, 16935682048),
    ),
)
