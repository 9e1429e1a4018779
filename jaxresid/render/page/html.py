"""Put a page together: one file of HTML with its script, its style and its data."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources
from typing import Any

from jaxresid.base.text.safe_text import json_text, lines, visible
from jaxresid.render.page.document import page_document

_BUNDLE = "jaxresid.render.page.bundle"


def page(value: object) -> str:
    """Return a result as one page of HTML, which asks nothing of a network.

    Nothing in it but its own script runs, and what comes from user code is data: it is escaped as
    JSON and shown as text.

    Raises:
      TypeError: there is no page for such a value.
    """
    document = _visible(page_document(value))
    script, style = _bundled("page.js"), _bundled("page.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}';"
        " base-uri 'none'; form-action 'none'"
    )
    # `<` ends a script or begins a comment in it.
    data = json_text(document, indent=None).replace("<", "\\u003c")
    title = escape(f"{document['target']} - jaxresid {document['kind']}")
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        "<noscript><p>This page needs JavaScript; here is its text.</p>"
        f"<pre>{escape(document['text'])}</pre></noscript>\n"
        f'<script type="application/json" id="data">{data}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _bundled(name: str) -> str:
    return resources.files(_BUNDLE).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _visible(value: Any) -> Any:
    """Return a document with a picture in place of each character that acts on what shows it."""
    if isinstance(value, str):
        return lines(value) if "\n" in value else visible(value)
    if isinstance(value, list):
        return value if value and isinstance(value[0], int) else [_visible(each) for each in value]
    if isinstance(value, dict):
        return {_visible(key): _visible(each) for key, each in value.items()}
    return value
