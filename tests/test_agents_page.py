"""docs/agents.md names fields that the documents have, and codes that commands return."""

import json
import re

import pytest

from jaxresid.cli.main import run
from tests.where import ROOT

PAGE = (ROOT / "docs" / "agents.md").read_text()


def fields():
    """Yield each field of a table on the page, with the command of the section's first document."""
    for section in re.split(r"^## ", PAGE, flags=re.M)[1:]:
        command = re.search(r"jaxresid (\w+) .*-f json", section)
        for row in re.findall(r"^\| (`.+?) \|", section, flags=re.M) if command else ():
            for field in re.findall(r"`([\w.\[\]]+)`", row):
                yield command[1], field


def resolved(schema, node):
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for choice in node.get("anyOf", ()):
        if choice.get("type") != "null":
            return resolved(schema, choice)
    return node


@pytest.mark.parametrize(("command", "field"), sorted(set(fields())))
def test_a_field_is_in_the_schema(command, field):
    schema = json.loads((ROOT / f"jaxresid/schema/{command}.schema.json").read_text())
    node = schema
    for part in field.split("."):
        name, listed = re.fullmatch(r"(\w+)(\[\d*\])?", part).groups()
        node = resolved(schema, resolved(schema, node)["properties"][name])
        if listed:
            node = resolved(schema, node["items"])


def test_every_step_names_fields():
    assert {command for command, _ in fields()} == {"oom", "report", "plan"}
    assert len(set(fields())) > 20


@pytest.mark.integration
@pytest.mark.parametrize(
    ("code", "command"),
    [
        (0, "report fixtures/inspect/gpt.py:loss_scan --on gpu:h100"),
        (1, "plan fixtures/inspect/block.py:checkpointed --budget 1MiB"),
        (2, "plan fixtures/inspect/block.py:checkpointed --budget much"),
        (2, "report fixtures/inspect/block.py"),
    ],
)
def test_a_code_comes_with_its_output(code, command, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert run([*command.split(), "-f", "json", "-q"]) == code
    out, err = capfd.readouterr()
    if code == 2:
        assert not out
        assert err
    else:
        assert json.loads(out)["kind"] == command.split()[0]
