"""Read a profile by the schema that pprof publishes, which is compiled into jaxlib."""

import gzip
import json

from jaxlib import _jax


def read(data):
    """Return a profile as `protoc` decodes it, its texts, functions and locations in place.

    Returns:
      Its types, samples as (stack outermost first, values by type, labels), and its comments.
    """
    found = json.loads(_jax.pprof_profile_to_json(gzip.decompress(data)))
    texts = found["stringTable"]
    assert texts[0] == ""
    assert len(texts) == len(set(texts))

    def text(number):
        return texts[int(number)]

    (mapping,) = found["mapping"]
    assert mapping["hasFunctions"] and mapping["hasFilenames"] and mapping["hasLineNumbers"]
    functions = {each["id"]: each for each in found["function"]}
    locations = {}
    for each in found["location"]:
        assert each["mappingId"] == mapping["id"]
        (line,) = each["line"]
        function = functions[line["functionId"]]
        name, file = text(function["name"]), text(function.get("filename", 0))
        locations[each["id"]] = name, file, int(line.get("line", 0))
    types = [(text(each["type"]), text(each["unit"])) for each in found["sampleType"]]
    samples = []
    for each in found["sample"]:
        values = {kind: int(n) for (kind, _), n in zip(types, each["value"], strict=True)}
        labels = {text(label["key"]): text(label["str"]) for label in each.get("label", [])}
        stack = tuple(locations[number] for number in reversed(each["locationId"]))
        samples.append((stack, values, labels))
    comments = [text(number) for number in found.get("comment", [])]
    assert text(found["defaultSampleType"]) in dict(types)
    return types, samples, comments
