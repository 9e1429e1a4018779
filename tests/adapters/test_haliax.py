"""`haliax:` targets, held against the loss that a person writes without them."""

import re
from pathlib import Path

import pytest

pytest.importorskip("haliax.nn")

FILE = "haliax_models.py"
MODEL = f"haliax:{FILE}:build"
WORDS = ("--arg", "f32[2048,64]", "--kwarg", 'axes="batch embed"')
_PROMISE = re.compile(r"settings: kept ([\d.]+) MiB, peak about ([\d.]+) MiB.*, as planned")


def test_the_loss_is_what_one_writes_by_hand(report):
    written = report(f"{FILE}:loss", "--argnums", "0")
    for more in ((), ("--loss", f"{FILE}:own_loss")):
        found = report(MODEL, *WORDS, *more)
        assert found["totals"] == written["totals"]
        assert found["cost"]["backward_flops"] == written["cost"]["backward_flops"]
        assert len(found["target"]["differentiated"]) == len(written["target"]["differentiated"])


def test_a_target_has_no_names(report):
    pytest.importorskip("optax")
    words = (
        *WORDS,
        "--arg",
        "f32[2048,64]",
        "--loss",
        "squared-error",
        "--optimizer",
        "adam(1e-3)",
    )
    roles = report(MODEL, *words)["peak"]["breakdown"]
    assert roles["optimizer-state"] == 2 * roles["parameters"] + 4


@pytest.mark.integration
def test_the_promise_holds(call, report, tmp_path):
    words = (*WORDS, "--on", "tpu:v5e", "--budget", "7.4MiB")
    _, out, err = call("plan", MODEL, *words, "--emit", "haliax")
    kept, peak = map(float, _PROMISE.search(err).groups())
    line, number = re.fullmatch(r"(.*?)  # .*:(\d+)\n", out).groups()
    lines = Path(FILE).read_text().splitlines()
    lines[int(number) - 1] = " " * 8 + line
    again = tmp_path / "haliax_again.py"
    again.write_text("\n".join(lines))
    found = report(f"haliax:{again}:build", *words[:-2])
    assert found["totals"]["computed_nbytes"] / 2**20 == pytest.approx(kept, abs=0.006)
    assert found["peak"]["nbytes"] / 2**20 == pytest.approx(peak, abs=0.006)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (WORDS[:2], "name the axes of each --arg that it gets"),
        ((*WORDS[:2], "--kwarg", 'axes="batch"'), 'axes="axis0 axis1"'),
        ((*WORDS, "--arg", "f32[2048]"), "name the axes of each --arg that it gets"),
        ((*WORDS, "--kwarg", "axes=3"), "axes"),
    ],
)
def test_what_is_wrong_is_one_line(call, words, message):
    code, _, err = call("report", MODEL, *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
