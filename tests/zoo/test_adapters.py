"""`pytest -m zoo`: models by an adapter's target, held against the zoo's programs of the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import running

PROGRAMS = running.HERE / "programs"
FIELDS = "vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=4"
# Program -> its options, and the words that ask for the same by an adapter.
SAME = {
    "transformers_gpt2.py:loss": (
        ("--argnums", "0"),
        (
            f"transformers:FlaxGPT2LMHeadModel({FIELDS})",
            *("--arg", "i32[4,32]", "--arg", "i32[4,32]"),
            *("--loss", f"{PROGRAMS / 'transformers_gpt2.py'}:loss_of_model"),
        ),
    ),
    "keras_classifier.py:train_step": (
        (),
        (
            f"keras:{PROGRAMS / 'keras_classifier.py'}:compiled",
            *("--arg", "f32[8,32,48]", "--arg", "i32[8]"),
        ),
    ),
}


def report(environment, *words):
    python = running.python_of(environment)
    if not python.exists():
        pytest.skip(f"no environment {environment}: python tests/zoo/install.py {environment}")
    done = subprocess.run(
        [str(python), "-m", "jaxresid", "report", *words, "-f", "json"],
        env={**os.environ, "PYTHONPATH": str(running.ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.zoo
@pytest.mark.parametrize("environment", ["oldest", "newest"])
@pytest.mark.parametrize("program", SAME)
def test_a_target_is_the_program(program, environment):
    options, words = SAME[program]
    written = report(environment, f"{PROGRAMS / program}", *options)
    found = report(environment, *words)
    assert found["totals"]["computed_nbytes"] == written["totals"]["computed_nbytes"]
    # A step of Keras' own keeps its metrics as well, in the update.
    for phase in ("forward_flops", "backward_flops"):
        assert found["cost"][phase] == written["cost"][phase]
