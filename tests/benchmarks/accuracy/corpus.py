"""The programs that the peak estimate is fitted and judged with.

    python -m tests.benchmarks.accuracy.corpus [TEXT]     lists those whose name contains TEXT

`PROGRAMS` holds, in the order in which they are compiled: random models (`random_models.py`), the
models of `tests/benchmarks/zoo.py`, and those of `fixtures/inspect/` around Flax linen, Flax nnx,
Equinox and optax, at the size of a real training; then programs without a gradient
(`forward_programs.py`) and of second order (`second_order_programs.py`,
`judging_second_order_programs.py`). Those around a library are
there where it is installed: flax, optax, equinox, dm-haiku, gymnax, numpyro, blackjax, diffrax,
optimistix, lineax, jaxopt, jax-md and jax-cfd. Each takes gigabytes, since a TPU keeps what is
small on the chip. A name is `family/.../placement`: programs that differ in what follows the last
slash compute the same with other checkpoints; `split.py` parts families.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.benchmarks import zoo
from tests.benchmarks.accuracy import (
    forward_programs,
    judging_second_order_programs,
    random_models,
    second_order_programs,
)
from tests.benchmarks.accuracy.split import set_of

SEEDS = range(120)
# Added when the test set among the first had been scored: what is unseen after that.
LATER_SEEDS = range(120, 220)
FIXTURES = Path(__file__).parents[3] / "fixtures/inspect"


@dataclass(frozen=True, slots=True)
class Program:
    """A function to differentiate, or a training step, and its abstract inputs.

    Attributes:
      name: `zoo:mha/scan/dots`, `random:17/none`, `linen:scan/remat`.
      is_checkpointed: whether it has a checkpoint.
      build: makes the function and its inputs.
      options: the options of `jaxresid.inspect`.
      text: what it is, where its name does not say.
    """

    name: str
    is_checkpointed: bool
    build: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    options: dict[str, Any]
    text: str = ""

    @property
    def family(self) -> str:
        """The name by which it is in a set."""
        return self.name.partition("/")[0]

    @property
    def model(self) -> str:
        """The name without the placement of checkpoints: programs that compute the same."""
        return self.name.rpartition("/")[0]

    @property
    def set(self) -> str:
        """The set that it is in: `fit`, `conform`, `test`."""
        return set_of(self.family)


def _random(which: int, seeds: Iterable[int] = SEEDS) -> Iterator[Program]:
    for seed in seeds:
        model = random_models.model(seed)
        placement = model.placements[which]
        yield Program(
            f"random:{seed}/{placement.replace(' ', '-')}",
            placement != "none",
            functools.partial(model.build, placement),
            {"mode": "program"} if model.is_step else {"mode": "loss", "argnums": 0},
            model.text,
        )


def _zoo(core: bool) -> Iterator[Program]:
    for case in zoo.CASES:
        if case.core == core:
            yield Program(
                f"zoo:{case.name}",
                case.policy != "none",
                functools.partial(case.build, "tpu"),
                {"mode": "loss"},
            )


# --- around libraries ------------------------------------------------------------------------

# The constants of a fixture, as large as in a real training.
_SIZES = (
    "BATCH, LENGTH, WIDTH, HEADS, LAYERS, VOCAB = 16, 512, 1024, 8, 6, 16384",
    "LAYERS, VOCABULARY, WIDTH, HEADS, SEQUENCE, BATCH = 6, 16384, 1024, 8, 512, 16",
    "WIDTH, BATCH, LAYERS = 2048, 16384, 4",
)
_MODELS = ("linen_model", "nnx_model", "equinox_model")
# A loss of the fixtures -> the form and the placement.
_LOSSES = {
    "loss": "looped/none",
    "loss_remat": "looped/nothing",
    "loss_library": "library/none",
    "loss_dropout": "dropout/none",
    "loss_scan": "scan/none",
    "loss_scan_remat": "scan/nothing",
    "loss_scan_names": "scan/names",
}
_STEPS = (
    ("train_step", "train_step", "adam/none"),
    ("train_step", "train_step_checkpointed", "adam/nothing"),
    ("train_step", "train_step_donated", "adam-donated/none"),
    ("train_step", "train_step_accumulated", "adam-accumulated/none"),
    ("train_step", "train_step_optax", "optax/none"),
    ("optimizer", "step", "optax-wide/none"),
    ("optimizer", "donated_step", "optax-wide-donated/none"),
    ("nnx_steps", "train_step_functional", "nnx/nothing"),
)


@functools.cache
def _enlarged(name: str) -> types.ModuleType:
    """Return a module of fixtures/inspect with the sizes of a real training."""
    file = FIXTURES / f"{name}.py"
    text = file.read_text(encoding="utf-8")
    for line in _SIZES:
        names = line.partition(" = ")[0]
        text = re.sub(rf"^{names} = .*$", line, text, flags=re.MULTILINE)
    text = text.replace("layers=1", "layers=4")
    module = types.ModuleType(f"enlarged_{name}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # dataclasses look theirs up
    exec(compile(text, str(file), "exec"), module.__dict__)
    return module


def _fixture(module: str, function: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    found = _enlarged(module)
    return getattr(found, function), getattr(found, f"{function}_inputs")()


def _libraries() -> Iterator[Program]:
    for module, (loss, rest) in itertools.product(_MODELS, _LOSSES.items()):
        library = module.removesuffix("_model")
        if not _is_installed("flax" if library in ("linen", "nnx") else library):
            continue
        if (library, loss) == ("linen", "loss_remat"):
            continue
        form, _, placement = rest.partition("/")
        yield Program(
            f"{library}-{form}/{placement}",
            placement != "none",
            functools.partial(_fixture, module, loss),
            {"mode": "loss"},
        )
    for module, function, rest in _STEPS:
        needed = "flax" if module == "nnx_steps" else "optax"
        if not _is_installed(needed) and ("optax" in rest or "nnx" in rest):
            continue
        form, _, placement = rest.partition("/")
        yield Program(
            f"step-{form}/{placement}",
            placement != "none",
            functools.partial(_fixture, module, function),
            {"mode": "program"},
        )


def _as_written(kind: str, programs: types.ModuleType) -> Iterator[Program]:
    of_libraries = programs.LIBRARY_PROGRAMS.items()
    here = {name: build for name, (package, build) in of_libraries if _is_installed(package)}
    for name, build in (programs.PROGRAMS | here).items():
        yield Program(f"{kind}:{name}", False, build, {"mode": "program"})


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _in_turn(*parts: Iterator[Program]) -> Iterator[Program]:
    for each in itertools.zip_longest(*parts):
        yield from (program for program in each if program is not None)


PROGRAMS: tuple[Program, ...] = (
    *_in_turn(_random(0), _zoo(True), _libraries()),
    *_in_turn(_random(1), _zoo(False)),
    *_in_turn(_random(0, LATER_SEEDS), _random(1, LATER_SEEDS)),
    *_as_written("forward", forward_programs),
    *_as_written("second-order", second_order_programs),
    *_as_written("judging-second-order", judging_second_order_programs),
)


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for each in PROGRAMS:
        if wanted in each.name:
            print(f"{each.set:8} {each.name:36} {each.text}")
