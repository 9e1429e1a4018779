"""Write a checkpoint where there is none: around a loop's body, calls of a function, a target."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from jaxresid.advice.plan.source.call_numbers import Part, chosen
from jaxresid.advice.plan.source.file_edits import FileRewrite, FileRewrites, UnwritableError
from jaxresid.advice.plan.source.locate import (
    calls_at,
    defining_library,
    is_called,
    last_name,
    module_library,
)
from jaxresid.advice.plan.source.observed_calls import ArgumentKinds, Kind
from jaxresid.base.violations import Edit, Span
from jaxresid.linter.fixes import edits
from jaxresid.linter.patterns import nn_modules as modules
from jaxresid.linter.resolve.facts import Facts
from jaxresid.linter.resolve.names import Definition
from jaxresid.results import Location

# The loops of jax.lax that become a scan. The others' bodies are their libraries' to checkpoint.
_SCANS = frozenset({"jax.lax.scan", "jax.lax.map", "jax.lax.fori_loop"})
# Annotations of what is no array.
_STATIC = frozenset({"bool", "int", "str", "Callable"})


def checkpoint_body(
    files: FileRewrites, function: str, location: Location, policy: str | None
) -> None:
    """Checkpoint the body of the loop at a location.

    Raises:
      UnwritableError: No such loop of jax.lax can be seen.
    """
    file = files.at(location.file, location.line)
    calls = calls_at(file, location)
    loops = [loop for loop in file.facts.loops if loop.node in calls]
    ours = [loop for loop in loops if loop.qualname in _SCANS and len(loop.bodies) == 1]
    if len(ours) > 1:
        ours = [loop for loop in ours if is_called(file.facts, loop.bodies[0], function)]
    if len(ours) != 1:
        what = "cannot tell the loops on this line apart" if len(ours) > 1 else "no jax.lax.scan"
        raise UnwritableError(
            file.where(location.line),
            f"{what}; checkpoint the body {function} of this loop by hand",
        )
    body = ours[0].bodies[0]
    before, after = _around(file, body, policy, prevent_cse=False)
    file.wrap(body, before, after)


def checkpoint_call(
    files: FileRewrites,
    function: str,
    location: Location,
    parts: Sequence[Part],
    given_kinds: ArgumentKinds | None = None,
    defined: Location | None = None,
) -> None:
    """Checkpoint the function called at a location.

    Args:
      files: The user's files.
      function: The qualified name of the function.
      location: Where it is called.
      parts: How many of its calls are treated how, in program order.
      given_kinds: What it is called with; None means what the source tells.
      defined: Where it is defined, if it is a module of a library.

    Raises:
      UnwritableError: Which call is meant cannot be told, or how its library checkpoints cannot.
    """
    policy = parts[0].policy
    file = files.at(location.file, location.line)
    facts, where = file.facts, file.where(location.line)
    calls = calls_at(file, location)
    ours = calls_of(facts, calls, function)
    if not ours and len(parts) == 1 and _wrap_argument(files, file, calls, function, policy):
        return
    if len(ours) != 1:
        raise UnwritableError(where, f"cannot tell from the line which call of {function} is meant")
    call = ours[0]
    library = defining_library(defined.file) if defined else _library(files, file, call, function)
    match library:
        case "jax":
            _wrap_function(file, call, function, parts, given_kinds)
        case "equinox" | "haiku":
            remat = "filter_checkpoint" if library == "equinox" else "remat"
            name = file.spelling(f"{library}.{remat}", library, call)
            around = [(f"{name}(", _closing(file, call, part.policy)) for part in parts]
            _wrap_each(file, call, parts, around, file.text(call.func))
        case "nnx" | "linen":
            _wrap_module(file, call, function, f"flax.{library}.remat", parts, given_kinds)
        case _:
            raise UnwritableError(
                where,
                f"cannot tell which library the module {function} is from; use that library's own"
                " checkpoint",
            )


def calls_of(facts: Facts, calls: tuple[ast.Call, ...], function: str) -> list[ast.Call]:
    """Return those of the calls at a place, innermost first, that may be of a function."""
    ours = [c for c in calls if is_called(facts, c.func, function)]
    if function.endswith(".__call__") and not ours and calls:
        return [_outermost(calls)]
    return ours


def _outermost(calls: tuple[ast.Call, ...]) -> ast.Call:
    """Return the innermost of the calls that begin at one place, with any call of its result.

    Of `Block()(x).sum()` this is `Block()(x)`.
    """
    around = {id(call.func): call for call in calls}
    found = calls[0]
    while id(found) in around:
        found = around[id(found)]
    return found


def checkpoint_whole(
    file: FileRewrite,
    definition: ast.stmt | None,
    policy: str | None,
    given_kinds: ArgumentKinds | None = None,
) -> None:
    """Checkpoint a function where it is defined.

    Args:
      file: The file of the definition.
      definition: The definition; None where it was not found.
      policy: The policy; None means no policy.
      given_kinds: What it is called with; None means what the source tells.

    Raises:
      UnwritableError: It is no plain function.
    """
    if not isinstance(definition, ast.FunctionDef):
        raise UnwritableError(
            file.display_path, "the target is not a plain function; checkpoint it by hand"
        )
    facts = file.facts
    if facts.names.class_of(definition) is not None:
        raise UnwritableError(
            file.where(definition.lineno),
            "the target is a method; checkpoint by hand a function that takes only arrays",
        )
    name = file.spelling("jax.checkpoint", "jax", definition, ("jax.remat",))
    keywords = _policy_keyword(file, definition, policy)
    if given_kinds is None:
        static = _annotated(facts, definition)
    else:
        static = tuple(i for i, kind in enumerate(given_kinds.positional) if kind == "static")
    if given_kinds is not None and _is_closed(given_kinds):
        name = _closing_over(file, definition, given_kinds, name, keywords)
    else:
        if static:
            keywords += f", static_argnums={_tuple(static)}"
        if keywords:
            partial = file.spelling("functools.partial", "functools", definition)
            name = f"{partial}({name}{keywords})"
    row = definition.lineno
    file.edit(Edit(Span(row, 0, row, 0), f"{file.indent(row)}@{name}{file.newline}"))


def _is_closed(given_kinds: ArgumentKinds) -> bool:
    """Return whether some of what is given cannot be arguments of a checkpoint."""
    by_name = any(kind != "traced" for kind in given_kinds.named.values())
    return by_name or "closed" in given_kinds.positional


def _closing_over(
    file: FileRewrite,
    definition: ast.FunctionDef,
    given_kinds: ArgumentKinds,
    checkpoint: str,
    keywords: str,
) -> str:
    """Return a decorator that checkpoints a function of the traced arguments only.

    That function closes over the other arguments.
    """
    args = definition.args
    positional = [*args.posonlyargs, *args.args]
    if args.vararg or args.kwarg:
        raise UnwritableError(
            file.where(definition.lineno),
            "the target takes *args or **kwargs that are not all arrays; checkpoint by hand a"
            " function that takes only arrays",
        )
    kinds: dict[str, Kind] = {}
    for i, arg in enumerate(positional):
        by_position = given_kinds.positional[i] if i < len(given_kinds.positional) else None
        kinds[arg.arg] = by_position or given_kinds.named.get(arg.arg, "closed")
    for arg in args.kwonlyargs:
        kinds[arg.arg] = given_kinds.named.get(arg.arg, "closed")
    named = [f"{a.arg}={a.arg}" for a in args.kwonlyargs]
    call = ", ".join([*(a.arg for a in positional), *named])
    traced = ", ".join(name for name, kind in kinds.items() if kind == "traced")
    fun = next(n for n in ("fun", "function", "wrapped", "checkpointed") if n not in kinds)
    outer = _parameters(file, args)
    return (
        f"(lambda {fun}: lambda {outer}:"
        f" {checkpoint}(lambda {traced}: {fun}({call}){keywords})({traced}))"
    )


def _parameters(file: FileRewrite, args: ast.arguments) -> str:
    """Return the parameters of a function as a lambda has them, without annotations."""
    positional = [*args.posonlyargs, *args.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    texts = []
    for i, (arg, default) in enumerate(
        zip(positional, [*missing, *args.defaults], strict=True), start=1
    ):
        texts.append(_parameter(file, arg, default))
        if i == len(args.posonlyargs):
            texts.append("/")
    if args.kwonlyargs:
        texts.append("*")
        pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
        texts += [_parameter(file, arg, default) for arg, default in pairs]
    return ", ".join(texts)


def _parameter(file: FileRewrite, arg: ast.arg, default: ast.expr | None) -> str:
    return arg.arg if default is None else f"{arg.arg}={file.text(default)}"


# -- functions -------------------------------------------------------------------------------------


def _around(
    file: FileRewrite,
    node: ast.expr,
    policy: str | None,
    *,
    prevent_cse: bool = True,
    static: tuple[int, ...] = (),
) -> tuple[str, str]:
    """Return the text before and after a function that makes it a checkpoint."""
    name = file.spelling("jax.checkpoint", "jax", node, ("jax.remat",))
    after = "" if prevent_cse else ", prevent_cse=False"
    if static:
        after += f", static_argnums={_tuple(static)}"
    return f"{name}(", after + _closing(file, node, policy)


def _policy_keyword(file: FileRewrite, at: ast.expr | ast.stmt, policy: str | None) -> str:
    text = file.policy(policy, at)
    return "" if text is None else f", policy={text}"


def _closing(file: FileRewrite, at: ast.expr | ast.stmt, policy: str | None) -> str:
    return f"{_policy_keyword(file, at, policy)})"


def _tuple(numbers: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, numbers))}{',' if len(numbers) == 1 else ''})"


def _wrap_function(
    file: FileRewrite,
    call: ast.Call,
    function: str,
    parts: Sequence[Part],
    given_kinds: ArgumentKinds | None,
) -> None:
    """Checkpoint the function of a call.

    `f(x, train=True)` becomes `jax.checkpoint(functools.partial(f, train=True))(x)`.
    """
    facts = file.facts
    definition = facts.names.single_origin(call.func)
    implicit = int("." in function and not is_through_class(facts, call.func))
    if given_kinds is not None and _needs_closing(call, given_kinds, implicit):
        if len(parts) > 1:
            raise UnwritableError(
                file.where(call.lineno),
                f"cannot checkpoint only some of the calls of {function}, as its arguments are not"
                " all arrays",
            )
        _close_over(file, call, parts[0].policy, given_kinds, implicit)
        return
    positions, keywords = static_arguments(
        facts, call, definition, implicit if given_kinds else 0, given_kinds
    )
    bound = ""
    if keywords:
        partial = file.spelling("functools.partial", "functools", call)
        bound = ", ".join(_bind(file, call, keywords))
    around = [_around(file, call.func, part.policy, static=positions) for part in parts]
    if bound and len(parts) == 1:
        around = [(f"{before}{partial}(", f", {bound}){after}") for before, after in around]
    plain = file.text(call.func)
    _wrap_each(file, call, parts, around, f"{partial}({plain}, {bound})" if bound else plain)


def _wrap_each(
    file: FileRewrite,
    call: ast.Call,
    parts: Sequence[Part],
    around: Sequence[tuple[str, str]],
    plain: str,
) -> None:
    """Write around the function of a call what each part has around it.

    Args:
      file: The file.
      call: The call.
      parts: How many of the calls are treated how.
      around: The text before and after the function, for each part.
      plain: The function, as all parts of several have it.
    """
    if len(parts) == 1:
        file.wrap(call.func, *around[0])
        return
    texts = _texts(parts, around, plain)
    file.edit(edits.replace(file.source, call.func, chosen(file, call, texts, parts)))


def _texts(parts: Sequence[Part], around: Sequence[tuple[str, str]], plain: str) -> list[str]:
    """Return a function as each part has it."""
    return [
        f"{before}{plain}{after}" if part.checkpointed else plain
        for part, (before, after) in zip(parts, around, strict=True)
    ]


def is_through_class(facts: Facts, func: ast.expr) -> bool:
    """Return whether a method is called through its class: `Block.run(block, x)`."""
    match func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="type"))):
            return True
        case ast.Attribute(value=value):
            return isinstance(facts.names.single_origin(value), ast.ClassDef)
    return False


def _needs_closing(call: ast.Call, given_kinds: ArgumentKinds, implicit: int) -> bool:
    """Return whether a checkpoint cannot be given all arguments of a call."""
    if "closed" in given_kinds.positional[implicit:]:
        return True
    if any(kind == "closed" for name, kind in given_kinds.named.items() if _names(call, name)):
        return True
    is_spread = any(isinstance(a, ast.Starred) for a in call.args)
    is_spread = is_spread or any(k.arg is None for k in call.keywords)
    return is_spread and any(
        kind != "traced"
        for kind in [*given_kinds.positional[implicit:], *given_kinds.named.values()]
    )


def _names(call: ast.Call, name: str) -> bool:
    return any(k.arg == name for k in call.keywords)


def _close_over(
    file: FileRewrite, call: ast.Call, policy: str | None, given_kinds: ArgumentKinds, implicit: int
) -> None:
    """Checkpoint a call as a function of its traced arguments only.

    `f(x @ w, env)` becomes `jax.checkpoint(lambda arg0: f(arg0, env))(x @ w)`. What is closed over
    is evaluated before the checkpoint, as it is without one:
    `lambda x, arg0={"w": w @ w}: f(x, arg0)`.
    """
    used = _names_used(file)
    parameters: dict[str, str] = {}
    closed: dict[str, str] = {}

    def hand(arg: ast.expr, *, is_traced: bool) -> None:
        if is_traced:
            _hand_on(file, arg, parameters, used)
        elif not isinstance(arg, (ast.Name, ast.Constant, ast.Attribute, ast.Lambda)):
            _hand_on(file, arg, closed, used)

    for i, arg in enumerate(call.args):
        if isinstance(arg, ast.Starred):
            break
        at = i + implicit
        is_traced = at >= len(given_kinds.positional) or given_kinds.positional[at] == "traced"
        hand(arg, is_traced=is_traced)
    for keyword in call.keywords:
        if keyword.arg:
            is_traced = given_kinds.named.get(keyword.arg, "traced") == "traced"
            hand(keyword.value, is_traced=is_traced)
    name = file.spelling("jax.checkpoint", "jax", call, ("jax.remat",))
    closing = _closing(file, call, policy)
    taken = ", ".join([*parameters, *(f"{name}={text}" for name, text in closed.items())])
    file.wrap(call, f"{name}(lambda {taken}: ", f"{closing}({', '.join(parameters.values())})")


def _names_used(file: FileRewrite) -> set[str]:
    return {n.id for n in ast.walk(file.facts.names.tree) if isinstance(n, ast.Name)}


def _hand_on(file: FileRewrite, arg: ast.expr, parameters: dict[str, str], used: set[str]) -> None:
    """Make an argument a parameter of a lambda around its call, under a name of its own.

    Args:
      file: The file.
      arg: The argument.
      parameters: What each parameter so far is given; the new one is added.
      used: The names of the file, to which a new one is added.
    """
    if isinstance(arg, ast.Name):
        parameters[arg.id] = arg.id
        return
    name = next(n for n in (f"arg{i}" for i in range(len(used) + 2)) if n not in used)
    used.add(name)
    parameters[name] = file.text(arg)
    file.edit(edits.replace(file.source, arg, name))


def _bind(file: FileRewrite, call: ast.Call, keywords: Sequence[ast.keyword]) -> list[str]:
    """Remove keywords from a call and return their text."""
    bound = [f"{k.arg}={file.text(k.value)}" for k in keywords]
    edit = edits.remove_arguments(file.source, call, [k.value for k in keywords])
    if edit is None:
        raise UnwritableError(
            file.where(call.lineno),
            f"bind {', '.join(bound)} with functools.partial and checkpoint the result",
        )
    file.edit(edit)
    return bound


def static_arguments(
    facts: Facts,
    call: ast.Call,
    definition: object,
    implicit: int = 0,
    given_kinds: ArgumentKinds | None = None,
) -> tuple[tuple[int, ...], list[ast.keyword]]:
    """Return the arguments that are no arrays: positions, and keywords.

    Args:
      facts: The facts of the file.
      call: The call.
      definition: What is called, where it is known.
      implicit: How many parameters it has before those of the call.
      given_kinds: What it is called with; None means what the source tells.
    """
    if given_kinds is not None:
        return (
            tuple(
                i
                for i, kind in enumerate(given_kinds.positional[implicit:][: len(call.args)])
                if kind != "traced"
            ),
            [
                k
                for k in call.keywords
                if k.arg and given_kinds.named.get(k.arg, "traced") != "traced"
            ],
        )
    names: list[str] = []
    fixed: frozenset[str] = frozenset()
    if isinstance(definition, ast.FunctionDef):
        args = definition.args
        positional = [*args.posonlyargs, *args.args]
        names = [a.arg for a in positional[implicit:]]
        missing: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
        defaults = [*missing, *args.defaults, *args.kw_defaults]
        fixed = frozenset(
            a.arg
            for a, default in zip([*positional, *args.kwonlyargs], defaults, strict=True)
            if _is_static(a.annotation) or _is_flag(default)
        )
    positions = []
    for i, arg in enumerate(call.args):
        if isinstance(arg, ast.Starred):
            break
        if _is_constant(facts, arg) or (i < len(names) and names[i] in fixed):
            positions.append(i)
    keywords = [
        k for k in call.keywords if k.arg and (_is_constant(facts, k.value) or k.arg in fixed)
    ]
    return tuple(positions), keywords


def _is_constant(facts: Facts, node: ast.expr) -> bool:
    """Return whether an argument is a number, a string and the like, or a parameter that is."""
    if isinstance(facts.names.constant(node), (bool, int, float, str, tuple)):
        return True
    bindings = facts.names.bindings(node) if isinstance(node, ast.Name) else ()
    return len(bindings) == 1 and bindings[0].kind == "param" and _is_flag(bindings[0].value)


def _is_flag(default: ast.expr | None) -> bool:
    """Return whether a parameter's default shows that it is no array."""
    return isinstance(default, ast.Constant) and isinstance(default.value, (bool, int, str))


def _is_static(annotation: ast.expr | None) -> bool:
    match annotation:
        case ast.Constant(value=str(text)):
            return text in _STATIC
        case ast.Subscript(value=value):
            return _is_static(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _STATIC
    return False


def _annotated(facts: Facts, definition: ast.FunctionDef) -> tuple[int, ...]:
    """Return the positions of the parameters without a default that are annotated as no arrays."""
    args = [*definition.args.posonlyargs, *definition.args.args]
    required = args[: len(args) - len(definition.args.defaults)]
    return tuple(i for i, a in enumerate(required) if _is_static(a.annotation))


def _wrap_argument(
    files: FileRewrites,
    file: FileRewrite,
    calls: tuple[ast.Call, ...],
    function: str,
    policy: str | None,
) -> bool:
    """Checkpoint a function that is passed on at a place, as to `functools.reduce`.

    Returns:
      Whether there was such a function.
    """
    facts = file.facts
    given_kinds = [
        arg
        for call in calls
        for arg in call.args
        if isinstance(arg, (ast.Name, ast.Attribute, ast.Lambda))
        and is_called(facts, arg, function)
    ]
    if len(given_kinds) != 1 or module_library(files, file, function) != "jax":
        return False
    before, after = _around(file, given_kinds[0], policy)
    file.wrap(given_kinds[0], before, after)
    return True


# -- modules ---------------------------------------------------------------------------------------


def _library(files: FileRewrites, file: FileRewrite, call: ast.Call, function: str) -> str | None:
    """Return the library of what is called: by its class where that is visible, else by name."""
    facts = file.facts
    instance: ast.expr = call.func
    if isinstance(instance, ast.Attribute) and instance.attr == last_name(function):
        instance = instance.value
    made = modules.instance_class(facts, instance)
    return modules.library(facts, made) or module_library(files, file, function)


def _wrap_module(
    file: FileRewrite,
    call: ast.Call,
    function: str,
    remat: str,
    parts: Sequence[Part],
    given_kinds: ArgumentKinds | None,
) -> None:
    """Checkpoint a call of a flax module.

    `block(x)` becomes `nn.remat(Block.__call__)(block, x)`, whose parameters keep their names;
    those of `nn.remat(Block)` would not. `remat` is the library's checkpoint.
    """
    source, where = file.source, file.where(call.lineno)
    method = last_name(function)
    instance = call.func
    if isinstance(instance, ast.Attribute) and instance.attr == method:
        instance = instance.value
    owner = _class_text(file, instance, function)
    start, end = source.end(source.span(instance)), source.end(source.span(call.func))
    opening = source.text.find("(", end)
    if owner is None or source.text[end:opening].strip():
        raise UnwritableError(where, f"write {remat} of {function} by hand")
    called = f"{owner}.{method}"
    positions, keywords = static_arguments(
        file.facts, call, _method(file.facts, function), 1, given_kinds
    )
    if keywords and remat == "flax.nnx.remat":
        if len(parts) > 1 or any(isinstance(arg, ast.Starred) for arg in call.args):
            raise UnwritableError(
                where,
                f"nnx.remat takes constants by position only: pass {keywords[0].arg} by position,"
                " and plan again",
            )
        constants = [*(call.args[i] for i in positions), *(k.value for k in keywords)]
        _close_module_over(file, call, instance, constants, parts[0].policy)
        return
    if keywords:
        partial = file.spelling("functools.partial", "functools", call)
        called = f"{partial}({', '.join([called, *_bind(file, call, keywords)])})"
    name = file.spelling(remat, remat.rpartition(".")[0], call)
    # The module itself is argument 0.
    static = f", static_argnums={_tuple(tuple(i + 1 for i in positions))}" if positions else ""
    is_alone = len(keywords) == len(call.keywords) and not call.args
    around = [(f"{name}(", f"{static}{_closing(file, call, part.policy)}") for part in parts]
    texts = _texts(parts, around, called)
    text = chosen(file, call, texts, parts) if len(parts) > 1 else texts[0]
    file.edit(Edit(source.between(start, opening + 1), "" if is_alone else ", "))
    file.wrap(instance, f"{text}(", "")


def _close_module_over(
    file: FileRewrite,
    call: ast.Call,
    instance: ast.expr,
    constants: Sequence[ast.expr],
    policy: str | None,
) -> None:
    """Checkpoint a call of an NNX module as a function of the module and its arrays.

    `block(x + 1, train=True)` becomes
    `nnx.remat(lambda block, arg0: block(arg0, train=True))(block, x + 1)`. Constants are no
    defaults of it, which `nnx.remat` would trace.
    """
    used = _names_used(file)
    parameters: dict[str, str] = {}
    for arg in (instance, *call.args, *(k.value for k in call.keywords)):
        if arg not in constants:
            _hand_on(file, arg, parameters, used)
    name = file.spelling("flax.nnx.remat", "flax.nnx", call)
    closing = _closing(file, call, policy)
    taken, given = ", ".join(parameters), ", ".join(parameters.values())
    file.wrap(call, f"{name}(lambda {taken}: ", f"{closing}({given})")


def _method(facts: Facts, function: str) -> ast.FunctionDef | None:
    """Return a method such as `Block.__call__` of a class of this file."""
    owner, _, method = function.rpartition(".")
    classes = [c for c in facts.names.classes if c.name == last_name(owner)]
    return facts.names.method(classes[0], method) if len(classes) == 1 else None


def _class_text(file: FileRewrite, instance: ast.expr, function: str) -> str | None:
    """Return how to write the class of a module."""
    owner = function.rpartition(".")[0].rpartition(".")[2]
    match instance:
        case ast.Call(func=ast.Name() | ast.Attribute() as made):
            return file.text(made) if last_name(file.text(made)) == owner else None
        case ast.Name() | ast.Attribute() | ast.Subscript():
            bindings = file.facts.names.root.bindings.get(owner, [])
            if len(bindings) == 1 and bindings[0].kind in {"class", "import"}:
                return owner
            return f"type({file.text(instance)})"
    return None


def defined_at(facts: Facts, location: Location) -> Definition | None:
    """Return the function that is defined at a line, or whose first decorator is there."""
    for function in facts.names.functions:
        if isinstance(function, ast.Lambda):
            continue
        first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        if location.line in (first, function.lineno):
            return function
    return None
