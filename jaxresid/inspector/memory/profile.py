"""The profiles: for each compiler a table of its decisions, over rules that all share.

The rules are in `rules/`: what is computed inside what reads it, what is materialised, and what is
written over what. Those of a TPU were measured ahead of time with libtpu 0.0.52 and JAX 0.12.0.1
for a v5p, those of a GPU with jaxlib 0.12.0.1 for an H100, ahead of time with cuBLAS, and 0.11.2 on
one; all at gigabyte shapes. Where jaxlib's versions differ there is a table for the older ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


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
        arrays, and slices of a stack are copied for it.
      epilogue: the elementwise ops that finish a dot before it is written; None: all.
      fuses_gathers: whether gathers, concatenations and a scatter's updates are computed inside
        what reads them; otherwise they are calls that read arrays.
      fills_stacks_at_once: whether the zeros that loops write their stacks over are made for all
        stacks of one shape and type at once, before the first of these loops.
      fft_arrays: how many arrays of the size of its complex values a Fourier transform takes beside
        what it reads and writes.
      solved_rows: of how many rows the blocks are that a triangular system is solved in; None: a
        library solves it.
      largest_scores_nbytes: above how many bytes the scores of an attention without a backward pass
        are computed again in all that reads them; None: never.
      unifies_stacked_copies: whether a loop's stack of slices of its own input is read as that.
      orders_outputs: whether a loop's stack that is returned transposed is copied into that order;
        otherwise the loop may write it so.
    """

    name: str
    reuses_output_buffers: bool
    pads_to_tiles: bool
    narrows_factors: bool
    computes_factors: bool
    epilogue: frozenset[str] | None
    fuses_gathers: bool
    fills_stacks_at_once: bool
    fft_arrays: int
    solved_rows: int | None
    largest_scores_nbytes: int | None
    unifies_stacked_copies: bool
    orders_outputs: bool


TPU = Profile(
    name="tpu",
    reuses_output_buffers=False,
    pads_to_tiles=True,
    narrows_factors=True,
    computes_factors=True,
    epilogue=None,
    fuses_gathers=False,
    fills_stacks_at_once=False,
    fft_arrays=2,
    solved_rows=128,
    largest_scores_nbytes=4 << 30,
    unifies_stacked_copies=True,
    orders_outputs=False,
)
GPU = Profile(
    name="gpu",
    reuses_output_buffers=True,
    pads_to_tiles=False,
    narrows_factors=False,
    computes_factors=False,
    epilogue=frozenset({"add", "add_any"}),
    fuses_gathers=True,
    fills_stacks_at_once=False,
    fft_arrays=0,
    solved_rows=None,
    largest_scores_nbytes=None,
    unifies_stacked_copies=False,
    orders_outputs=True,
)
GPU_BEFORE_0_12 = replace(GPU, fills_stacks_at_once=True)
