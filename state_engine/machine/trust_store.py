"""The machine's certificate authorities as a Java trust store; has no counterpart in Flink.

A Java from a wheel trusts only what it was built with. Where the network is reached through an authority
that the operating system trusts and Java does not know, a download fails although pip's works. The store
written here holds exactly what the operating system (and Python) trusts, in Java's own JKS format.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import struct
from collections.abc import Sequence
from pathlib import Path

# A trust store holds nothing secret: its password only keys the checksum at its end.
STORE_PASSWORD = "changeit"

SYSTEM_BUNDLES: tuple[str, ...] = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def machine_authorities() -> list[bytes]:
    """The DER certificates of the authorities that this machine trusts, each once."""
    certificates = dict.fromkeys(ssl.create_default_context().get_ca_certs(binary_form=True))
    for bundle in SYSTEM_BUNDLES:
        try:
            text = Path(bundle).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        certificates |= dict.fromkeys(ssl.PEM_cert_to_DER_cert(pem) for pem in _PEM.findall(text))
    return list(certificates)


def jks(certificates: Sequence[bytes]) -> bytes:
    """A JKS trust store of DER certificates.

    >>> jks([])[:4].hex()
    'feedfeed'
    """
    version, trusted, created_ms = 2, 2, 0
    body = struct.pack(">III", 0xFEEDFEED, version, len(certificates))
    for index, certificate in enumerate(certificates):
        body += struct.pack(">I", trusted) + _text(f"authority-{index}") + struct.pack(">Q", created_ms)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    # The format keys its checksum with the password and this fixed phrase.
    keyed = STORE_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(keyed, usedforsecurity=False).digest()


def java_options(store: Path) -> str:
    """Options that make a JVM trust the store's authorities instead of its own."""
    options = {"trustStore": str(store), "trustStoreType": "JKS", "trustStorePassword": STORE_PASSWORD}
    return " ".join(f"-Djavax.net.ssl.{key}={value}" for key, value in options.items())


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8")
    return struct.pack(">H", len(encoded)) + encoded
