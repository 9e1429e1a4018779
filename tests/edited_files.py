"""Versions of a file of Python that compute the same, made by scripted edits, and a residual more.

    python -m tests.edited_files fixtures/inspect/gpt.py renamed

prints one.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import sys
import tokenize
from pathlib import Path

import jaxresid

PLANTED = "# planted"


def report_of(text, folder, function="loss", **options):
    """Return the report of a function of a module, given as text, that makes its own inputs."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.py"
    file.write_text(text)
    name = f"edited_{abs(hash((str(folder), text)))}"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        inputs = getattr(module, f"{function}_inputs", None) or module.example_inputs
        return jaxresid.inspect(getattr(module, function), on="gpu:h100", **options)(*inputs())
    finally:
        del sys.modules[name]


def moved(text):
    """The file further down, its functions in runs of several in another order."""
    lines = text.splitlines()
    tree = ast.parse(text)
    runs, run = [], []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            run.append(node)
        else:
            runs.append(run)
            run = []
    runs.append(run)
    for run in reversed([run for run in runs if len(run) > 1]):
        if any(function.args.defaults for function in run):  # made where they stand
            continue
        first, last = _first(run[0]), run[-1].end_lineno
        texts = ["\n".join(lines[_first(n) - 1 : n.end_lineno]) for n in reversed(run)]
        lines[first - 1 : last] = "\n\n\n".join(texts).splitlines()
    after = _first(next(n for n in tree.body if not _is_docstring(n))) - 1
    lines[after:after] = [f"# Remark {i} that nobody asked for." for i in range(40)]
    return "\n".join(lines) + "\n"


def _first(node):
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names):
        self.names = names

    def visit_Name(self, node):
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def renamed(text):
    """All local variables that are no parameters have another name."""
    tree = ast.parse(text)
    for node in tree.body:
        for function in ast.walk(node):
            if isinstance(function, ast.FunctionDef) and not _has_inner(function):
                stored = {n.id for n in ast.walk(function) if _is_stored(n)}
                stored -= {a.arg for n in ast.walk(node) for a in _arguments(n)}
                names = {name: f"{name}_of_{function.name.strip('_')}" for name in stored}
                _Renamed({k: v for k, v in names.items() if "_of_" not in k}).visit(function)
    return ast.unparse(tree)


def _has_inner(function):
    inner = [n for n in ast.walk(function) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    return len(inner) > 1


def _is_inner(function, top):
    """Return whether a function is in one: it may read names of that."""
    return any(
        function in ast.walk(other) and other is not function
        for other in ast.walk(top)
        if isinstance(other, ast.FunctionDef)
    )


def _is_stored(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _arguments(node):
    if not isinstance(node, ast.FunctionDef | ast.Lambda):
        return []
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def reformatted(text):
    """Each argument and each element stands in a line of its own; no comments."""
    result, depth, row, column = [], 0, 1, 0
    for token in tokenize.generate_tokens(io.StringIO(ast.unparse(ast.parse(text))).readline):
        if token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            continue
        gap = token.start[1] - column if token.start[0] == row else token.start[1]
        result.append(" " * gap + token.string)
        if token.type == tokenize.OP and token.string in "([{":
            depth += 1
            result.append("\n        ")
        elif token.type == tokenize.OP and token.string in ")]}":
            depth -= 1
        elif token.type == tokenize.OP and token.string == "," and depth:
            result.append("\n        ")
        row, column = token.end
        if token.type in (tokenize.NEWLINE, tokenize.NL):
            row, column = row + 1, 0
    return "".join(result)


def with_helpers(text):
    """The values that functions assign are computed by helpers of their own, made for that."""
    tree = ast.parse(text)
    body, count = [], 0
    for node in tree.body:
        helpers = []
        for function in ast.walk(node):
            if not isinstance(function, ast.FunctionDef) or _is_inner(function, node):
                continue
            local = {a.arg for a in _arguments(function)}
            local |= {n.id for n in ast.walk(function) if _is_stored(n)}
            for statement in function.body:
                if not isinstance(statement, ast.Assign) or not _is_pure(statement.value):
                    continue
                used = sorted({n.id for n in ast.walk(statement.value) if _is_loaded(n)} & local)
                count += 1
                arguments = ", ".join(used)
                made = ast.parse(f"def _made_{count}({arguments}):\n    return 0").body[0]
                made.body[0].value = statement.value
                helpers.append(made)
                statement.value = ast.parse(f"_made_{count}({arguments})", mode="eval").body
        body += [*helpers, node]
    tree.body = body
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_loaded(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _is_pure(value):
    inner = list(ast.walk(value))
    names = {n.id for n in inner if isinstance(n, ast.Name)}
    if names & {"super"} or any(isinstance(n, ast.Lambda | ast.comprehension) for n in inner):
        return False
    return any(isinstance(n, ast.Call | ast.BinOp) for n in inner)


def with_function_names(text):
    """The functions that others of the module call have another name."""
    tree = ast.parse(text)
    names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    names &= {n.id for f in tree.body if isinstance(f, ast.FunctionDef) for n in _names_in(f)}
    names = {n for n in names if not n.endswith("_inputs") and not n.startswith("loss")}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            node.name = f"my_{node.name}"
        elif isinstance(node, ast.Name) and node.id in names:
            node.id = f"my_{node.id}"
    return ast.unparse(tree)


def _names_in(function):
    return [n for n in ast.walk(function) if isinstance(n, ast.Name)]


EDITS = {
    edit.__name__: edit for edit in (moved, renamed, reformatted, with_helpers, with_function_names)
}


def planted(text, function, variable):
    """The file with a residual more: a variable goes through a sine as a function begins.

    Args:
      text: the file.
      function: the name of the function, `Mlp.__call__`.
      variable: the name of an argument of it.
    """
    tree = ast.parse(text)
    owner, _, name = function.rpartition(".")
    for node in ast.walk(tree):
        if owner and not (isinstance(node, ast.ClassDef) and node.name == owner):
            continue
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and child.name in (name, f"my_{name}"):
                first = next(n for n in child.body if not _is_docstring(n))
                line = f"{variable} = {variable} + jnp.sin({variable})  {PLANTED}"
                lines = text.splitlines()
                lines.insert(first.lineno - 1, " " * first.col_offset + line)
                return "\n".join(lines) + "\n"
    raise ValueError(f"no function {function}")


def line_of(text, mark=PLANTED):
    """Return the number of the line that holds a mark."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if mark in line)


def main():
    file, edit = sys.argv[1:]
    print(EDITS[edit](Path(file).read_text()))


if __name__ == "__main__":
    main()
