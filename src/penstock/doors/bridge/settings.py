"""What an operator says about a bridge: one `[[bridges]]` of the settings file."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.core.access import CLIENT
from penstock.core.naming.bridged_names import BridgeTopic
from penstock.model.errors import InvalidSetting
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.mqtt.kinds import MQTT_5

KEEP_ALIVE_S: Final = 60
# Messages out to the other broker; an MQTT 5 broker says how many it allows, often fewer.
IN_FLIGHT_MAX: Final = 1_000
# Before MQTT 5 a broker cannot say how many it allows. Mosquitto allows 20: beyond them it
# acknowledges messages and drops them.
IN_FLIGHT_MAX_OLD: Final = 20


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """To one other broker."""

    name: str
    host: str
    port: int
    topics: tuple[BridgeTopic, ...]
    is_tls: bool = False
    version: int = MQTT_5
    client_id: str = ""  # at the other broker
    user: str = ""
    password_file: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    keep_alive_s: int = KEEP_ALIVE_S
    in_flight_max: int = IN_FLIGHT_MAX
    clean_start: bool = False
    bridge_bit: bool = True  # before MQTT 5: tell the other broker that this is a bridge
    role: str = CLIENT
    tenant: TenantId = DEFAULT_TENANT

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.is_tls else 'mqtt'}://{host}:{self.port}"

    @property
    def local_id(self) -> str:
        """Client id and user here. No user has a name with a colon."""
        return f"bridge:{self.name}"


def read_password(settings: BridgeSettings) -> bytes | None:
    """The first line of the file; None without one."""
    path = settings.password_file
    if path is None:
        return None
    try:
        lines = path.read_bytes().splitlines()
    except OSError as failed:
        raise InvalidSetting(
            f"[[bridges]] {settings.name!r}: password_file {str(path)!r} cannot be read: "
            f"{failed.strerror}"
        ) from failed
    if not lines or not lines[0]:
        raise InvalidSetting(
            f"[[bridges]] {settings.name!r}: password_file {str(path)!r} is empty: write the "
            "password into its first line"
        )
    return lines[0]


def make_context(settings: BridgeSettings) -> ssl.SSLContext | None:
    """How the bridge speaks TLS; None if it does not. InvalidSetting if a file cannot be used."""
    if not settings.is_tls:
        return None
    ca, cert, key = settings.tls_ca, settings.tls_cert, settings.tls_key
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as failed:
        files = ", ".join(
            f"{name} {str(path)!r}"
            for name, path in (("tls_ca", ca), ("tls_cert", cert), ("tls_key", key))
            if path is not None
        )
        raise InvalidSetting(
            f"[[bridges]] {settings.name!r}: one of the TLS files cannot be used ({files}): "
            f"{failed.strerror or failed}"
        ) from failed
    return context
