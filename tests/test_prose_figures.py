"""Figures in the prose of README and docs/ are what commands print, like those in blocks."""

import functools
import importlib.util
import re

import pytest
from prose_figures import missing, printed, sections
from test_readme import same_jax
from update_readme import ROOT, output, pages

PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in pages()}
# What a section's prose says besides what its page prints, and where that comes from.
UNPRINTED = [
    (name, section.prose, section.sources)
    for name, text in PAGES.items()
    for section in sections(text)
    if section.sources or missing(section.prose, printed(text))
]
ON_GPUS = (pytest.mark.nightly, pytest.mark.slow, pytest.mark.gpu)


def commands(sources):
    return [source for source in sources if source.startswith("jaxresid ")]


RUN = [
    pytest.param(
        *(name, prose, commands(sources)),
        marks=ON_GPUS if "compile" in str(sources) else pytest.mark.integration,
        id=f"{name} {prose.split(maxsplit=3)[1:3]}",
    )
    for name, prose, sources in UNPRINTED
    if commands(sources)
]
run = functools.cache(output)


@pytest.mark.parametrize("name", PAGES)
def test_each_figure_has_a_source(name):
    for page, prose, sources in UNPRINTED:
        if page == name:
            assert sources, missing(prose, printed(PAGES[name]))
            assert missing(prose, printed(PAGES[name])), f"nothing needs {sources}"
            for source in sources:
                assert source.startswith(("jaxresid ", "tests/", "of "))
                for path in re.findall(r"tests/[\w./]+", source):
                    assert (ROOT / path).exists(), path


@same_jax
@pytest.mark.parametrize(("name", "prose", "commands"), RUN)
def test_sources_print_the_figures(name, prose, commands):
    if "compile" in str(commands) and importlib.util.find_spec("jax_cuda12_plugin") is None:
        pytest.skip("JAX's CUDA plugin is not installed")
    assert missing(prose, printed(PAGES[name]) + "".join(map(run, commands))) == []


def test_what_counts_as_a_figure():
    page = (
        "It keeps 1.5 GiB of `--budget 12GiB`.\n```console\n1.46 GiB  2 warnings\n```\n"
        "# Next\n\n<!-- figures: jaxresid report x.py:f -->\n\n"
        "Three findings, 40 %, `about 3 GiB`\n"
    )
    first, second = sections(page)
    assert missing(first.prose, printed(page)) == []
    assert missing(first.prose, "1.44 GiB") == ["1.5 GiB"]
    assert second.sources == ("jaxresid report x.py:f",)
    assert missing(second.prose, "3 findings, 39.6%, kept 3.00 GiB") == []
    assert missing(second.prose, "2 findings, 39%, 3 MiB") == ["Three findings", "40 %", "3 GiB"]
    # A column of figures has its unit in the head.
    assert missing("29.27 GiB", "GiB\n29.27") == []
    assert missing("seven findings", "GiB\n7.02") == ["seven findings"]
