"""What requirements admit, as PEP 508 writes them."""

import pytest

from jaxresid.settings.requirements.in_use import jax_requirements
from jaxresid.settings.requirements.versions import admits, newest_admitted


@pytest.mark.parametrize(
    ("requirement", "newest"),
    [
        ("jax", None),
        ("jax>=0.7", None),
        ("jax>=0.4,<0.8", (0, 7)),
        ("jax<0.8", (0, 7)),
        ("JAX[cuda12] >= 0.4, < 0.8", (0, 7)),
        ("jax (>=0.4,<0.7)", (0, 6)),
        ("jax==0.6.*", (0, 6)),
        ("jax~=0.6.2", (0, 6)),
        ("jax~=0.6", None),
        ("jax<1", None),
        ("jax<=0.6.2", (0, 6)),
        ("jax<0.6.2", (0, 6)),
        ("jax<0.6.0", (0, 5)),
        ("jax==0.6.2", (0, 6)),
        ("jax==0.6.0rc1", (0, 6)),
        ("jax<0.10", (0, 9)),
        ("jax!=0.8.*", None),
        ("jax<0.9,!=0.8.*", (0, 7)),
        ("jax<0.6; python_version < '3.12'", (0, 5)),
        ("jax @ git+https://example.org/jax", None),
        ("jax>=0.9,<0.5", None),
        ("jax<0.5 and nonsense", None),
    ],
)
def test_the_newest_jax_that_is_admitted(requirement, newest):
    assert newest_admitted([[requirement]]) == newest


@pytest.mark.parametrize(
    ("project", "newest"),
    [
        ({"dependencies": ["jax>=0.4", "jax<0.7", "numpy<3"]}, (0, 6)),
        ({"dependencies": ["jaxlib<0.5", "jax-md<0.3", "numpy"]}, None),
        ({"dependencies": ["jax<0.7"], "optional-dependencies": {"x": ["jax<0.5"]}}, (0, 6)),
        ({"optional-dependencies": {"x": ["jax<0.5"], "y": ["jax[cuda]<0.6"]}}, (0, 5)),
        ({"optional-dependencies": {"x": ["jax>=0.4", "jax<0.5"], "y": ["numpy"]}}, (0, 4)),
        ({"dependencies": ["jax<0.5; python_version<'3.10'", "jax; python_version>'3'"]}, None),
        ({"dependencies": ["jax<0.5; python_version<'3.10'", "jax<0.7; os_name=='x'"]}, (0, 6)),
        ({"dependencies": ["jax<0.7", "jax<0.5; python_version<'3.10'"]}, (0, 6)),
        ({"optional-dependencies": {"x": ["jax<0.5; os_name=='x'", "jax<0.8"]}}, (0, 7)),
        ({"optional-dependencies": {"x": ["jax<0.5; os_name=='x'"]}}, (0, 4)),
        ({"dependencies": "jax<0.5"}, None),
        ({"dependencies": [3]}, None),
    ],
)
def test_what_a_project_admits(project, newest):
    assert newest_admitted(jax_requirements({"project": project})) == newest


@pytest.mark.parametrize(
    ("groups", "version", "admitted"),
    [
        ((), (0, 4), True),
        ((("jax>=0.4",),), (0, 4), True),
        ((("jax>=0.4.30",),), (0, 4), True),
        ((("jax>=0.7",),), (0, 4), False),
        ((("jax<0.4",),), (0, 4), False),
        ((("jax>=0.7",), ("jax==0.4.20",)), (0, 4), True),
        ((("jax>=0.7; python_version>'3.11'",),), (0, 4), False),
    ],
)
def test_whether_a_version_is_admitted(groups, version, admitted):
    assert admits(groups, version) is admitted
