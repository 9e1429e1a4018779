"""Random programs to plan for, written as source text.

`source(seed)` is a module with a function `loss` and its inputs `loss_inputs`, the same for a seed
in every run. What they are made of is what plans write about: layers in Python loops, one by one
and under a flag; bodies of scans, maps and fori_loops; checkpoints in each form that people write;
arguments that are no arrays, bare and in trees; values with names; helpers that layers share.

    python -m tests.plan_programs 7     prints the program of seed 7
"""

from __future__ import annotations

import random
import sys

HEAD = """\
import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

cp = jax.checkpoint_policies


@dataclasses.dataclass(frozen=True)
class Config:
    act: str = "sin"
    depth: int = 2


def act(x, kind="tanh"):
    return jnp.sin(x) if kind == "sin" else jnp.tanh(x)


def norm(x):
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1.0)

"""

_POLICIES = (
    "",
    ", policy=cp.dots_saveable",
    ", policy=cp.everything_saveable",
    ', policy=cp.save_only_these_names("kept")',
)
# What a layer is given besides x and w: the parameter, and what is handed to it.
_EXTRAS = (
    ("", ""),
    ("", ""),
    (", train", ", True"),
    (", train", ", train"),
    (', kind="tanh"', ', kind="sin"'),
    (", cfg", ", CONFIG"),
    (", settings", ', {"act": "sin", "scale": w[0, 0]}'),
    (", fn", ", jnp.cos"),
    (", scale", ", 2.0"),
    (", extra=None", ""),
)


class _Writer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"plan {seed}")
        self.lines: list[str] = []
        self.layers: list[tuple[str, str, str]] = []  # the name, the arguments, the form

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def layer(self, name: str) -> None:
        parameter, given = self.random.choice(_EXTRAS)
        form = self.random.choice(["plain", "plain", "plain", "decorated", "assigned", "jitted"])
        is_static = parameter not in ("", ", extra=None")
        if is_static and form != "plain":
            form = "plain"
        policy = self.random.choice(_POLICIES)
        if form == "decorated":
            self.lines.append(
                f"@functools.partial(jax.checkpoint{policy})" if policy else "@jax.checkpoint"
            )
        if form == "jitted":
            self.lines.append("@jax.jit")
        self.lines.append(f"def {name}(x, w{parameter}):")
        for _ in range(self.random.randint(1, 3)):
            self.lines.append(f"    {self.statement(parameter)}")
        self.lines += [f"    return {self.random.choice(['x', 'x + norm(x)', 'x * x'])}", "", ""]
        called = name
        if form == "assigned":
            called = f"{name}_remat"
            self.lines += [f"{called} = jax.checkpoint({name}{policy})", "", ""]
        self.layers.append((called, given, form))

    def statement(self, parameter: str) -> str:
        choices = [
            "x = jnp.sin(x @ w)",
            "x = jnp.tanh(x @ w) @ w.T",
            'x = checkpoint_name(jnp.cos(x) @ w, "kept")',
            "x = act(norm(x))",
            'x = act(x @ w, "sin")',
            "x += jnp.exp(-x * x)",
            "h, g = jnp.sin(x), jnp.cos(x) * 2\n    x = h * g",
            "x = jax.nn.softmax(x) @ w",
            "x = jnp.where(x > 0, x, jnp.expm1(x))",
            "x = (lambda y: jnp.sin(y) * y)(x)",
            "x = sum([jnp.sin(x * k) for k in (1.0, 2.0)])",
        ]
        match parameter:
            case ", train":
                choices += ["x = jnp.sin(x * 2) if train else x"] * 6
            case ', kind="tanh"':
                choices += ["x = act(x, kind)"] * 6
            case ", cfg":
                choices += ["for _ in range(cfg.depth):\n        x = act(x @ w, cfg.act)"] * 6
            case ", settings":
                choices += ['x = act(x, settings["act"]) * settings["scale"]'] * 6
            case ", fn":
                choices += ["x = fn(x) @ w"] * 6
            case ", scale":
                choices += ["x = jnp.sin(x) * scale"] * 6
        return self.random.choice(choices)

    def stage(self, number: int) -> None:
        name, given, form = self.random.choice(self.layers)
        plain = form in ("plain", "jitted") and not given
        policy = self.random.choice(_POLICIES)
        made = self.random.choice(
            ["loop", "loop", "number", "scan", "scan", "body", "fori", "map", "remat", "two", "one"]
        )
        add = self.lines.append
        match made:
            case "loop":
                add(f"    for w in ws:\n        x = {name}(x, w{given})")
            case "number":
                add(f"    for i in range(3):\n        w = ws[i]\n        x = {name}(x, w{given})")
            case "scan":
                more = self.random.choice(["", ", unroll=2"])
                add(
                    f"    x, _ = jax.lax.scan(lambda x, w: ({name}(x, w{given}), None), x,"
                    f" jnp.stack(ws){more})"
                )
            case "body":
                add(f"    def body{number}(c, w):")
                add(f"        x, n = c\n        x = {name}(x, w{given})")
                add("        return (x, n + 1), x.sum()")
                body = f"body{number}"
                if self.chance(0.4):
                    body = f"jax.checkpoint({body}, prevent_cse=False{policy})"
                add(f"    (x, _), ys = jax.lax.scan({body}, (x, 0), jnp.stack(ws))")
                add("    x = x + ys.mean()")
            case "fori":
                add(f"    w = ws[{number % 3}]")
                add(f"    x = jax.lax.fori_loop(0, 4, lambda i, x: {name}(x, w{given}), x)")
            case "map":
                add(f"    w = ws[{number % 3}]")
                add(
                    f"    x = jax.lax.map(lambda x: {name}(x, w{given}), jnp.stack([x, x * 2]))"
                    ".mean(0)"
                )
            case "remat" if plain:
                add(f"    for w in ws:\n        x = jax.checkpoint({name}{policy})(x, w)")
            case "two":
                add(f"    for w in ws:\n        x = {name}(x, w{given})")
                add(f"        x = x + {name}(jnp.sin(x), w.T{given})")
            case _:
                add(f"    w = ws[{number % 3}]\n    x = {name}(x, w{given})")
                if self.chance(0.5):
                    add(f"    x = jnp.cos({name}(x * 2, w{given})) @ w")

    def source(self) -> str:
        for i in range(self.random.randint(1, 2)):
            self.layer(f"layer{i}")
        extra, given = self.random.choice(
            [("train", "True"), ("train", "True"), ("kind", '{"act": "sin"}'), ("train=True", "")]
        )
        self.lines += ["CONFIG = Config()", "", "", f"def loss(ws, x, {extra}):"]
        if extra == "kind":
            self.lines.append('    train = kind["act"] == "sin"')
        for i in range(self.random.randint(1, 2)):
            self.stage(i)
        self.lines += ["    return jnp.sum(x**2)", "", ""]
        self.lines += ["def loss_inputs():"]
        self.lines.append("    ws = [jax.ShapeDtypeStruct((8, 8), jnp.float32) for _ in range(3)]")
        inputs = ", ".join(
            ["ws", "jax.ShapeDtypeStruct((64, 8), jnp.float32)", *([given] if given else [])]
        )
        self.lines.append(f"    return {inputs}")
        return HEAD + "\n" + "\n".join(self.lines) + "\n"


def source(seed: int) -> str:
    """Return the program of a seed."""
    return _Writer(seed).source()


if __name__ == "__main__":
    print(source(int(sys.argv[1])))
