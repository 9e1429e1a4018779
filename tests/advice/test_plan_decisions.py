"""What decides within a plan, each by itself: weights of options, the next configuration, warnings.

Without a trace, but for the state in host memory.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxresid import jax_compat
from jaxresid.advice.plan.drafts import Drafts
from jaxresid.advice.plan.joint import joint
from jaxresid.advice.plan.lower_bound.host_state import with_host_state
from jaxresid.advice.plan.search.options import Option
from jaxresid.advice.plan.search.search import Search
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.choices import Choice

# -- the weights and costs of the options of one place ---------------------------------------------


def tried(kept_nbytes, cost):
    return SimpleNamespace(variant=SimpleNamespace(kept_nbytes=kept_nbytes), cost=cost)


NONE, NOTHING, DOTS = Option(None), Option(Choice(None)), Option(Choice("dots"), "dots")
BY_NAME, BARE = (
    Option(Choice(None), nbytes=30, cost=4.0),
    Option(Choice(None), nbytes=0, cost=9.0),
)
MENU = SimpleNamespace(place="layer", plain=NONE, by_policy=(NOTHING, DOTS), front=(BY_NAME, BARE))
PLAIN = tried(100, 2.0)


def weighed(results, plain=PLAIN):
    search = SimpleNamespace(trial=lambda chosen: results.get(chosen["layer"]))
    return Search._weighed(search, MENU, plain)


def test_what_an_option_keeps_is_weighed_beside_no_checkpoint():
    results = {NOTHING: tried(20, 12.0), DOTS: tried(60, 5.0)}
    assert weighed(results) == [
        (NONE, 0.0, 0.0),
        (NOTHING, -80.0, 10.0),
        (DOTS, -40.0, 3.0),
        (BY_NAME, -80.0 + 30, 4.0),
        (BARE, -80.0, 9.0),
    ]


def test_what_cannot_be_traced_has_no_weight():
    assert [row[0] for row in weighed({NOTHING: tried(20, 12.0)})] == [NONE, NOTHING, BY_NAME, BARE]
    assert weighed({DOTS: tried(60, 5.0)}) == [(NONE, 0.0, 0.0)]
    assert weighed({NOTHING: tried(20, 12.0)}, plain=None) == [(NONE, 0.0, 0.0)]


# -- whether another configuration may lead to a better plan ---------------------------------------


def solved(found, shown):
    """A configuration whose search found a score, and whose plan has another."""
    best = None if found is None else SimpleNamespace(score=found)
    return SimpleNamespace(
        best=best, score=lambda tried: (tried.score, 0.0), shown_score=lambda: (shown, 0.0)
    )


def draft(shown, *, is_within=True, is_untraced=False):
    plan = SimpleNamespace(is_within=is_within, is_untraced=is_untraced)
    return solved(shown, shown), (plan, ())


COMPILES, OVER = SimpleNamespace(is_over=False), SimpleNamespace(is_over=True)


@pytest.mark.parametrize(
    ("found", "drafts", "compiles", "expected"),
    [
        (1.0, [draft(2.0)], None, True),
        (2.0, [draft(2.0)], None, False),
        (2.0 * (1 - joint.AS_GOOD / 2), [draft(2.0)], None, False),  # as good
        (2.0 * (1 - joint.AS_GOOD * 2), [draft(2.0)], None, True),
        (1.5, [draft(2.0), draft(1.0)], None, False),  # than the best of them
        (None, [draft(2.0)], None, False),  # nothing of it fits
        (9.0, [draft(2.0, is_within=False)], COMPILES, True),  # the compiler refutes what there is
        (9.0, [draft(2.0, is_within=False)], None, False),  # no compiler was asked
        (1.0, [draft(2.0)], OVER, False),
        (9.0, [draft(2.0, is_within=False), draft(3.0)], COMPILES, False),
        (9.0, [draft(2.0, is_untraced=True)], None, True),
        (9.0, [draft(2.0, is_untraced=True)] * joint._MOST_UNTRACED, None, False),
        (9.0, [draft(2.0, is_untraced=True), draft(3.0)], None, False),
    ],
)
def test_when_another_configuration_is_drafted(found, drafts, compiles, expected):
    assert joint._may_be_better(solved(found, None), drafts, compiles) is expected


def test_what_the_compiler_refutes_comes_after_what_could_not_be_traced():
    refuted, untraced = draft(1.0, is_within=False), draft(3.0, is_untraced=True)
    assert joint._best([refuted, untraced], COMPILES) is untraced
    assert joint._best([refuted, untraced], None) is refuted


# -- the warning of a cheaper plan that was left out -----------------------------------------------


def drafted(peak_nbytes=0, recompute_flops=0, doubt=None):
    figures = SimpleNamespace(peak_nbytes=peak_nbytes, recompute_flops=recompute_flops)
    return SimpleNamespace(figures=figures, doubt=doubt)


def remarks(left_out, decided, plain_flops=1000):
    plain = SimpleNamespace(cost=SimpleNamespace(flops=plain_flops))
    drafts = Drafts(None, None, (), plain, None, print)
    drafts._left_out = left_out
    return [*drafts.remarks(decided, plain)]


def test_a_plan_that_could_not_be_verified_is_told_of():
    first, second = drafted(2**21, 250, "no file"), drafted(2**22, 500, "a lambda")
    expected = (
        "rejected: a plan with a peak of 2.00 MiB for 25.0% more FLOPs, as it could not be"
        " verified: no file"
    )
    assert remarks([first, second], drafted()) == [expected]
    assert remarks([first], drafted(), plain_flops=0) == [expected.replace("25.0%", "0.0%")]


def test_nothing_is_told_where_the_plan_itself_is_what_was_left_out():
    first, second = drafted(2**21, 250, "no file"), drafted(2**22, 500, "a lambda")
    assert remarks([], drafted()) == []
    assert remarks([first], first) == []
    assert remarks([first, second], second) == []


# -- the parts that an update of state in host memory is taken apart into --------------------------


def momentum_step(params, momenta, squares, x):
    def loss(params):
        return jnp.sum(jnp.tanh(x @ params[0]) @ params[1])

    gradients = jax.grad(loss)(params)
    momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
    squares = 0.9 * squares + gradients[0] ** 2  # of the first alone
    first = params[0] - 0.1 * momenta[0] / jnp.sqrt(squares)
    return [first, params[1] - 0.1 * momenta[1]], momenta, squares


@pytest.mark.skipif(not jax_compat.tells_memory(), reason="JAX does not tell what is on the host")
def test_each_array_of_state_is_fetched_with_what_it_is_updated_with():
    arrays = [jnp.zeros((8, 16)), jnp.zeros((16, 24))]
    inputs = arrays, arrays, arrays[0], jnp.zeros((4, 8))
    moved = with_host_state(subject(Question(momentum_step, inputs, on="gpu:h100")).trace)
    assert moved.paths == ("momenta[0]", "momenta[1]", "squares")
    assert moved.count == 2
    assert moved.part == 16 * 24 / (2 * 8 * 16 + 16 * 24)
