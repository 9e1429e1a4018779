"""What code asks about devices, the devices that there are, and a GPU that is assumed."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxresid.jax_compat.patches import patched
from jaxresid.jax_compat.version import import_jax, version_numbers

ASSUMED_GPU = "an NVIDIA H100 with cuDNN 9.14"
_CUDNN, _CAPABILITY = 91400, (9, 0)


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A stand-in for an H100, with what code asks of a device while it is traced."""

    id: int = 0
    process_index: int = 0
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    compute_capability: str = "9.0"
    core_count: int = 132
    shared_memory_per_block_optin: int = 232448


@contextlib.contextmanager
def recording_device_queries() -> Iterator[list[str]]:
    """Yield the list of what is asked about devices within the context, where there is no GPU."""
    asked: list[str] = []

    def recorder(name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(answer)
        def listening(*args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            return answer(*args, **kwargs)

        return listening

    with patched({key: recorder(key[1], old) for key, old in _device_queries().items()}):
        yield asked


@contextlib.contextmanager
def assuming_gpu() -> Iterator[None]:
    """Answer questions about devices within the context as on a machine with `ASSUMED_GPU`.

    What asks for devices of a platform that is there gets those.
    """
    queries = _device_queries()
    answers: dict[str, Callable[..., Any]] = {
        "check_cudnn_version": lambda: _CUDNN,
        "check_compute_capability": lambda capability: version_numbers(capability) <= _CAPABILITY,
        "is_cuda_compute_capability_equal": lambda capability: (
            version_numbers(capability) == _CAPABILITY
        ),
        "default_backend": lambda: "gpu",
    }

    def devices(old: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(old)
        def answer(*args: Any, **kwargs: Any) -> Any:
            backend = kwargs.get("backend", args[-1] if args else None)
            return [_Gpu()] if backend in (None, "gpu", "cuda") else old(*args, **kwargs)

        return answer

    with patched({key: answers.get(key[1]) or devices(old) for key, old in queries.items()}):
        yield


def _device_queries() -> dict[tuple[Any, str], Callable[..., Any]]:
    """None where a GPU answers."""
    jax = import_jax()
    if jax.default_backend() == "gpu":
        return {}
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    names = ("check_cudnn_version", "check_compute_capability", "is_cuda_compute_capability_equal")
    queries = {(cudnn, name): getattr(cudnn, name, None) for name in names}
    for name in ("default_backend", "devices", "local_devices"):
        queries[jax, name] = getattr(jax, name)
    return {key: old for key, old in queries.items() if old is not None}


def first_device() -> tuple[str, str, str] | None:
    """Return platform, kind and client version of JAX's first device here.

    None where JAX has not looked for devices yet: this starts no backend.
    """
    if "jax" not in sys.modules:
        return None
    from jax._src import xla_bridge

    if not xla_bridge.backends_are_initialized():
        return None
    device = import_jax().local_devices()[0]
    return device.platform, device.device_kind, device.client.platform_version


def skip_cuda_plugin() -> None:
    """Let JAX start no CUDA plugin in this process.

    Where there is no GPU it does not start, and JAX logs a traceback of 20 lines about that. What
    compiles for a GPU is a process of its own.
    """
    for name in ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"):
        stub = types.ModuleType(name)
        stub.initialize = lambda: None  # type: ignore[attr-defined]
        sys.modules.setdefault(name, stub)


def topology_devices(platform: str, topology: str, target_config: str = "") -> tuple[Any, ...]:
    """Return the devices of a topology, none of which has to be there.

    Args:
      topology: `v5e:2x4` of a TPU, `1x1x8` of a GPU.
      target_config: the text that describes the GPU.
    """
    from jax.experimental import topologies

    if target_config:
        described = {"target_config": target_config, "topology": topology}
        return tuple(topologies.get_topology_desc(platform=platform, **described).devices)
    return tuple(topologies.get_topology_desc(topology, platform).devices)
