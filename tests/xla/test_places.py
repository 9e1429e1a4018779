"""The places a program can be compiled for: what is understood, and what is said of the rest."""

import importlib.util
import os
import subprocess
import sys

import pytest

from jaxresid.errors import InputsError
from jaxresid.xla.places import place, topologies, unavailable


@pytest.mark.parametrize(
    ("text", "written", "platform", "topology", "devices"),
    [
        ("cpu", "cpu", "cpu", "", None),
        ("GPU", "gpu", "cuda", "", None),
        ("cuda", "gpu", "cuda", "", None),
        ("tpu:v5e:2x4", "tpu:v5e:2x4", "tpu", "v5e:2x4", 8),
        (" tpu:V5P:2x2x1 ", "tpu:v5p:2x2x1", "tpu", "v5p:2x2x1", 4),
        # A chip of these is two devices.
        ("tpu:v4:2x2x1", "tpu:v4:2x2x1", "tpu", "v4:2x2x1", 8),
        # No listed shape, but libtpu may know it.
        ("tpu:v5e:2x6", "tpu:v5e:2x6", "tpu", "v5e:2x6", 12),
    ],
)
def test_a_place(text, written, platform, topology, devices):
    found = place(text)
    assert (found.text, found.platform, found.topology, found.devices) == (
        *(written, platform, topology),
        devices,
    )


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("cup", "did you mean `cpu`?"),
        ("tpu", "write tpu:v5e:2x4"),
        ("tpu:", "write tpu:v5e:2x4"),
        ("tpu:v5p", "write tpu:v5p:2x2x1"),
        ("v6e:4x4", "write tpu:v6e:4x4"),
        ("v5e-16", "write tpu:v5e:4x4"),
        ("v5litepod-8", "write tpu:v5e:2x4"),
        ("tpu:v5litepod-8", "tpu:v5e:2x4"),
        ("tpu:v4-8", "tpu:v4:2x2x1"),
        ("tpu:ironwood:2x2x1", "tpu:tpu7x:2x2x1"),
        ("tpu:v9:2x2", "known: v2, v3, v4, v5e"),
        ("tpu:v5e:2*4", "two axes of chips"),
        ("tpu:v5e:8", "two axes of chips"),
        ("tpu:v5e:2x2x2", "two axes of chips"),
        # libtpu 0.0.52 divides by it and takes the process along.
        ("tpu:v5e:0x2", "two axes of chips"),
        ("tpu:v5p:2x2x2x2", "three axes of chips"),
        ("", "write cpu, gpu or tpu:GENERATION:SHAPE"),
    ],
)
def test_what_is_no_place(text, instead):
    with pytest.raises(InputsError) as caught:
        place(text)
    message = str(caught.value)
    assert instead in message
    assert "\n" not in message


def test_every_listed_topology_is_a_place():
    for topology in topologies():
        assert place(topology.text).devices == topology.devices
        assert 2**30 * 7 < topology.memory_nbytes < 2**30 * 100


def test_what_a_message_suggests_is_a_place():
    with pytest.raises(InputsError) as caught:
        place("tpu:v5e-8")
    (suggested,) = [word for word in str(caught.value).rstrip("; ").split() if "2x4" in word]
    assert place(suggested.rstrip(";")).devices == 8


def test_without_libtpu_only_tpus_are_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install 'jaxresid[tpu]'" in unavailable(place("tpu:v5e:2x4"))
    assert unavailable(place("cpu")) is None


def test_places_need_no_jax():
    code = "import sys; from jaxresid.xla.places import *; place('tpu:v5e:2x4'); topologies()"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('jax' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


ASK = """
from jax.experimental.topologies import get_topology_desc
from jaxresid.xla.places import topologies
for it in topologies():
    if it.devices <= 512:
        name = it.text.removeprefix("tpu:")
        found = get_topology_desc(platform="tpu", topology_name=name).devices
        assert len(found) == it.devices, (name, len(found))
print("all there")
"""


@pytest.mark.tpu
def test_libtpu_knows_the_listed_topologies():
    quiet = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | quiet,
    )
    assert "all there" in done.stdout, done.stderr[-2000:]
