"""The compiles of one answer are limited in time and number, and equal programs count once."""

import jax
import jax.numpy as jnp
import pytest

from jaxresid.advice.compile.ahead_of_time import CompileSettings, program_as_written
from jaxresid.advice.compile.limited import LimitedCompiles
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.xla.places import parse_place

CPU = parse_place("cpu")


def program(scale, name):
    """A small program; one of another scale is another program."""

    def loss(x):
        return jnp.sum(jnp.sin(x * scale) ** 2)

    found = program_as_written(subject(Question(loss, (jax.ShapeDtypeStruct((64,), "float32"),))))
    return type(found)(name, found.trace, found.program, found.residuals)


def compiles(**options):
    return LimitedCompiles(CPU, CompileSettings(workers=1), **options)


@pytest.mark.integration
def test_what_is_asked_is_answered_in_order():
    asking = compiles()
    rows = asking.compiled([program(2.0, "two"), program(3.0, "three")])
    assert [row.policy for row in rows] == ["two", "three"]
    assert all(row.peak_nbytes > 0 and row.error is None for row in rows)
    assert (asking.count, asking.unconfirmed, asking.is_over) == (2, (), False)
    assert 0 < asking.left_s < 120


@pytest.mark.integration
def test_equal_programs_count_once_in_one_call_and_in_the_next():
    asking = compiles(most=2)
    # All are traced on one line, since a module holds the lines that it was traced from.
    a, b, c, d, e = [program(x, n) for x, n in zip((2, 2, 2, 3, 4), "abcde", strict=True)]
    first = asking.compiled([a, b])
    assert asking.count == 1
    again, other, more = asking.compiled([c, d, e])
    assert [row.policy for row in first] == ["a", "b"]
    assert (again.policy, again.peak_nbytes) == ("c", first[0].peak_nbytes)
    assert other.peak_nbytes and more is None
    assert asking.is_over and asking.unconfirmed == ("e",)


@pytest.mark.parametrize("limit_s", [0.0, 0.001])
def test_what_does_not_end_in_time_is_named(limit_s):
    asking = compiles(limit_s=limit_s)  # a compile takes 50 ms where a process waits for it
    assert asking.compiled([program(2.0, "slow")]) == (None,)
    assert asking.unconfirmed == ("slow",)
    assert asking.is_over and asking.left_s == 0


def test_a_program_without_figures_is_unconfirmed():
    asking = LimitedCompiles(CPU, CompileSettings(workers=1, timeout_s=0.001))
    (row,) = asking.compiled([program(2.0, "slow")])
    assert row.error == "took longer than 0.001 s"
    assert asking.unconfirmed == ("slow",) and not asking.is_over
