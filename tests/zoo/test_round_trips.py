"""`pytest -m zoo`: what `plan --emit` prints, pasted into the model's file, keeps what it said.

A row is an adapter with its `--emit`; those of Haliax run in the environment `levanter` that
`install.py` makes, that of MaxText in `maxtext`, all others in `newest`.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import running
from test_adapters import ADAPTERS, command, report

TUTORIALS = running.ROOT / "fixtures" / "tutorials"
ENVIRONMENT = "newest"  # the tutorials need Flax 0.12
STEP = (
    *("--arg", "f32[4096,256]", "--arg", "f32[4096,256]"),
    *("--loss", "squared-error", "--optimizer", "adam", "--on", "tpu:v5e"),
)
_PROMISE = re.compile(r"traced with these settings: kept ([\d.]+) MiB, peak about ([\d.]+) MiB")
_PLACE = re.compile(r"(?P<text>.*?)  # .*:(?P<line>\d+), new")


def pasted(source, emitted):
    """The source with each emitted line at the number that its comment says."""
    lines = source.splitlines()
    for each in map(_PLACE.match, emitted.splitlines()):
        at = int(each["line"]) - 1
        following = lines[at : at + 1]
        indent = re.match(r" *", following[0])[0] if each["text"].startswith("@") else ""
        lines.insert(at, indent + each["text"])
    return "\n".join(lines) + "\n"


@pytest.mark.zoo
@pytest.mark.parametrize("framework", ["linen", "nnx", "equinox"])
def test_the_promise_holds(framework, tmp_path):
    file = tmp_path / f"{framework}_step.py"
    shutil.copy(TUTORIALS / file.name, file)
    target = f"{framework}:{file}:Net"
    done = command(ENVIRONMENT, "plan", target, *STEP, "--budget", "130MiB", "--emit", framework)
    kept, peak = map(float, _PROMISE.search(done.stderr).groups())
    file.write_text(pasted(file.read_text(), done.stdout))
    holds(report(ENVIRONMENT, target, *STEP), kept, peak)


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("model", "budget"),
    [("functional", "13MiB"), ("sequential", "17MiB"), ("models_in_a_model", "10MiB")],
)
def test_the_promise_of_a_scope_holds(model, budget, tmp_path):
    file = ADAPTERS / "keras_models.py"
    words = ("--arg", "f32[2048,64]", "--optimizer", "sgd(1e-3)", "--on", "tpu:v5e")
    done = command(
        ENVIRONMENT, "plan", f"keras:{file}:{model}", *words, "--budget", budget, "--emit", "keras"
    )
    kept, peak = map(float, _PROMISE.search(done.stderr).groups())
    again = tmp_path / "again.py"
    scope = done.stdout.splitlines()[0]
    build = f"def build():\n    {scope}\n        return {model}()\n"
    again.write_text(f"{file.read_text()}\n\n{build}")
    holds(report(ENVIRONMENT, f"keras:{again}:build", *words), kept, peak)


@pytest.mark.zoo
def test_the_promise_of_a_stack_holds(tmp_path):
    file = ADAPTERS / "haliax_models.py"
    words = ("--arg", "f32[2048,64]", "--kwarg", 'axes="batch embed"', "--on", "tpu:v5e")
    plan = ("plan", f"haliax:{file}:build", *words, "--budget", "7.4MiB", "--emit", "haliax")
    done = command("levanter", *plan)
    kept, peak = map(float, _PROMISE.search(done.stderr).groups())
    line, number = re.fullmatch(r"(.*?)  # .*:(\d+)\n", done.stdout).groups()
    lines = file.read_text().splitlines()
    lines[int(number) - 1] = " " * 8 + line
    again = tmp_path / "again.py"
    again.write_text("\n".join(lines))
    holds(report("levanter", f"haliax:{again}:build", *words), kept, peak)


@pytest.mark.zoo
@pytest.mark.parametrize("budget", ["45MiB", "60MiB"])
def test_the_promise_of_a_configuration_holds(budget):
    target = (
        "maxtext:base.yml base_num_decoder_layers=4 base_emb_dim=128 base_num_query_heads=4"
        " head_dim=32 base_num_kv_heads=4 base_mlp_dim=512 vocab_size=512 max_target_length=256"
    )
    words = ("--on", "tpu:v5e", "--budget", budget, "--emit", "maxtext")
    done = command("maxtext", "plan", target, *words)
    kept, peak = map(float, _PROMISE.search(done.stderr).groups())
    settings = " ".join("=".join(each) for each in re.findall(r"(\w+): '(\w+)'", done.stdout))
    assert "remat_policy=custom" in settings
    holds(report("maxtext", f"{target} {settings}", "--on", "tpu:v5e"), kept, peak)


def holds(found, kept, peak):
    assert found["totals"]["computed_nbytes"] / 2**20 == pytest.approx(kept, abs=0.006)
    assert found["peak"]["nbytes"] / 2**20 == pytest.approx(peak, abs=0.006)
