from __future__ import annotations

import pytest

from tests.certificates import Certificates


@pytest.fixture(autouse=True)
def few_authorities(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each client read one authority: reading all of them takes most of a test's time."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
