"""How a listener speaks TLS: its files, which are read again when they change.

Files that cannot be used leave everything as it was, and the server log says so. Connections that
are open stay as they are, unless the certificate of their client is on a new revocation list.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.broker.upkeep.watched_files import identity_of
from penstock.doors.tls.revocation_lists import number_of, revoked_numbers
from penstock.model.certificate import Certificate
from penstock.model.errors import InvalidSetting

LOG: Final = logging.getLogger("penstock.tls")
NO_CERTIFICATE: Final = "PEER_DID_NOT_RETURN_A_CERTIFICATE"  # as OpenSSL calls it


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a TLS listener needs."""

    cert: Path
    key: Path | None  # None: it is in the same file
    client_ca: Path | None
    demands_client: bool
    crl: Path | None = None

    def paths(self) -> list[Path]:
        given = (self.cert, self.key, self.client_ca, self.crl)
        return [one for one in given if one is not None]


class TlsContext:
    """The context for the next handshake, and the certificates that are good for none."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._read_as = identity_of(files.paths())
        self._context = server_context(files)
        self.revoked = read_revoked(files)

    def reload(self, files: TlsFiles) -> None:
        """Read these files; InvalidSetting if they cannot be used, and the context stays."""
        read_as = identity_of(files.paths())
        context, revoked = server_context(files), read_revoked(files)
        self._context, self.revoked = context, revoked
        self._files, self._read_as = files, read_as

    def current(self) -> ssl.SSLContext:
        """The context of the files as they are now."""
        read_as = identity_of(self._files.paths())
        if read_as != self._read_as:
            self._read_as = read_as
            try:
                self.reload(self._files)
            except InvalidSetting as wrong:
                text = "%(problem)s; TLS goes on with what was read before"
                LOG.warning(text, {"event": "certificates not reloaded", "problem": str(wrong)})
            else:
                values = {"event": "certificates reloaded", "file": str(self._files.cert)}
                LOG.info("certificates were read again: %(file)s", values)
        return self._context


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """TLS 1.2 and newer with these files; InvalidSetting names the one that cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _check_readable("tls_cert", files.cert)
    if files.key is not None:
        _check_readable("tls_key", files.key)
    try:
        # An empty password, so that an encrypted key is refused instead of asking at the terminal.
        context.load_cert_chain(files.cert, files.key, password=lambda: "")
    except ssl.SSLError as failed:
        raise InvalidSetting(
            f"tls_cert {str(files.cert)!r} and its key cannot be used: {failed.reason or failed}; "
            "both must be PEM, belong together, and the key must not be encrypted"
        ) from failed
    if files.client_ca is not None:
        must_be = "one or more certificates in PEM"
        _load(context, "tls_client_ca", files.client_ca, must_be)
        context.verify_mode = ssl.CERT_REQUIRED if files.demands_client else ssl.CERT_OPTIONAL
    if files.crl is not None:
        before = context.cert_store_stats()["crl"]
        must_be = "one or more certificate revocation lists in PEM"
        _load(context, "tls_crl", files.crl, must_be)
        if context.cert_store_stats()["crl"] == before:
            raise InvalidSetting(
                f"tls_crl {str(files.crl)!r} contains no revocation list: it must be {must_be}"
            )
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def read_revoked(files: TlsFiles) -> frozenset[str]:
    """The numbers of the revoked certificates; none without a list."""
    if files.crl is None:
        return frozenset()
    try:
        return revoked_numbers(files.crl.read_bytes())
    except (OSError, ValueError) as failed:
        raise InvalidSetting(f"tls_crl {str(files.crl)!r} cannot be read: {failed}") from failed


def _load(context: ssl.SSLContext, setting: str, path: Path, must_be: str) -> None:
    _check_readable(setting, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as failed:
        raise InvalidSetting(
            f"{setting} {str(path)!r} cannot be used: {failed.reason or failed}; it must be "
            f"{must_be}"
        ) from failed


def _check_readable(setting: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as failed:
        raise InvalidSetting(
            f"{setting} {str(path)!r} cannot be read: {failed.strerror}"
        ) from failed


def certificate_of(shown: Mapping[str, Any] | None, raw: bytes | None) -> Certificate | None:
    """What both forms of `getpeercert` return; None without a certificate."""
    if not shown or raw is None:
        return None
    subject = {
        kind: str(value) for part in reversed(shown.get("subject", ())) for kind, value in part
    }
    return Certificate(
        subject.get("commonName", ""),
        subject.get("organizationName", ""),
        subject.get("organizationalUnitName", ""),
        hashlib.sha256(raw).hexdigest(),
        number_of(raw),
    )


def is_certificate_refused(failed: OSError) -> bool:
    """Whether a handshake failed because of the client's certificate, or for want of one."""
    is_wrong = isinstance(failed, ssl.SSLCertVerificationError)
    return is_wrong or getattr(failed, "reason", "") == NO_CERTIFICATE


def handshake_problem(failed: OSError) -> str:
    """Why a handshake failed, for people; '' if nobody knows."""
    said = getattr(failed, "verify_message", "") or getattr(failed, "reason", "")
    if said == NO_CERTIFICATE:
        return "the client sent none"
    if said == "CRL has expired":
        said += ": put a newer list into the file of tls_crl"
    return str(said or failed.strerror or failed)
