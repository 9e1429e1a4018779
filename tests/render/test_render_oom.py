import json

import jsonschema
import pytest
from rich.cells import cell_len
from rich.console import Console

import jaxresid
from jaxresid.render.oom.text import render_oom
from tests import where
from tests.schemas import validate

LOGS = where.DATA / "logs"
NAMES = sorted(path.name for path in LOGS.glob("*.txt"))


def text(report, width=80, **options):
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(render_oom(report, **options), crop=False)
    return captured.get()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("name", NAMES)
def test_a_screen_is_enough(name, width):
    lines = text(jaxresid.oom(LOGS / name), width).splitlines()
    commands = [line for line in lines if line.startswith("     ")]
    assert all(cell_len(line.rstrip()) <= width for line in lines if line not in commands)
    if width >= 80:
        assert len(lines) <= 24
        assert all(cell_len(line.rstrip()) <= 80 for line in commands if width == 80)


def test_the_verdict_is_first():
    first = text(jaxresid.oom(LOGS / "easydel-166.txt"), 120).splitlines()[0]
    assert first == (
        "too large, mostly temporaries: jit_casual_language_model_train_step needs 63.80 GiB of"
        " 30.75 GiB, 33.05 GiB too much"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("levanter-427", "probably too large, mostly temporaries: jit_train_step, by the buffers"),
        ("multinerf-77", "the memory was already taken: the program needs only 12.00 MiB, and all"),
        ("xla-32", "fragmentation: 648.07 MiB was free, but not the 56.25 MiB asked for in one"),
        ("jax-10830", "another program has the GPU: it was full before JAX had anything on it"),
        ("vllm-8318", "a kernel needs more than the memory on the chip"),
    ],
)
def test_verdicts(name, words):
    assert text(jaxresid.oom(LOGS / f"{name}.txt"), 120).startswith(words)


def test_only_what_stands_in_the_commands_is_explained():
    known = text(jaxresid.oom(LOGS / "easydel-142.txt"))
    assert "TARGET is" in known
    assert "PLACE is" not in known
    assert "PLACE is" in text(jaxresid.oom(LOGS / "t5x-870.txt"))


def test_everything_is_there_if_it_is_asked_for():
    entry = '{}. Size: {}.00G\nOperator: op_name="jit(f)/op{}" source_file="/a/b/c/d/m.py"'
    log = "\n".join(f"{entry.format(n, n, 'x' * n)} source_line={n}\n" for n in range(1, 8))
    few, all_ = text(jaxresid.oom(log)), text(jaxresid.oom(log), verbose=True)
    assert "3 smaller rows, 6.00 GiB (-v lists them)" in few
    assert "…/c/d/m.py:7" in few
    assert "/a/b/c/d/m.py:1" in all_


def test_what_the_log_says_does_nothing_to_the_terminal():
    log = (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 49592744 bytes. \x9b31m\u202e\n"
        '1. Size: 1.00G\nOperator: op_name="jit(f)/[bold]\u202ex\x07/dot" source_file="\u2066m.py"'
        " source_line=3\n::error::x\n##vso[task.complete]\n"
    )
    for shown in (text(jaxresid.oom(log), verbose=True), jaxresid.oom(log).to_json()):
        assert not set(shown) & set("\x9b\u202e\u2066\x07\x1b")
        assert "##vso[" not in shown


@pytest.mark.parametrize("name", NAMES)
def test_json_keeps_the_schema(name):
    value = json.loads(jaxresid.oom(LOGS / name).to_json())
    validate(value, "oom")
    for key in value:
        with pytest.raises(jsonschema.ValidationError):
            validate({k: v for k, v in value.items() if k != key}, "oom")


def test_print(capsys):
    jaxresid.oom(LOGS / "easydel-166.txt").print()
    assert capsys.readouterr().out.startswith("too large, mostly temporaries")


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_saved_and_loaded(name, tmp_path):
    report = jaxresid.oom(LOGS / name)
    report.save(tmp_path / "oom.json")
    assert jaxresid.load(tmp_path / "oom.json", jaxresid.OomReport) == report
