"""`maxtext:` targets, held against the step that MaxText's own ahead-of-time compile makes."""

import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("maxtext.configs.pyconfig")

SMALL = (
    "base_num_decoder_layers=2 base_emb_dim=64 base_mlp_dim=128 base_num_query_heads=4"
    " base_num_kv_heads=4 head_dim=16 vocab_size=512 max_target_length=128"
    " per_device_batch_size=2 attention=dot_product"
)
LONGER = "base_num_decoder_layers=4 base_emb_dim=128 base_num_query_heads=4 head_dim=32"
LONGER += " base_num_kv_heads=4 base_mlp_dim=512 vocab_size=512 max_target_length=256"
_PROMISE = re.compile(r"settings: kept ([\d.]+) MiB, peak about ([\d.]+) MiB")


def test_the_step_is_what_maxtext_compiles(report):
    found = report(f"maxtext:base.yml {SMALL}")
    written = report("maxtext_models.py:train_step")
    assert found["totals"] == written["totals"]
    assert found["cost"] == written["cost"]
    assert found["peak"]["nbytes"] == written["peak"]["nbytes"]
    assert len(found["target"]["differentiated"]) == len(written["target"]["differentiated"])


def test_state_is_told_apart(report):
    found = report(f"maxtext:base.yml {SMALL}")
    assert {path.partition("[")[0] for path in found["target"]["differentiated"]} == {"params"}
    roles = found["peak"]["breakdown"]
    assert roles["optimizer-state"] == pytest.approx(2 * roles["parameters"], rel=0.01)


def test_the_kernels_are_those_of_the_place(report):
    target = f"maxtext:base.yml {SMALL.removesuffix(' attention=dot_product')}"
    flash, dot = (
        report(f"{target} remat_policy=minimal_flash attention={each}", "--on", "tpu:v5e")
        for each in ("autoselected", "dot_product")
    )
    assert any("flash_attention" in json.dumps(each) for each in flash["residuals"])
    assert not any("flash_attention" in json.dumps(each) for each in dot["residuals"])


def test_a_file_of_ones_own(report, tmp_path):
    settings = "\n".join(each.replace("=", ": ") for each in SMALL.split())
    (tmp_path / "mine.yml").write_text(f"base_config: base.yml\n{settings}\n")
    found = report(f"maxtext:{tmp_path}/mine.yml")
    assert found["totals"] == report(f"maxtext:base.yml {SMALL}")["totals"]


@pytest.mark.integration
def test_the_mesh_is_that_of_the_settings(tmp_path):
    """In a process of its own: this one's JAX has started, with one device."""
    words = ["report", f"maxtext:base.yml {SMALL} ici_tensor_parallelism=2", "--on", "tpu:v5e:2x4"]
    done = subprocess.run(
        [sys.executable, "-m", "jaxresid", *words],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = "".join(done.stdout.split())
    assert "fsdp=4" in shown and "tensor=2" in shown
    assert "bytesofoneof8devices" in shown


@pytest.mark.integration
@pytest.mark.parametrize("budget", ["45MiB", "60MiB"])
def test_the_promise_holds(call, report, budget):
    target = f"maxtext:base.yml {LONGER}"
    _, out, err = call("plan", target, "--on", "tpu:v5e", "--budget", budget, "--emit", "maxtext")
    kept, peak = map(float, _PROMISE.search(err).groups())
    settings = dict(re.findall(r"(\w+): '(\w+)'", out))
    assert settings["remat_policy"] == "custom"
    words = " ".join(f"{key}={value}" for key, value in settings.items())
    found = report(f"{target} {words}", "--on", "tpu:v5e")
    assert found["totals"]["computed_nbytes"] / 2**20 == pytest.approx(kept, abs=0.006)
    assert found["peak"]["nbytes"] / 2**20 == pytest.approx(peak, abs=0.006)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("maxtext:nowhere.yml",), "there is no configuration nowhere.yml, here or in"),
        (("maxtext:base.yml per_device_batch=4",), "MaxText has no setting 'per_device_batch'"),
        (("maxtext:base.yml model_name=llama9",), "MaxText refuses maxtext:base.yml model_name"),
        (("maxtext:base.yml enable_diloco=true",), "enable_diloco is for another training step"),
        (("maxtext:base.yml compile_topology=v5e-8",), "write the devices as --on"),
        (
            ("maxtext:base.yml ici_tensor_parallelism=2", "--on", "tpu:v5e"),
            "(tensor=2) does not fit",
        ),
        (("maxtext:base.yml", "--on", "gpu:h100"), "add attention=dot_product"),
        (("maxtext:base.yml", "--loss", "mean"), "leave out --loss: the loss is MaxText's own"),
        (("maxtext:base.yml", "--arg", "f32[4]"), "write per_device_batch_size="),
    ],
)
def test_what_is_wrong_is_one_line(call, words, message):
    code, _, err = call("report", *words)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err
