"""Write a plan's policy as Python code."""

from __future__ import annotations

import ast

from jaxresid.linter.resolve.apis import POLICIES


def policy_text(policy: str, prefix: str, quote: str = '"') -> str | None:
    """Return a policy as code.

    `save_only_these_names('qkv')` becomes `jax.checkpoint_policies.save_only_these_names("qkv")`.

    Args:
      prefix: How `jax.checkpoint_policies` is spelled.

    Returns:
      The code; None for what is not made of members of `jax.checkpoint_policies` alone.
    """
    try:
        tree = ast.parse(policy, mode="eval").body
    except SyntaxError:
        return None
    inserts: dict[int, str] = {}
    strings: list[ast.Constant] = []
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in POLICIES:
                inserts[node.col_offset] = f"{prefix}."
            case ast.Name() | ast.Attribute() | ast.Lambda():
                return None
            case ast.Constant(value=str()):
                strings.append(node)
    # `ast` counts UTF-8 bytes.
    raw = policy.encode()
    pieces: list[tuple[int, int, str]] = [(at, at, text) for at, text in inserts.items()]
    for node in strings:
        end = node.end_col_offset or node.col_offset
        pieces.append((node.col_offset, end, string_text(str(node.value), quote)))
    for start, end, text in sorted(pieces, reverse=True):
        raw = raw[:start] + text.encode() + raw[end:]
    return raw.decode()


def string_text(value: str, quote: str = '"') -> str:
    """Return a string as code, in the given quotes where they are possible."""
    is_plain = quote not in value and "\\" not in value and value.isprintable()
    return f"{quote}{value}{quote}" if is_plain else repr(value)
