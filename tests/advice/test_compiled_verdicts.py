"""Verdicts of a compiler, against checkpoints removed by hand and compiled by plain JAX."""

import re

import jax
import jax.numpy as jnp
import pytest
from verdict_programs import PROGRAMS, differentiated, f32, peak_by_jax, verdict_of

import jaxresid
from jaxresid.advice.check.verdict_rules import verdict_finding
from jaxresid.advice.compile import report as module
from jaxresid.advice.compile.ahead_of_time import CompileSettings
from jaxresid.advice.compile.limited import COMPILE_SECONDS
from jaxresid.advice.compile.report import confirmed
from jaxresid.base.progress import Done
from jaxresid.cli.main import showing_progress
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import inspection, subject
from jaxresid.results import Compiled, Verdict
from jaxresid.xla.places import parse_place

MIB = 2**20


def as_removed_by_hand(name, width):
    """Hold all verdicts of a program against plain JAX; returns them by function."""
    program = PROGRAMS[name]
    args = program.inputs(width)
    report = jaxresid.inspect(program.whole(), on="cpu", compile=True)(*args)
    peak = peak_by_jax(name, program.whole(), args)
    assert report.compiled[0].peak_nbytes == peak
    assert {c.function for c in report.checkpoints} == set(program.names)
    for c in report.checkpoints:
        without = peak_by_jax(name, program.without(c.function), args)
        assert (c.by, c.unconfirmed) == ("xla", "")
        assert (c.peak_nbytes, c.peak_without_nbytes) == (peak, without), c.function
        if c.verdict in (Verdict.OVERRIDDEN, Verdict.MATCHED_NOTHING):
            continue  # is so whatever the peaks
        expected = verdict_of(
            c.kept_without_nbytes - c.kept_nbytes,
            peak,
            without,
            can_be_undone=(name, c.function) == ("cse allowed", "first"),
        )
        assert c.verdict == expected, c.function
    return {c.function: c for c in report.checkpoints}


@pytest.mark.integration
@pytest.mark.parametrize("name", PROGRAMS)
def test_verdicts_are_those_of_removing_it(name):
    as_removed_by_hand(name, 64)


def stablehlo(fun, args):
    """The operations of a program's module, without names; 0.12 may order independent ones anew."""
    text = jax.jit(fun, keep_unused=True).lower(*args).as_text()
    operations = r"(?:stablehlo|sdy|chlo|call|func)[.\w@]*[^%\n]*"
    return sorted(re.findall(operations, re.sub(r"@\w+", "@", text))[2:])


def inner(x):
    return jnp.sin(jnp.cos(x))


def hidden(is_there):
    """A checkpoint inside a derivative that the function takes, which no primal jaxpr shows."""

    def loss(x):
        energy = jax.checkpoint(inner) if is_there else inner
        return jnp.sum(jax.grad(lambda y: jnp.sum(energy(y) ** 2))(x) ** 2)

    return loss


def to_compile(fun, args, name):
    found = inspection(Question(fun, args, on=parse_place("cpu")))
    (judged,) = (each for each in found.judged if each.checkpoint.function == name)
    what = judged.judgement.without().trace.lowerable()
    return stablehlo(lambda *given: list(what.run(given)), what.operands)


@pytest.mark.parametrize(
    ("program", "name"), [(p, name) for p, each in PROGRAMS.items() for name in each.names]
)
def test_what_is_compiled_is_what_the_code_without_it_is(program, name):
    made = PROGRAMS[program]
    args = made.inputs(16)
    by_hand = differentiated(program, made.without(name), args)
    assert to_compile(made.whole(), args, name) == stablehlo(by_hand, args)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_variant_without_checkpoints_is_what_the_code_without_them_is(program):
    made = PROGRAMS[program]
    args = made.inputs(16)
    variants = subject(Question(made.whole(), args, on=parse_place("cpu"))).variants()
    sites = [place for place in variants.places() if place.kind == "checkpoint"]
    what = variants.variant({site: (None,) * site.calls for site in sites}).trace.lowerable()
    by_hand = differentiated(program, made.build(frozenset()), args)
    lowered = stablehlo(lambda *given: list(what.run(given)), what.operands)
    assert lowered == stablehlo(by_hand, args)


def test_what_is_compiled_without_a_hidden_checkpoint():
    args = (f32(8, 8),)
    by_hand = differentiated("hidden", hidden(False), args)
    assert to_compile(hidden(True), args, "inner") == stablehlo(by_hand, args)


# -- what is asked, and what stays unconfirmed ------------------------------------------------


def three(w, x):
    x = jax.checkpoint(middle)(x[:32], w) + jax.checkpoint(big)(x, w)[:32]
    return jnp.sum(jax.checkpoint(small)(x[:16], w) ** 2)


def big(x, w):
    return jnp.sin(jnp.sin(jnp.sin(x @ w)))


def middle(x, w):
    return jnp.sin(jnp.sin(jnp.sin(x @ w)))


def small(x, w):
    return jnp.sin(jnp.sin(jnp.sin(x @ w)))


ARGS = (f32(16, 16), f32(64, 16))


class Asked:
    """What stands for the compiles of one answer.

    Args:
      peaks: by the name of a checkpoint, or `as-written`, the peak of the program without it; an
        error; or None where it was not asked.
    """

    def __init__(self, peaks):
        self.peaks, self.names, self.settings = peaks, [], CompileSettings()

    def __call__(self, place, settings, **options):
        self.limit_s = options.get("limit_s", COMPILE_SECONDS)
        return self

    def compiled(self, programs):
        self.names = [program.policy for program in programs]
        return tuple(self.row(name.split()[1 if " " in name else 0]) for name in self.names)

    def row(self, name):
        found = self.peaks[name]
        if found is None:
            return None
        known = {"error": found} if isinstance(found, str) else {"peak_nbytes": found}
        return Compiled("tpu:v5e", name, **known)


@pytest.fixture
def asked(monkeypatch):
    def made(**peaks):
        fake = Asked({name.replace("_", "-"): nbytes for name, nbytes in peaks.items()})
        monkeypatch.setattr(module, "LimitedCompiles", fake)
        return fake

    return made


def confirm(*args, on="tpu:v5e", checkpoints=True, **options):
    found = inspection(Question(*args, on=parse_place(on)))
    compiles = module.LimitedCompiles(found.subject.place, CompileSettings(), **options)
    report = confirmed(found, compiles, checkpoints=checkpoints).report
    return report, {c.function: c for c in report.checkpoints}


def test_the_checkpoints_that_drop_most_are_asked_about(asked, monkeypatch):
    monkeypatch.setattr(module, "MOST_CHECKPOINTS", 2)
    fake = asked(as_written=9 * MIB, big=10 * MIB, middle=5 * MIB)
    report, found = confirm(three, ARGS, limit_s=7)
    names = [name.split(" at ")[0] for name in fake.names]
    assert names == ["as-written", "without big", "without middle"]
    assert fake.names[1].startswith("without big at tests/advice/test_compiled_verdicts.py:")
    assert report.compiled[0].peak_nbytes == 9 * MIB
    assert (found["big"].by, found["big"].peak_without_nbytes) == ("xla", 10 * MIB)
    assert found["big"].verdict == Verdict.EARNS
    assert found["middle"].verdict == Verdict.COSTS_MEMORY
    assert found["small"].by == "estimate"
    assert found["small"].unconfirmed == "only the 2 that drop most are compiled"


def test_what_was_not_compiled_is_named(asked):
    asked(as_written=9 * MIB, big=None, middle="no libtpu", small=9 * MIB)
    before = jaxresid.inspect(three, on="tpu:v5e")(*ARGS)
    _, found = confirm(three, ARGS, limit_s=7)
    late = "took longer than 7 s, which is all the time that compiling may take"
    assert found["big"].unconfirmed == f"the program without it was not compiled: {late}"
    assert found["middle"].unconfirmed == "the program without it was not compiled: no libtpu"
    assert (found["small"].by, found["small"].unconfirmed) == ("xla", "")
    for c in before.checkpoints:
        if c.function != "small":
            assert (found[c.function].verdict, found[c.function].reason) == (c.verdict, c.reason)


def test_without_the_program_as_written_there_is_no_verdict(asked):
    asked(as_written=None, big=1, middle=1, small=1)
    report, found = confirm(three, ARGS, limit_s=7)
    late = "took longer than 7 s, which is all the time that compiling may take"
    assert [(c.on, c.error) for c in report.compiled] == [("tpu:v5e", late)]
    assert {c.unconfirmed for c in found.values()} == {
        f"the program with it was not compiled: {late}"
    }


def test_on_a_cpu_the_verdict_is_xlas_or_there_is_none(asked):
    asked(as_written=9 * MIB, big=20 * MIB, middle=None, small=9 * MIB)
    _, found = confirm(three, ARGS, on="cpu")
    assert (found["big"].verdict, found["big"].estimated) == (Verdict.EARNS, None)
    assert found["middle"].verdict == Verdict.NOT_JUDGED
    fake = asked(as_written=9 * MIB)
    _, found = confirm(three, ARGS, on="cpu", checkpoints=False)
    assert fake.names == ["as-written"]
    assert {c.unconfirmed for c in found.values()} == {""}


def test_a_violation_says_whose_figures_it_has(asked):
    asked(as_written=9 * MIB, big=5 * MIB, middle=9 * MIB, small=None)
    _, found = confirm(three, ARGS, limit_s=7)
    costly = verdict_finding(found["big"])
    assert costly.name == "costly-checkpoint"
    assert "; XLA's peak rises from 5.00 MiB to 9.00 MiB; " in costly.message
    assert costly.measured["by"] == "xla"
    estimated = found["big"].estimated.verdict
    assert costly.measured["estimated_verdict"] == str(estimated)
    assert ("; by the estimate it " in costly.message) == (estimated != Verdict.COSTS_MEMORY)
    before = jaxresid.inspect(three, on="tpu:v5e")(*ARGS)
    for c in before.checkpoints:
        said = verdict_finding(c)
        assert said is None or "by" not in said.measured


# -- progress ---------------------------------------------------------------------------------


def test_what_is_done_is_a_line_where_there_is_no_terminal(capsys):
    with showing_progress("tracing") as say:
        say("compiling none, 0 of 2 done, 1 s")
        say(Done("compiled none, 1 of 2 done, 1 s"))
    said = "jaxresid: tracing\njaxresid: compiled none, 1 of 2 done, 1 s\n"
    assert capsys.readouterr().err == said
    with showing_progress("tracing", quiet=True) as say:
        say(Done("compiled none, 1 of 2 done, 1 s"))
    assert capsys.readouterr() == ("", "")
