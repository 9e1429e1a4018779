"""`pytest -m zoo`: models by an adapter's target, held against the zoo's programs of the same."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import running

PROGRAMS = running.HERE / "programs"
ADAPTERS = running.ROOT / "tests" / "adapters"
FIELDS = "vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=4"
BOTH = ("oldest", "newest")


@dataclass(frozen=True)
class Same:
    """A program, and the words that ask for the same by an adapter."""

    environments: tuple[str, ...]
    program: tuple[str, ...]
    words: tuple[str, ...]


SAME = {
    "transformers": Same(
        BOTH,
        (f"{PROGRAMS / 'transformers_gpt2.py'}:loss", "--argnums", "0"),
        (
            f"transformers:FlaxGPT2LMHeadModel({FIELDS})",
            *("--arg", "i32[4,32]", "--arg", "i32[4,32]"),
            *("--loss", f"{PROGRAMS / 'transformers_gpt2.py'}:loss_of_model"),
        ),
    ),
    "keras": Same(
        BOTH,
        (f"{PROGRAMS / 'keras_classifier.py'}:train_step",),
        (
            f"keras:{PROGRAMS / 'keras_classifier.py'}:compiled",
            *("--arg", "f32[8,32,48]", "--arg", "i32[8]"),
        ),
    ),
    "maxtext": Same(
        ("maxtext",),
        (f"{ADAPTERS / 'maxtext_models.py'}:train_step",),
        (
            "maxtext:base.yml base_num_decoder_layers=2 base_emb_dim=64 base_mlp_dim=128"
            " base_num_query_heads=4 base_num_kv_heads=4 head_dim=16 vocab_size=512"
            " max_target_length=128 per_device_batch_size=2 attention=dot_product",
        ),
    ),
    "levanter": Same(
        ("levanter",),
        (f"{ADAPTERS / 'levanter_models.py'}:loss", "--argnums", "0"),
        (
            f"levanter:{ADAPTERS / 'levanter_models.py'}:CONFIG",
            *("--arg", "i32[4,32]", "--kwarg", "vocab_size=128"),
            *("--kwarg", 'mp="p=f32,c=bfloat16"'),
        ),
    ),
}
CASES = [(name, each) for name, same in SAME.items() for each in same.environments]


def command(environment, *words):
    """A command of jaxresid that ran in an environment of the zoo, whatever its exit code."""
    python = running.python_of(environment)
    if not python.exists():
        pytest.skip(f"no environment {environment}: python tests/zoo/install.py {environment}")
    return subprocess.run(
        [str(python), "-m", "jaxresid", *words],
        env={**os.environ, "PYTHONPATH": str(running.ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


def report(environment, *words):
    done = command(environment, "report", *words, "-f", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.zoo
@pytest.mark.parametrize(("name", "environment"), CASES)
def test_a_target_is_the_program(name, environment):
    written = report(environment, *SAME[name].program)
    found = report(environment, *SAME[name].words)
    assert found["totals"]["computed_nbytes"] == written["totals"]["computed_nbytes"]
    # A step of Keras' own keeps its metrics as well, in the update.
    for phase in ("forward_flops", "backward_flops"):
        assert found["cost"][phase] == written["cost"][phase]
