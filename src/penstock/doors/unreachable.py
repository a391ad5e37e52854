"""Why another broker cannot be reached, for people."""

from __future__ import annotations

import os
import ssl

from penstock.model.errors import UnavailableError


def unreachable(where: str, failed: OSError, *, is_tls: bool, ca_hint: str) -> UnavailableError:
    """The error for a connection that was not made; `ca_hint` says how to give a CA."""
    if isinstance(failed, ssl.SSLCertVerificationError):
        return UnavailableError(
            f"cannot connect to {where}: its certificate is not trusted "
            f"({failed.verify_message}); {ca_hint}"
        )
    is_broken = isinstance(failed, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)
    if is_tls and is_broken:
        return UnavailableError(
            f"cannot connect to {where}: the TLS handshake failed "
            f"({_why(failed) or 'closed by the server'}); check that this port uses TLS"
        )
    return UnavailableError(
        f"cannot connect to {where}: {_why(failed)}; check that a broker is listening there"
    )


def _why(failed: OSError) -> str:
    return os.strerror(failed.errno) if failed.errno and failed.errno > 0 else str(failed)
