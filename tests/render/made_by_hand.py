"""Comparisons and plans that no jax made, for tests of what they look like."""

import dataclasses
import io

from rich.console import Console

from jaxresid.results import (
    Comparison,
    ComparisonRow,
    Expression,
    Floor,
    FloorPart,
    JaxInfo,
    Location,
    PlaceInfo,
    Plan,
    PlannedPart,
    PlannedSite,
    PlannedValue,
    Relief,
    Target,
    TriedPlace,
)

MIB, GIB = 1024**2, 1024**3


def row(policy, peak, kept, tflops, fraction, time, host=0.0, **more):
    return ComparisonRow(
        policy,
        more.pop("at", "scan-bodies"),
        int(kept * GIB),
        int(host * GIB),
        int(peak * GIB),
        int(tflops * 1e12),
        fraction,
        time,
        **more,
    )


RANGE = "Range of nine in ten programs, by"

ROWS = (
    row("none", 14.125, 13.125, 0, 0.0, 0.0, pareto=True),
    row("as-written", 7.9, 6.125, 1.5, 0.17, 0.15),
    row("everything_saveable", 14.125, 13.125, 0, 0.0, 0.0, pareto=True),
    row("nothing_saveable", 1.75, 0.625, 2.875, 0.333, 0.31, pareto=True),
    row("dots_saveable", 6.25, 5.125, 0.4, 0.046, 0.09, pareto=True),
    row("dots_with_no_batch_dims_saveable", 3.125, 2.0, 0.42, 0.048, 0.1, pareto=True, knee=True),
    row("save_only_these_names('qkv', 'attention_output')", 3.875, 2.875, 1.9, 0.22, 0.21),
    ComparisonRow(
        "mine:bad", "scan-bodies", error="the policy bad returns None\n  where True is needed"
    ),
)
PLACE = PlaceInfo("tpu:v5p", "tpu", "as asked", "tpu", 95 * GIB)
COMPARISON = Comparison(
    Target("gpt.py:loss", ("x", "stacked['w']", "stacked['b']")),
    JaxInfo("0.12.0", {"jax_use_direct_linearize": True}),
    PLACE,
    "v5p",
    "scan-bodies",
    ("gpt.py:49 (layer) ×12 trips",),
    ROWS,
)
SITES = (
    PlannedSite(
        "scan",
        "layer",
        Location("model.py", 49, 4, "loss", "x, _ = jax.lax.scan(layer, x, stacked)"),
        1,
        48,
        (
            PlannedPart(
                1,
                True,
                "save_only_these_names('qkv', 'mix', 'ctx')",
                (
                    PlannedValue(
                        "qkv", "save", 3 * GIB, Expression("m.py", 42, 10, 42, 18, "layer", "x @ w")
                    ),
                    PlannedValue(
                        "mix",
                        "save",
                        GIB,
                        Expression("m.py", 50, 4, 53, 6, "layer", "f(\n    x,\n    y\n)"),
                    ),
                    PlannedValue("ctx", "offload", 512 * MIB),
                ),
            ),
        ),
        True,
    ),
    PlannedSite(
        "call",
        "block",
        None,
        24,
        48,
        (PlannedPart(10, True), PlannedPart(1, True, "dots_saveable"), PlannedPart(13, False)),
        True,
    ),
    PlannedSite(
        "checkpoint",
        "head",
        Location("model.py", 80, 4, "loss", "x = head(x)"),
        1,
        1,
        (PlannedPart(1, True, "dots_saveable"),),
        False,
    ),
)
PLAN = Plan(
    COMPARISON.target,
    COMPARISON.jax,
    PLACE,
    "v5p",
    8 * GIB,
    offload=False,
    answer="fits",
    lowest_nbytes=2 * GIB,
    written_nbytes=9 * GIB,
    plain_nbytes=14 * GIB,
    peak_nbytes=int(7.5 * GIB),
    estimate_nbytes=int(7.5 * GIB),
    kept_nbytes=5 * GIB,
    host_nbytes=0,
    recompute_flops=1_200_000_000_000,
    plain_flops=8_700_000_000_000,
    recompute_fraction=0.138,
    time_fraction=0.11,
    low_nbytes=int(6.8 * GIB),
    high_nbytes=int(7.9 * GIB),
    sites=SITES,
    proven=True,
    tried=34,
    code=(
        'jax.lax.scan(jax.checkpoint(layer, policy=keep("qkv", "mix", "ctx")), x, ws)'
        "  # model.py:49",
        "block = jax.checkpoint(block) if i < 10 else block",
    ),
    verified=True,
    choices=(
        TriedPlace("model.py:49 (layer)", ("no policy", "dots_saveable"), 30, 30),
        TriedPlace("block", ("no policy", *"abcd")),
    ),
    floor=Floor(
        (
            FloorPart("differentiated", GIB, ("params",)),
            FloorPart("gradient", GIB // 2, ("params",)),
            FloorPart("batch", GIB // 8, until_update=True),
        ),
        (
            Relief("dtype", "params in bfloat16", 4 * GIB, int(3.5 * GIB), "fits"),
            Relief("sharding", "x split over 8 devices", 5 * GIB, int(2.5 * GIB), "too close"),
        ),
        ("the optimizer's state and its update",),
    ),
)
NO_FIT = dataclasses.replace(
    PLAN,
    budget_nbytes=GIB,
    answer="does not fit",
    peak_nbytes=2 * GIB,
    low_nbytes=int(1.8 * GIB),
    high_nbytes=int(2.4 * GIB),
)
CONFIRMED = dataclasses.replace(
    PLAN,
    confirmed=True,
    by_xla=("peak_nbytes",),
    compiles=3,
    low_nbytes=None,
    high_nbytes=None,
    proven=False,
)


def printed(renderable, width=80, **options):
    console = Console(file=io.StringIO(), width=width, highlight=False, **options)
    console.print(renderable, crop=False)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def compared(*rows, **more):
    return dataclasses.replace(COMPARISON, rows=rows, **more)
