"""What somebody may have meant."""

import pytest

from jaxresid.base.text.nearest import did_you_mean, nearest, nearest_first

CODES = [f"JXR1{n:02}" for n in range(1, 10)] + [f"JXR2{n:02}" for n in range(1, 13)]


@pytest.mark.parametrize(
    ("word", "words", "expected"),
    [
        ("JXR1O1", CODES, "JXR101"),
        ("jxr101", CODES, "JXR101"),
        ("JXR213", CODES, "JXR212"),
        ("checkpoint-loss", ["nested-checkpoint", "checkpointed-loss"], "checkpointed-loss"),
        ("zebra", CODES, None),
        ("x", [], None),
    ],
)
def test_nearest(word, words, expected):
    assert nearest(word, words) == expected


def test_the_end_of_a_message():
    assert did_you_mean("slect", ["select", "ignore"]) == "; did you mean `select`?"
    assert did_you_mean("zebra", ["select"]) == ""


def test_all_words_the_nearest_first():
    assert nearest_first("V100", ["h100", "b200", "v100"]) == ["v100", "h100", "b200"]
    assert nearest_first("zebra", ["b", "a"]) == ["b", "a"]
