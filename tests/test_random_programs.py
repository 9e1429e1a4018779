"""What jaxresid says of random programs against what JAX does, through its commands: residuals,
checkpoints that are taken out of the source, plans that are written into it."""

import os

import jax
import pytest

from tests import program_oracle, random_programs

# Small ones, which have between them most of what the generator writes.
QUICK = (1, 2)
# How many `-m programs` takes; each is traced once for every checkpoint, policy and plan.
MANY = int(os.environ.get("JAXRESID_PROGRAMS", "500"))
COMMANDS = ("check", "split", "compare", "plan")


def wrong_with(seed, folder, commands):
    found = program_oracle.check(random_programs.program(seed), folder, commands)
    jax.clear_caches()
    return found.wrong


@pytest.mark.slow
@pytest.mark.parametrize("seed", QUICK)
def test_program(seed, tmp_path):
    assert not wrong_with(seed, tmp_path, ())


@pytest.mark.programs
@pytest.mark.parametrize("seed", range(MANY))
def test_program_and_commands(seed, tmp_path):
    # A compile takes a process of its own.
    more = ("compile",) if seed % 50 == 0 else ()
    assert not wrong_with(seed, tmp_path, COMMANDS + more)


def test_a_seed_is_one_program():
    assert random_programs.program(7) == random_programs.program(7)
    assert random_programs.program(7).source() != random_programs.program(8).source()


def test_a_checkpoint_is_taken_out_and_no_line_moves():
    for seed in range(40):
        program = random_programs.program(seed)
        written = program.source().splitlines()
        for number, site in enumerate(program.sites):
            without = program.source(without=number).splitlines()
            changed = [
                n
                for n, pair in enumerate(zip(written, without, strict=True), 1)
                if pair[0] != pair[1]
            ]
            assert len(changed) == 1
            assert changed[0] in site.lines or site.text.startswith("@")
            assert site.text in written[changed[0] - 1]


def test_no_two_checkpoints_share_a_line():
    for seed in range(100):
        lines = [line for site in random_programs.program(seed).sites for line in site.lines]
        assert len(lines) == len(set(lines))


@pytest.mark.slow
def test_the_oracle_sees_residuals_that_are_not_so(tmp_path, monkeypatch):
    monkeypatch.setattr(program_oracle, "rows", lambda report: program_oracle.Counter())
    assert any("residuals" in wrong for wrong in wrong_with(QUICK[0], tmp_path, ()))
