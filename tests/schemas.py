"""JSON held against the schemas of the package, each of which is read and checked once."""

import functools
import json
from importlib import resources

import jsonschema


@functools.cache
def schema(name):
    """The schema `name`, which nothing may change."""
    file = resources.files("jaxresid") / "schema" / f"{name}.schema.json"
    return json.loads(file.read_text())


@functools.cache
def _validator(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))
    return jsonschema.Draft202012Validator(schema(name))


def validate(value, name):
    """Raise `jsonschema.ValidationError` where a value breaks the schema `name`."""
    _validator(name).validate(value)
