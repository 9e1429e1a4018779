"""The page's script and style are what is made of their source."""

import shutil
import subprocess

import pytest

from tests.where import ROOT

BUNDLE = ROOT / "jaxresid/render/page/bundle"


@pytest.mark.integration
def test_the_bundle_is_made_of_its_source(tmp_path):
    if shutil.which("node") is None or not (ROOT / "page/node_modules").is_dir():
        pytest.skip("needs node, and `npm ci` in page/")
    subprocess.run(["node", "bundle.mjs", str(tmp_path)], cwd=ROOT / "page", check=True)
    for name in ("page.js", "page.css", "LICENSES.txt"):
        assert (tmp_path / name).read_text() == (BUNDLE / name).read_text(), "npm run bundle"


def test_what_is_in_the_bundle_has_its_licence():
    licences = (BUNDLE / "LICENSES.txt").read_text()
    for name in ("d3-axis", "d3-hierarchy", "d3-scale", "d3-selection", "d3-zoom", "internmap"):
        assert f"{name} " in licences
    assert licences.count("Permission to use, copy, modify") >= 6
