"""Whether a listener would let strangers in although nobody wrote that down."""

from __future__ import annotations

from penstock.broker.access.access import Access
from penstock.core.networks import is_loopback
from penstock.model.errors import InvalidSetting


def check_exposure(access: Access, host: str, *, takes_anybody: bool = True) -> None:
    """InvalidSetting if so. A listener that demands certificates does not take anybody."""
    if access.asks_login or access.allow_anonymous or not takes_anybody:
        return
    if not is_loopback(host):
        raise InvalidSetting(
            f"listening on {host} would accept everybody, because no user exists: add a user "
            "(penstock user add), listen on 127.0.0.1, or use --allow-anonymous"
        )
