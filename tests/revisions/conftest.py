"""What the tests of what is traced elsewhere share."""

from tests.repositories import git, left_over, repository  # noqa: F401
