"""A certificate for 127.0.0.1 that signs itself, and the environment of store servers that use it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from statestore import channel


def secrets(folder: Path, token: str = "let me in") -> dict[str, str]:
    """The environment variables of servers, workers and drivers that trust each other."""
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=rollforward test",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    key.chmod(0o600)
    return {
        channel.TOKEN: token,
        channel.CA: str(certificate),
        channel.CERTIFICATE: str(certificate),
        channel.KEY: str(key),
    }
