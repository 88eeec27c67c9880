"""TLS contexts of bookies and their clients, made from PEM files.

TLS 1.2 is the oldest version that is accepted. Files are read once: a renewed certificate is used after a restart.
"""

from __future__ import annotations

import ssl

from dlog.errors import ConfigError


def server_context(certificate: str, key: str, client_ca: str = "") -> ssl.SSLContext:
    """The context of a bookie. client_ca: file of the authorities that must have signed the certificate of a client;
    empty: clients are not asked for one. Raises ConfigError if a file cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, certificate, key)
    if client_ca:
        _load_authorities(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: str, certificate: str = "", key: str = "", *, check_hostname: bool = False) -> ssl.SSLContext:
    """The context of a client of bookies. ca: file of the authorities that must have signed a bookie's certificate.

    certificate, key: shown to bookies that ask for one. check_hostname: whether a bookie's certificate must name the
    host that was connected to. Raises ConfigError if a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    _load_authorities(context, ca)
    if certificate:
        _load_certificate(context, certificate, key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    def no_password() -> str:
        raise ConfigError(f"private key has a password, write it without one: file={key}")

    try:
        context.load_cert_chain(certificate, key, no_password)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"certificate and key cannot be used, both must be PEM files that belong together: "
            f"{error.strerror or error}: certificate={certificate} key={key}"
        ) from error


def _load_authorities(context: ssl.SSLContext, file: str) -> None:
    try:
        context.load_verify_locations(file)
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(
            f"certificates of authorities cannot be read, write them in a PEM file: {why}: file={file}"
        ) from error
