"""Plans that may offload: against every treatment of four named values, traced one by one."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxresid.advice.plan.plan import Planning, Terms
from jaxresid.advice.timing.chips import chip_of
from jaxresid.advice.timing.roofline import seconds
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.candidates import offloading, saving
from jaxresid.inspector.variants.choices import Choice, everywhere

NAMES = ("a", "b", "c", "d")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        jax.__version_info__ < (0, 7, 1),
        reason="avals of JAX 0.7.0 do not tell what is on the host",
    ),
]


def struct(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def elementwise(params, x):
    """Values of one size: what is made again takes more room than what is brought back."""

    def layer(x, w):
        a = checkpoint_name(jnp.sin(x * 1.5 + 0.1), "a")
        b = checkpoint_name(jnp.tanh(a) * a, "b")
        c = checkpoint_name(jnp.exp(-b * b), "c")
        d = checkpoint_name(jnp.sin(c) * b, "d")
        return x + d * w, None

    return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)


def products(params, x):
    """Two narrow values, the products of which take as long as the link takes for them."""

    def layer(x, w):
        a = checkpoint_name(x @ w["up"], "a")
        b = checkpoint_name(jnp.tanh(a) @ w["down"], "b")
        c = checkpoint_name(jnp.sin(b) @ w["again"], "c")
        d = checkpoint_name(jnp.tanh(c) @ w["out"], "d")
        return x + jnp.sin(d), None

    x, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(x.astype(jnp.float32) ** 2)


NARROW, WIDE = 512, 16384
UP, DOWN = struct(4, NARROW, WIDE), struct(4, WIDE, NARROW)
PROGRAMS = {
    "elementwise": (
        elementwise,
        (struct(4, 256, dtype=jnp.float32), struct(8192, 256, dtype=jnp.float32)),
    ),
    "products": (
        products,
        ({"up": UP, "down": DOWN, "again": UP, "out": DOWN}, struct(4096, NARROW)),
    ),
}
TREATMENTS = [*itertools.product(("again", "save", "offload"), repeat=len(NAMES))]


class Everything:
    """Every treatment of the four values, and no checkpoint."""

    def __init__(self, name):
        fun, inputs = PROGRAMS[name]
        self.subject = subject(Question(fun, inputs, argnums=0, mode="loss", on="gpu:h100"))
        self.chip = chip_of(self.subject.place)
        variants = self.subject.variants()
        (place,) = [p for p in variants.places() if p.kind == "scan"]
        self.made = {("plain",): variants.variant({})}
        for kinds in TREATMENTS:
            saved, moved = (
                [n for n, kind in zip(NAMES, kinds, strict=True) if kind == one]
                for one in ("save", "offload")
            )
            made = offloading(saved, moved) if moved else saving(saved) if saved else None
            choice = Choice(made.policy if made else None)
            self.made[kinds] = variants.variant({place: everywhere(place, choice)})

    def budgets(self):
        """Return the lowest peak, and one between it and the highest."""
        peaks = sorted({made.peak_nbytes for made in self.made.values()})
        return peaks[0], peaks[len(peaks) // 3]

    def best(self, budget, chip):
        """Return the treatments that take the least time of those that fit, and that time."""
        times = {
            kinds: seconds(made.lowered, chip).total
            for kinds, made in self.made.items()
            if made.peak_nbytes <= budget
        }
        least = min(times.values())
        return [kinds for kinds, each in times.items() if each == least], least

    def planned(self, budget, chip):
        planning = Planning(self.subject, Terms(budget, "time", chip, True), lambda _: None)
        planning.search.run()
        found = planning.search.best()
        assert found is not None, "something fits"
        return found, planning.objective


def test_a_plan_is_as_fast_as_the_best_of_all_treatments():
    every = Everything("elementwise")
    lowest, more = every.budgets()
    best, _ = every.best(lowest, every.chip)
    assert all("offload" in kinds for kinds in best)
    for budget in (lowest, more):
        _, least = every.best(budget, every.chip)
        found, objective = every.planned(budget, every.chip)
        assert found.peak <= budget
        assert seconds(found.variant.lowered, every.chip).total <= least + objective.slack


def test_the_window_of_the_link_changes_the_plan():
    """What the link moves while the layer computes is free; over a slower link it is not."""
    every = Everything("products")
    lowest, _ = every.budgets()
    slower = replace(every.chip, host_rate=every.chip.host_rate / 16)
    moved = {}
    for chip in (every.chip, slower):
        best, least = every.best(lowest, chip)
        found, objective = every.planned(lowest, chip)
        took = seconds(found.variant.lowered, chip)
        assert found.peak <= lowest
        assert took.total <= least + objective.slack
        moved[chip.host_rate] = found.variant.host_nbytes
        if chip is every.chip:
            assert best == [("again", "offload", "again", "offload")]
            # All of it hidden: as long as the kernels alone.
            assert took.transfers > 100 * objective.slack
            free = seconds(found.variant.lowered, replace(chip, host_rate=1e18))
            assert took.total == pytest.approx(free.total)
    assert moved[slower.host_rate] != moved[every.chip.host_rate] > 0
