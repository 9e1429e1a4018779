"""The requirements on jax of files for pip."""

from jaxresid.settings.requirements.pip_files import pip_requirements


def test_a_file_with_what_pip_reads(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text(
        "-f https://example.org/jax_releases.html\n"
        "# jax==0.1\n"
        "jaxlib==0.4.13\n"
        "jax[cuda12] == 0.4.13  # the last one\n"
        "JAX>=0.4 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "-e git+https://example.org/jax#egg=jax\n"
    )
    assert pip_requirements(path) == ["jax[cuda12] == 0.4.13", "JAX>=0.4"]


def test_included_files_count(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "requirements.txt").write_text("-r a/base.txt\n--constraint=pins.txt\n-r none.txt")
    (tmp_path / "a/base.txt").write_text("jax>=0.4\n-r ../requirements.txt\n")
    (tmp_path / "pins.txt").write_text("\ufeffjax<0.6\n")
    found = pip_requirements(tmp_path / "requirements.txt")
    assert set(found) == {"jax>=0.4", "jax<0.6"}
