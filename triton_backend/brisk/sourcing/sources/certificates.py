"""Certificates by which hosts authenticate each other, signed by the hosts' own authority.

A host without such a certificate gets no answer. A client expects in the server's certificate the
name or address by which it connects.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brisk.errors import InvalidConfigurationError
from brisk.ownership import check_directory, make_private, open_own

AUTHORITY, CERTIFICATE, KEY = "ca.pem", "host.pem", "host.key"
AUTHORITY_KEY = "ca.key"
_NAME = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}")
_VALID = datetime.timedelta(days=3650)
_EARLIER = datetime.timedelta(hours=1)


class Security(NamedTuple):
    """The TLS 1.3 contexts of a host; each end checks the other's certificate."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def read_keys(folder: Path) -> Security:
    """Read this host's certificates and key, and return its TLS contexts.

    Raises InvalidConfigurationError if one is missing, or other users could read the key.
    """
    try:
        check_directory(folder)
        for name in (AUTHORITY, CERTIFICATE):
            os.close(open_own(folder / name))
        os.close(open_own(folder / KEY, is_secret=True))
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(folder / AUTHORITY)
            context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfigurationError(
            f"the keys of this host in {folder} cannot be used: {error}; expected {AUTHORITY}, "
            f"{CERTIFICATE} and {KEY}, as 'brisk hosts init' makes them"
        ) from error
    return Security(server, client)


def make_keys(folder: Path, names: Sequence[str]) -> list[Path]:
    """Make a folder with keys below ``folder`` for each host (a name or an address), and an
    authority unless one exists. Existing files are not changed.

    The authority's own key stays in ``folder``: with it, keys of more hosts can be made. Raises
    InvalidConfigurationError if a name is invalid or repeated, a host's folder exists, or the
    authority's key is missing.
    """
    places = []
    for name in names:
        if not _NAME.fullmatch(name) or name in (AUTHORITY, AUTHORITY_KEY):
            raise InvalidConfigurationError(f"{name!r:.80} is no name or address of a host")
        if names.count(name) > 1:
            raise InvalidConfigurationError(f"'{name}' is named twice")
        if (folder / name).exists():
            raise InvalidConfigurationError(f"{folder / name} is there already; remove it first")
    make_private(folder)
    key, certificate = _authority(folder)
    for name in names:
        place = folder / name
        make_private(place)
        host_key = _new_key()
        signed = _certificate(name, host_key, certificate, key)
        _write(place / AUTHORITY, _as_text(certificate), 0o644)
        _write(place / CERTIFICATE, _as_text(signed), 0o644)
        _write(place / KEY, _secret(host_key), 0o600)
        places.append(place)
    return places


def _authority(folder: Path) -> tuple[Any, Any]:
    """Return the authority's key and certificate; make each unless it exists: whoever made the key
    may have been ended before the certificate.

    Raises InvalidConfigurationError if the certificate alone is there: another key's would be
    believed by no host.
    """
    x509, serialization = _library()
    if not (folder / AUTHORITY_KEY).exists():
        if (folder / AUTHORITY).exists():
            raise InvalidConfigurationError(
                f"{folder / AUTHORITY_KEY} is missing, the key of {folder / AUTHORITY}; expected "
                "both, or a folder without either"
            )
        _write(folder / AUTHORITY_KEY, _secret(_new_key()), 0o600)
    with open(open_own(folder / AUTHORITY_KEY, is_secret=True), "rb") as file:
        key = serialization.load_pem_private_key(file.read(), None)
    if not (folder / AUTHORITY).exists():
        certificate = _certificate("brisk hosts", key, None, key)
        _write(folder / AUTHORITY, _as_text(certificate), 0o644)
    with open(open_own(folder / AUTHORITY), "rb") as file:
        return key, x509.load_pem_x509_certificate(file.read())


def _certificate(name: str, key: Any, issuer: Any, issuer_key: Any) -> Any:
    """Return the certificate of a host, or of the authority itself if ``issuer`` is None."""
    x509, _ = _library()
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(issuer is None, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False
        )
        .add_extension(_usage(is_authority=issuer is None), critical=True)
    )
    if issuer is not None:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), False)
        builder = builder.add_extension(x509.SubjectAlternativeName([_named(name)]), False)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(*, is_authority: bool) -> Any:
    x509, _ = _library()
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> Any:
    x509, _ = _library()
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _new_key() -> Any:
    _library()
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _as_text(certificate: Any) -> bytes:
    _, serialization = _library()
    return bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _secret(key: Any) -> bytes:
    _, serialization = _library()
    return bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file, whole or not at all. Raises FileExistsError if it exists, OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
    except BaseException:
        path.unlink()
        raise


def _library() -> tuple[Any, Any]:
    """Return cryptography's modules x509 and serialization. Raises InvalidConfigurationError if
    it is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise InvalidConfigurationError(
            "certificates are made with cryptography, which is not installed: "
            "pip install 'brisk-triton[remote]'"
        ) from error
    return x509, serialization
