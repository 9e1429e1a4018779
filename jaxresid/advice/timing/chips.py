"""Hold the published figures of accelerators: what compute- and memory-bound kernels can reach.

Every figure is a peak without sparsity, of one JAX device. Each has a page that it was read on;
what no page says is either left out (None) or an assumption that `Chip.notes` names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxresid.xla.places import Place

_GIB, _GB = 1 << 30, 10**9
_TERA = 1e12


@dataclass(frozen=True, slots=True)
class FigureSource:
    """Which figures were read on which page."""

    figures: str
    url: str


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator as JAX sees it: one device.

    Attributes:
      name: The name in a place, `v5e` of `tpu:v5e:2x4`.
      bfloat16: FLOP/s of a matrix multiplication in bfloat16 or float16.
      float32: FLOP/s of a matrix multiplication in float32 at `jax.lax.Precision` DEFAULT, HIGH and
        HIGHEST. By default no float32 product is computed: a TPU rounds to bfloat16, once (3 passes
        at HIGH, 6 at HIGHEST); a GPU to TensorFloat32 (at HIGH too; float32 on its vector units at
        HIGHEST).
      vector: FLOP/s of elementwise operations in float32; None where no page gives one, and then
        such operations cost only the bytes that they move.
      hbm_rate: Bandwidth of device memory in bytes/s.
      host_rate: Bandwidth to host memory in bytes/s, in one direction.
      float8: FLOP/s of a matrix multiplication in float8; None where no page gives one.
      int8: Operations/s of a matrix multiplication in int8; None where no page gives one.
      float64: FLOP/s of a matrix multiplication in float64; None where no page gives one.
      notes: What is derived or assumed.
      link_rate: Bytes/s that a device sends to others in a collective along one mesh axis: a TPU
        over both links of one axis of its torus, a GPU over NVLink to those of its host; None where
        no page gives one.
      network_rate: Bytes/s that a GPU sends to other hosts over an adapter of its own; None where
        no page gives one.
      per_host: How many GPUs of a host have such links; None for a TPU, whose links go on between
        hosts.
    """

    name: str
    title: str
    bfloat16: float
    float32: tuple[float, float, float]
    vector: float | None
    hbm_nbytes: int
    hbm_rate: float
    host_rate: float
    sources: tuple[FigureSource, ...]
    float8: float | None = None
    int8: float | None = None
    float64: float | None = None
    notes: tuple[str, ...] = ()
    link_rate: float | None = None
    network_rate: float | None = None
    per_host: int | None = None

    def matmul_rate(self, dtype: str, precision: int = 0) -> float | None:
        """Return the FLOP/s of a matrix multiplication of a dtype; None where it is not known.

        A type narrower than the chip multiplies is widened to bfloat16. A complex product counts
        as one FLOP of `Cost` where it takes four.

        Args:
          precision: For float32 0 for DEFAULT, 1 for HIGH, 2 for HIGHEST.
        """
        if dtype.startswith("complex"):
            half = "float64" if dtype == "complex128" else "float32"
            rate = self.matmul_rate(half, precision)
            return None if rate is None else rate / 4
        if dtype == "float32":
            return self.float32[precision]
        if dtype == "float64":
            return self.float64
        if dtype in ("bfloat16", "float16"):
            return self.bfloat16
        if dtype.startswith("float"):
            return self.float8 or self.bfloat16
        if dtype in ("int8", "uint8", "int4", "uint4", "int2", "uint2", "bool"):
            return self.int8 or self.bfloat16
        return None


_PRECISION = FigureSource("passes of float32", "https://docs.jax.dev/en/latest/jax.lax.html")
_BOOK_TPU = "https://jax-ml.github.io/scaling-book/tpus/"
_BOOK_GPU = "https://jax-ml.github.io/scaling-book/gpus/"
_NVLINK = FigureSource(
    "NVLink: half of the total, which is of both directions",
    "https://alpha-one-index.github.io/ai-infra-index/specs/networking-interconnects.html",
)
_DGX = FigureSource(
    "network: an adapter of 400 Gb/s for each GPU of a DGX; other systems and clouds differ",
    "https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-"
    "enterprise-ai/latest/core-components.html",
)
_HOPPER = "https://glennklockwood.com/garden/processors/h100"


def _passes(bfloat16: float) -> tuple[float, float, float]:
    return bfloat16, bfloat16 / 3, bfloat16 / 6


_V4 = Chip(
    name="v4",
    title="Google TPU v4",
    bfloat16=275 * _TERA,
    float32=_passes(275 * _TERA),
    int8=275 * _TERA,
    vector=4.3 * _TERA,
    hbm_nbytes=32 * _GIB,
    hbm_rate=1200e9,
    host_rate=16e9,
    sources=(
        FigureSource("bfloat16, int8, HBM", "https://docs.cloud.google.com/tpu/docs/v4"),
        FigureSource("host link; 2048 vector ALUs in each of two cores", _BOOK_TPU),
        _PRECISION,
    ),
    notes=(
        "vector: 4096 ALUs at the 1.05 GHz at which eight 128x128 arrays reach the bfloat16 peak",
    ),
)
_V5E = Chip(
    name="v5e",
    title="Google TPU v5e",
    bfloat16=197 * _TERA,
    float32=_passes(197 * _TERA),
    int8=393 * _TERA,
    vector=6.1 * _TERA,
    hbm_nbytes=16 * _GIB,
    hbm_rate=819e9,
    host_rate=15e9,
    sources=(
        FigureSource(
            "bfloat16, int8, HBM, links between chips (400 GB/s over four, both directions)",
            "https://docs.cloud.google.com/tpu/docs/v5e",
        ),
        FigureSource("host link (typical of TPUs before v6e); clock, vector ALUs of v5", _BOOK_TPU),
        _PRECISION,
    ),
    notes=("vector: 8 x 128 lanes of four ALUs at 1.5 GHz",),
    link_rate=100e9,
)
_V5P = Chip(
    name="v5p",
    title="Google TPU v5p",
    bfloat16=459 * _TERA,
    float32=_passes(459 * _TERA),
    float8=459 * _TERA,
    int8=918 * _TERA,
    vector=14 * _TERA,
    hbm_nbytes=95 * _GIB,
    hbm_rate=2765e9,
    host_rate=15e9,
    sources=(
        FigureSource(
            "bfloat16, float8, HBM, links between chips (1200 GB/s over six, both directions)",
            "https://docs.cloud.google.com/tpu/docs/v5p-training",
        ),
        FigureSource("int8, vector, host link (typical of TPUs before v6e)", _BOOK_TPU),
        _PRECISION,
    ),
    link_rate=200e9,
)
_V6E = Chip(
    name="v6e",
    title="Google TPU v6e (Trillium)",
    bfloat16=918 * _TERA,
    float32=_passes(918 * _TERA),
    float8=918 * _TERA,
    int8=1836 * _TERA,
    vector=None,
    hbm_nbytes=32 * _GIB,
    hbm_rate=1638e9,
    host_rate=32e9,
    sources=(
        FigureSource(
            "bfloat16, int8, HBM, links between chips (800 GB/s over four, both directions)",
            "https://docs.cloud.google.com/tpu/docs/v6e",
        ),
        FigureSource("float8", "https://docs.cloud.google.com/tpu/docs/tpu7x"),
        FigureSource("host link", _BOOK_TPU),
        _PRECISION,
    ),
    link_rate=200e9,
)
_V7X = Chip(
    name="tpu7x",
    title="Google TPU7x (Ironwood), one of a chip's two devices",
    bfloat16=2307 / 2 * _TERA,
    float32=_passes(2307 / 2 * _TERA),
    float8=4614 / 2 * _TERA,
    vector=None,
    hbm_nbytes=96 * _GIB,
    hbm_rate=7380e9 / 2,
    host_rate=16e9,
    sources=(
        FigureSource("bfloat16, float8, HBM", "https://docs.cloud.google.com/tpu/docs/tpu7x"),
        _PRECISION,
    ),
    notes=(
        "half of the published figures: a chip is two devices",
        "host link: not published; half of what v6e has is assumed",
    ),
)


def _a100(size: int, hbm_rate: float) -> Chip:
    return Chip(
        name=f"a100-{size}",
        title=f"NVIDIA A100 SXM {size} GB",
        bfloat16=312 * _TERA,
        float32=(156 * _TERA, 156 * _TERA, 19.5 * _TERA),
        int8=624 * _TERA,
        float64=19.5 * _TERA,
        vector=19.5 * _TERA,
        hbm_nbytes=size * _GB,
        hbm_rate=hbm_rate,
        host_rate=32e9,
        sources=(
            FigureSource(
                "all; reproduces NVIDIA's datasheet",
                "https://glennklockwood.com/garden/processors/A100",
            ),
            _NVLINK,
            _PRECISION,
        ),
        link_rate=300e9,
        per_host=8,
    )


def _hopper(
    name: str, title: str, hbm_nbytes: int, hbm_rate: float, *sources: FigureSource
) -> Chip:
    return Chip(
        name=name,
        title=title,
        bfloat16=989.4 * _TERA,
        float32=(494.7 * _TERA, 494.7 * _TERA, 66.9 * _TERA),
        float8=1978.9 * _TERA,
        int8=1978.9 * _TERA,
        float64=66.9 * _TERA,
        vector=66.9 * _TERA,
        hbm_nbytes=hbm_nbytes,
        hbm_rate=hbm_rate,
        host_rate=64e9,
        link_rate=450e9,
        network_rate=50e9,
        per_host=8,
        sources=(*sources, _NVLINK, _DGX, _PRECISION),
    )


_H100 = _hopper(
    "h100",
    "NVIDIA H100 SXM",
    80 * _GB,
    3350e9,
    FigureSource("all; the host link is 128 GB/s in both directions", _HOPPER),
)
_H200 = _hopper(
    "h200",
    "NVIDIA H200 SXM",
    141 * _GB,
    4800e9,
    FigureSource("bfloat16, float8, int8, HBM", _BOOK_GPU),
    FigureSource("the rest: as for the H100, which has the same die", _HOPPER),
)
_B200 = Chip(
    name="b200",
    title="NVIDIA B200 (HGX, 1000 W)",
    bfloat16=2250 * _TERA,
    float32=(1125 * _TERA, 1125 * _TERA, 75 * _TERA),
    float8=4500 * _TERA,
    int8=4500 * _TERA,
    float64=37 * _TERA,
    vector=75 * _TERA,
    hbm_nbytes=180 * _GB,
    hbm_rate=8000e9,
    host_rate=64e9,
    sources=(
        FigureSource(
            "matmul and vector: an eighth of the HGX B200's, halved where given with sparsity",
            "https://fibermall.com/blog/?p=17161",
        ),
        FigureSource("HBM bandwidth", _BOOK_GPU),
        FigureSource(
            "HBM",
            "https://www.server-parts.eu/post/nvidia-b200-gb200-blackwell-gpu-server-comparison",
        ),
        _NVLINK,
        _DGX,
        _PRECISION,
    ),
    notes=("host link: PCIe Gen5 x16 is assumed, as in the H100; platforms differ",),
    link_rate=900e9,
    network_rate=50e9,
    per_host=8,
)

CHIPS = (
    _V4,
    _V5E,
    _V5P,
    _V6E,
    _V7X,
    _a100(40, 1555e9),
    _a100(80, 2039e9),
    _H100,
    _H200,
    _B200,
)


def chip_of(place: Place) -> Chip | None:
    """Return the chip of a place; None for a CPU, and where no figures are known."""
    chip = next((chip for chip in CHIPS if chip.name == place.chip), None)
    if chip is None or chip.per_host is None or not place.topology:
        return chip
    return replace(chip, per_host=int(place.topology.rpartition("x")[2]))


def places_with_rates() -> tuple[str, ...]:
    return tuple(
        f"{'tpu' if chip.title.startswith('Google') else 'gpu'}:{chip.name}" for chip in CHIPS
    )
