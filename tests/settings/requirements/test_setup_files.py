"""The requirements on jax of setup.cfg and setup.py, which nothing runs."""

import pytest

from jaxresid.settings.requirements.setup_files import (
    setup_cfg_requirements,
    setup_py_requirements,
)


def test_setup_cfg():
    text = """
[options]
install_requires =
    numpy
    jax>=0.4,<0.6  # not yet
[options.extras_require]
gpu = jax[cuda12]<0.5
"""
    assert setup_cfg_requirements(text) == (("jax>=0.4,<0.6",),)
    extra = text.replace("    jax>=0.4,<0.6  # not yet\n", "")
    assert setup_cfg_requirements(extra) == (("jax[cuda12]<0.5",),)
    assert setup_cfg_requirements("no section\n") == ()


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ('setup(install_requires=["jax<0.6", "numpy"])', (("jax<0.6",),)),
        ('setuptools.setup(install_requires="jax<0.6\\nnumpy")', (("jax<0.6",),)),
        ('R = ["jax<0.5"]\nsetup(install_requires=R + ["x"])', (("jax<0.5",),)),
        ('A = ["jax<0.5"]\nB = [*A, "x"]\nsetup(install_requires=B)', (("jax<0.5",),)),
        ('E = {"gpu": ["jax<0.7"]}\nsetup(extras_require=E)', (("jax<0.7",),)),
        ('E = dict(gpu=["jax<0.7"])\nsetup(extras_require=E)', (("jax<0.7",),)),
        ('E = {"g": ["jax<0.7"]}\nsetup(install_requires=E["g"])', (("jax<0.7",),)),
        ('setup(**{"install_requires": ["jax<0.7"]})', (("jax<0.7",),)),
        ('R: list = ["jax<0.5"]\nsetup(install_requires=R)', (("jax<0.5",),)),
        ('setup(install_requires=open("requirements.txt").readlines())', ()),
        ("R = R\nsetup(install_requires=R)", ()),
        ('install(install_requires=["jax<0.6"])', ()),
        ("print 'Python 2'", ()),
        ("x" + "+x" * 20000, ()),
    ],
)
def test_setup_py(text, groups):
    assert setup_py_requirements(text) == groups
