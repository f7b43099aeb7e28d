"""Certificates for 127.0.0.1, made as docs/security.md says: by the program ``openssl``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

LIMIT_S = 60.0


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """``NAME.crt``, which signs itself, and ``NAME.key`` (mode 0600). Without openssl the test skips, or
    fails with CI=true.
    """
    program = shutil.which("openssl")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("openssl is missing; on Debian: apt-get install openssl")
        pytest.skip("openssl is missing; on Debian: apt-get install openssl")
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "30", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    key.chmod(0o600)
    return certificate, key
