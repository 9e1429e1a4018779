"""What editors show beside the code, of values that no jax made."""

import dataclasses

from jaxresid.render import in_editor
from jaxresid.render.in_editor import LineFigures
from jaxresid.results import Aval, Checkpoint, Computed, LiveValue, Residual, Source, Verdict

MIB = 1024**2
BIG = Aval("float32", (1024, 1024), 4)
KEPT = Residual(BIG, Computed("exp", Source(scope="layers/0")))
OTHER = Residual(BIG, Computed("exp", Source(scope="layers/1")))
LIVE = LiveValue("temporary", 2 * MIB, None, primitive="dot|general")
CHECKPOINT = Checkpoint(
    *("Block", Source(), None, True, 1, 1, 2 * MIB, 10 * MIB),
    *(100, 0.049, 29 * MIB, 141 * MIB, 1.0, Verdict.EARNS, "it drops"),
)


def figures(kept=(KEPT,), live=(), all_kept=16 * MIB, peak=40 * MIB, is_at_peak=True):
    return LineFigures(kept, live, all_kept, peak, is_at_peak)


def test_hints():
    assert in_editor.hint_text(figures()) == "4.00 MiB kept · 10.0% of the peak"
    assert in_editor.hint_text(figures(is_at_peak=False)) == "4.00 MiB kept"
    assert in_editor.hint_text(figures(peak=None)) == "4.00 MiB kept"
    live = "2.00 MiB at the peak (5.0%)"
    assert in_editor.hint_text(figures((), (LIVE,))) == live
    more = "4.00 MiB kept · 10.0% of the peak · 2.00 MiB more at the peak (5.0%)"
    assert in_editor.hint_text(figures(live=(LIVE,))) == more
    host = Residual(dataclasses.replace(BIG, memory="host"), KEPT.origin)
    assert in_editor.hint_text(figures((host,))) == "4.00 MiB kept in host memory"
    # Less than a hundredth of all is not worth a look.
    assert in_editor.hint_text(figures(all_kept=401 * MIB)) == ""
    assert in_editor.hint_text(figures((), (LIVE,), peak=201 * MIB)) == ""
    assert in_editor.hint_text(figures(())) == ""


def test_lenses():
    earns = "earns its keep: peak 141.00 MiB → 29.00 MiB for 4.9% more FLOPs"
    assert in_editor.checkpoint_text(CHECKPOINT) == earns
    of_xla = dataclasses.replace(CHECKPOINT, by="xla", uncosted=("ffi_call",))
    expected = "XLA's peak 141.00 MiB → 29.00 MiB for at least 4.9% more FLOPs"
    assert in_editor.checkpoint_text(of_xla) == f"earns its keep: {expected}"
    nothing = dataclasses.replace(
        CHECKPOINT,
        verdict=Verdict.SAVES_NOTHING,
        peak_without_nbytes=29 * MIB,
        recompute_flops=0,
        recompute_fraction=0.0,
    )
    assert in_editor.checkpoint_text(nothing) == "saves nothing: peak stays 29.00 MiB"
    unknown = dataclasses.replace(CHECKPOINT, peak_without_nbytes=None, verdict=Verdict.NOT_JUDGED)
    assert in_editor.checkpoint_text(unknown) == "not judged: it drops"
    both = [figures(), figures(live=(LIVE,))]
    assert in_editor.function_text(both) == "keeps 8.00 MiB, 50.0% of all that is kept"
    assert in_editor.function_text([figures((), (LIVE,))]) == ""


def test_hovers():
    """Repeated layers are one row, and no name of the code ends a cell."""
    page = in_editor.hover_page("train on tpu:v5e", figures((KEPT, OTHER), (LIVE,)))
    assert page.splitlines() == [
        "**train on tpu:v5e**",
        "",
        "This line keeps 8.00 MiB for the backward pass, 50.0% of all that is kept."
        " What else it makes takes 2.00 MiB of the peak of 40.00 MiB (5.0%).",
        "",
        "| bytes | value | what | |",
        "|---:|---|---|---|",
        "| 8.00 MiB | `f32[1024,1024]` ×2 | exp | kept; scope layers/* |",
        "| 2.00 MiB |  | dot\\|general | temporary at the peak |",
        "",
    ]
    many = [Residual(dataclasses.replace(BIG, shape=(n, 1024)), KEPT.origin) for n in range(1, 15)]
    rows = in_editor.hover_page("t", figures(tuple(many))).splitlines()[-4:]
    assert rows[-2] == "| 12.00 KiB | | 2 more | |"
