"""Certificates for servers of this machine, from an authority made for one test run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """The files of a server that is `localhost`."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make an authority and a certificate; `openssl` takes some milliseconds for each."""
    made = Certificates(*(directory / name for name in ("ca.pem", "server.pem", "server.key")))
    authority_key = directory / "ca.key"
    _request(authority_key, made.authority, "authority", "keyUsage=critical,keyCertSign,cRLSign")
    _request(
        made.key,
        made.certificate,
        "localhost",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "basicConstraints=critical,CA:FALSE",
        signed_by=(made.authority, authority_key),
    )
    return made


def _request(
    key: Path, file: Path, name: str, *extensions: str, signed_by: tuple[Path, Path] | None = None
) -> None:
    signer = ["-CA", signed_by[0], "-CAkey", signed_by[1]] if signed_by else []
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-keyout", key, "-out", file, *signer),
            *(part for extension in extensions for part in ("-addext", extension)),
        ],
        check=True,
        capture_output=True,
    )
