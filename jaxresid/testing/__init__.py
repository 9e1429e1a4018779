"""What tests with the pytest plugin work with: `Residuals` is the type of the fixture."""

from __future__ import annotations

from jaxresid.testing.fixture import Residuals as Residuals
