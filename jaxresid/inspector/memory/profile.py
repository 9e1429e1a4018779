"""The profiles: for each compiler a table of its decisions, over rules that all share.

The rules are in `rules/`: what is computed inside what reads it, what is materialised, and what is
written over what. Those of a TPU were measured ahead of time with libtpu 0.0.52 and JAX 0.12.0.1
for a v5p, those of a GPU with jaxlib 0.12.0.1 for an H100, ahead of time with cuBLAS, and 0.11.2 on
one; all at gigabyte shapes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """One compiler's decisions.

    Attributes:
      name: its name in reports.
      reuses_output_buffers: whether temporaries may be in an output's buffer until the output is
        written.
      pads_to_tiles: whether arrays are padded to tiles, and reshapes across tiles are copies.
      narrows_factors: whether float32 that only dots of default precision read is stored as
        bfloat16.
      computes_factors: whether a dot or convolution computes what it reads. Otherwise it reads
        arrays, their batch axes first, and slices of a stack are copied for it.
      epilogue: the elementwise ops that finish a dot before it is written; None: all.
      finishes_random: whether elementwise ops finish random bits, so that a dropout keeps its mask.
      fuses_gathers: whether gathers, concatenations and a scatter's updates are computed inside
        what reads them; otherwise they are calls that read arrays.
      repeats_sines: whether a sine and the like are computed again in each of their readers.
      keeps_expensive_halves: whether these and tanh, of two bytes, are materialised for several
        readers nevertheless, as they take longer than their bytes.
      materializes_fills: whether what a loop reads of constants is materialised before it.
      copies_to_stacks: whether what a trip stacks and other kernels read is an array besides.
      writes_over_operands: whether an elementwise kernel may write over an array that it reads.
    """

    name: str
    reuses_output_buffers: bool
    pads_to_tiles: bool
    narrows_factors: bool
    computes_factors: bool
    epilogue: frozenset[str] | None
    finishes_random: bool
    fuses_gathers: bool
    repeats_sines: bool
    keeps_expensive_halves: bool
    materializes_fills: bool
    copies_to_stacks: bool
    writes_over_operands: bool


TPU = Profile(
    name="tpu",
    reuses_output_buffers=False,
    pads_to_tiles=True,
    narrows_factors=True,
    computes_factors=True,
    epilogue=None,
    finishes_random=False,
    fuses_gathers=False,
    repeats_sines=False,
    keeps_expensive_halves=False,
    materializes_fills=False,
    copies_to_stacks=False,
    writes_over_operands=False,
)
GPU = Profile(
    name="gpu",
    reuses_output_buffers=True,
    pads_to_tiles=False,
    narrows_factors=False,
    computes_factors=False,
    epilogue=frozenset({"add", "add_any"}),
    finishes_random=True,
    fuses_gathers=True,
    repeats_sines=True,
    keeps_expensive_halves=True,
    materializes_fills=True,
    copies_to_stacks=True,
    writes_over_operands=True,
)
