"""Runs in a target's own environment: what JAX and XLA say of it, and what jaxresid's commands do.

    python tests/zoo/probe.py commands TARGET.json OUT.json
    python tests/zoo/probe.py facts TARGET.json OUT.json
    python tests/zoo/probe.py removal TARGET.json OUT.json

Written for whatever JAX that is; nothing of jaxresid but its command line is used, and by `facts`
and `removal` not even that. The target's module has, beside what a user would write,

- `trees` (or what the list names): the parameters, the optimizer's state and the batch of a step;
- `objective`: the function that a step differentiates, with its arguments; the first is what it is
  differentiated by.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import math
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

# How many checkpoints of a program are really removed.
REMOVED = 10


def main() -> None:
    what, given, out = sys.argv[1:]
    target = json.loads(Path(given).read_text())
    found = {"commands": commands, "facts": facts, "removal": removal}[what](target)
    Path(out).write_text(json.dumps(found))


# --- jaxresid's commands --------------------------------------------------------------------------


def commands(target):
    """Every command, or those asked for, in one process; what `report` and `check` say."""
    name = target["target"]
    mode = ["--mode", target["mode"]] if target["mode"] != "auto" else []
    options = target["options"]
    found = {"ran": [], "report": None, "report_cpu": None, "findings": None}

    def ran(*argv):
        started = time.time()
        done = _run([*map(str, argv), *options])
        done["seconds"] = round(time.time() - started, 1)
        found["ran"].append({k: v for k, v in done.items() if k != "out"})
        return done

    def decoded(command, *more):
        done = ran(command, name, *mode, "-f", "json", *more)
        with contextlib.suppress(ValueError):
            return json.loads(done["out"])

    chosen = target["commands"]
    if not chosen or "report" in chosen:
        found["report_cpu"] = decoded("report", "--on", "cpu", "--compile", "--compile-time", "10m")
    if not chosen or {"report", "plan"} & {*chosen}:
        found["report"] = decoded("report")
    if not chosen or "check" in chosen:
        found["findings"] = decoded("check")
    peak = found["report"]["peak"]["nbytes"] if found["report"] else 1 << 20
    on = ("--on", "cpu")
    every = {
        "report": ("report", name, *mode),
        "check": ("check", name, *mode),
        "split": ("split", name, *mode, "--max-eqns", 50),
        "compare": ("compare", name, *mode),
        "plan": ("plan", name, *mode, "--budget", f"{int(0.6 * peak)}B"),
        "compile": ("compile", name, *mode, *on),
        "sweep": ("sweep", name, *mode, *on, "--policy", "as-written"),
    }
    for command, argv in every.items():
        if not chosen or command in chosen:
            ran(*argv)
    return found


def _run(argv):
    from jaxresid.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    code = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(argv)
        except BaseException:
            traceback.print_exc()
    return {
        "command": " ".join(argv),
        "code": code,
        "out": out.getvalue(),
        "err": _short(err.getvalue()),
        "problem": _problem(code, out.getvalue() + err.getvalue()),
    }


def _short(text, limit=1500):
    return text if len(text) < limit else text[: limit // 2] + " ... " + text[-limit // 2 :]


def _problem(code, text):
    """What is wrong with how a command ended; None where nothing is."""
    for bad in ("internal error", "Traceback (most recent call last)", "bug in jaxresid"):
        if bad in text:
            lines = [line.strip() for line in text.splitlines() if bad in line]
            return f"{lines[0]} ... {text.strip().splitlines()[-1]}"[:400]
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code == 2 and "error: " not in text.lower():
        return "exit code 2 without a message"
    return None


# --- what JAX says --------------------------------------------------------------------------------


def _module(target):
    path, _, function = target["target"].rpartition(":")
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module, getattr(module, function), getattr(module, target["inputs"])


def facts(target):
    """The bytes of a step's trees; the leaves of the real `jax.vjp` under jit."""
    import jax

    module, fun, inputs = _module(target)
    found = {"jax": jax.__version__}
    if target["trees"]:
        found["trees"] = _bytes_of(getattr(module, target["trees"]))
    if target["objective"]:
        of, args = getattr(module, target["objective"])()
        first, *rest = args
        found |= _leaves(lambda first, rest: of(first, *rest), first, rest)
    elif not target["is_step"]:
        found |= _leaves(*_by_every_float(fun, inputs()))
    return found


def _bytes_of(make):
    """Bytes of the arrays of each tree, and of its numbers, which `jax.jit` makes arrays of."""
    import jax
    import jax.numpy as jnp

    roles = []

    def arrays():
        made = make()
        roles.extend(made)
        trees = [filter(_is_traced, jax.tree.leaves(tree)) for tree in made.values()]
        return [list(map(jnp.asarray, leaves)) for leaves in trees]

    try:
        found = jax.eval_shape(arrays)
    except Exception:  # a model that is made plainly
        roles.clear()
        found = arrays()
    return {role: sum(map(_nbytes, leaves)) for role, leaves in zip(roles, found, strict=True)}


def _is_traced(leaf):
    return hasattr(leaf, "dtype") or isinstance(leaf, int | float)


def _nbytes(leaf):
    return math.prod(leaf.shape) * leaf.dtype.itemsize


def _by_every_float(fun, args):
    """A function of the float and complex leaves alone, and of the others."""
    import jax
    import jax.numpy as jnp

    args = tuple(args) if isinstance(args, tuple | list) else (args,)
    flat, tree = jax.tree.flatten(args)
    is_float = [hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact) for x in flat]
    is_other = [hasattr(x, "dtype") and not f for x, f in zip(flat, is_float, strict=True)]

    def of(floats, others):
        floats, others = iter(floats), iter(others)
        leaves = [
            next(floats) if f else next(others) if o else x
            for x, f, o in zip(flat, is_float, is_other, strict=True)
        ]
        return fun(*tree.unflatten(leaves))

    def picked(which):
        return [x for x, w in zip(flat, which, strict=True) if w]

    return of, picked(is_float), picked(is_other)


def _leaves(of, first, rest):
    """`leaves`: [dtype, shape, bytes, how often, how often of these in a step] of what `jax.vjp`
    keeps; `constants`: [dtype, shape, bytes, how often] of those in a step that no input has a
    part in and no eqn makes: JAX may give each pass its own.

    A step holds forward and backward pass. A leaf that no backward operation reads is gone there,
    and a literal (the 2.0 of `2.0 * x`), which takes memory only where it leaves a jitted forward
    pass, is written where it is read.
    """
    import jax

    @jax.jit
    def forward(first, rest):
        out, pulled = jax.vjp(lambda f: of(f, rest), first)
        return pulled, out

    pulled, out = jax.eval_shape(forward, first, rest)
    leaves = jax.tree.leaves(pulled)
    outvars = forward.trace(first, rest).jaxpr.jaxpr.outvars
    is_literal = [hasattr(v, "val") for v in outvars[: len(leaves)]]
    is_constant = _constant(forward.trace(first, rest).jaxpr, ())
    read = set(range(len(leaves)))
    with contextlib.suppress(Exception):  # what jit tells of unused arguments is private
        backward = jax.jit(lambda pulled, ct: pulled(ct)).lower(pulled, out)
        read = set(backward._lowering.compile_args["kept_var_idx"])
    all_, used, constants = Counter(), Counter(), Counter()
    for i, leaf in enumerate(leaves):
        row = str(leaf.dtype), tuple(leaf.shape), _nbytes(leaf)
        all_[row] += 1
        used[row] += i in read and not is_literal[i]
        constants[row] += i in read and not is_literal[i] and is_constant[i]
    return {
        "leaves": [[d, list(s), n, all_[d, s, n], used[d, s, n]] for d, s, n in all_],
        "constants": [[d, list(s), n, count] for (d, s, n), count in constants.items() if count],
    }


def _constant(closed, given):
    """For each output of a jaxpr whether it is a constant, a literal, or one of these given."""
    jaxpr = getattr(closed, "jaxpr", closed)
    known = {
        *jaxpr.constvars,
        *(v for v, is_given in zip(jaxpr.invars, given, strict=False) if is_given),
    }

    def is_known(v):
        return hasattr(v, "val") or v in known

    for eqn in jaxpr.eqns:
        if "jaxpr" in eqn.params and eqn.primitive.name in ("jit", "pjit"):
            inner = _constant(eqn.params["jaxpr"], [is_known(v) for v in eqn.invars])
            known |= {v for v, is_constant in zip(eqn.outvars, inner, strict=True) if is_constant}
    return [is_known(v) for v in jaxpr.outvars]


# --- a checkpoint really removed ------------------------------------------------------------------


def removal(target):
    """What XLA:CPU says of the target with each checkpoint row of its report gone.

    `jax.checkpoint` is replaced before any library is imported; a call of what it returns is a
    checkpoint that belongs to a row if the row's line is where the call or the definition stands.
    """
    rows = target["rows"][:REMOVED]
    calls = _Calls()
    calls.install()
    _, fun, inputs = _module(target)
    args = inputs()
    found = {"rows": []}
    written, lines = calls.compiled(fun, args, target, ())
    found["temp"] = written
    found["sites"] = len(lines)
    for row in rows:
        mine = [c for c in lines if _belongs(c, row, target["rows"])]
        if not mine:
            found["rows"].append({**row, "temp_without": None})
            continue
        without, _ = calls.compiled(fun, args, target, mine)
        found["rows"].append({**row, "temp_without": without, "calls_removed": len(mine)})
    return found


class _Calls:
    """`jax.checkpoint` with an eye on who calls it, and which calls are left out."""

    def __init__(self):
        self.seen = {}
        self.removed = ()

    def install(self):
        import functools

        import jax
        import jax.ad_checkpoint

        real = jax.checkpoint

        def checkpoint(fun=None, **options):
            if fun is None:
                return functools.partial(checkpoint, **options)
            made = real(fun, **options)

            @functools.wraps(fun, updated=())
            def called(*args, **kwargs):
                key = self.key(fun)
                self.seen[key] = None
                if key in self.removed:
                    return fun(*args, **kwargs)
                return made(*args, **kwargs)

            return called

        for owner in [m for m in list(sys.modules.values()) if m is not None]:
            for name in ("checkpoint", "remat", "checkpoint_wrapper"):
                with contextlib.suppress(Exception):
                    if getattr(owner, name, None) is real:
                        setattr(owner, name, checkpoint)

    @staticmethod
    def key(fun):
        """(names, where it is defined, the lines that lead to the call)."""
        import inspect

        plain = fun
        names = []
        while True:
            names.append(getattr(plain, "__name__", type(plain).__name__))
            names.append(getattr(plain, "__qualname__", ""))
            if not hasattr(plain, "__wrapped__") and not hasattr(plain, "func"):
                break
            plain = getattr(plain, "__wrapped__", None) or plain.func
        code = getattr(plain, "__code__", None)
        defined = (code.co_filename, code.co_firstlineno) if code else None
        frames = []
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code.co_filename != __file__:
                frames.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        return tuple(names), defined, tuple(frames)

    def compiled(self, fun, args, target, removed):
        """Bytes of XLA:CPU's temporaries, and the calls of checkpoints that were seen."""
        import jax

        self.removed, self.seen = set(removed), {}
        jax.clear_caches()
        if target["mode"] == "program" or target["is_step"]:
            lower = _lowered_step(fun, args)
        else:
            of, first, rest = _by_every_float(fun, args)

            def value(first, rest):
                out = of(first, rest)
                leaves = jax.tree.leaves(out)
                return leaves[0].sum().real, leaves[1:]

            lower = jax.jit(jax.value_and_grad(value, has_aux=True)).lower(first, rest)
        made = lower.compile()
        made = getattr(made, "compiled", made)  # Equinox has one of its own around JAX's
        return made.memory_analysis().temp_size_in_bytes, tuple(self.seen)


def _lowered_step(fun, args):
    import jax

    plain = fun
    if hasattr(fun, "lower"):  # jax.jit, nnx.jit, eqx.filter_jit
        return fun.lower(*args)
    flat, tree = jax.tree.flatten(tuple(args))
    is_array = [hasattr(x, "dtype") for x in flat]

    def of(arrays):
        arrays = iter(arrays)
        leaves = [next(arrays) if a else x for x, a in zip(flat, is_array, strict=True)]
        out = plain(*tree.unflatten(leaves))
        return [x for x in jax.tree.leaves(out) if hasattr(x, "dtype")]

    return jax.jit(of).lower([x for x, a in zip(flat, is_array, strict=True) if a])


def _belongs(call, row, rows):
    names, defined, frames = call
    place = row["location"]
    if place is None:
        return False
    file = os.path.realpath(place["file"])
    lines = {(os.path.realpath(f), n) for f, n in (*frames, *([defined] if defined else []))}
    if (file, place["line"]) not in lines and not any(
        f == file and abs(n - place["line"]) <= 1 for f, n in [defined] if defined
    ):
        return False
    beside = [r for r in rows if r["location"] == place]
    if len(beside) == 1:
        return True
    return any(row["function"] in name for name in names)


if __name__ == "__main__":
    main()
