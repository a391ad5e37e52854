"""What happens to MQTT clients, for operators: counted, and written to the server log.

Nothing here is called for a message. A line names a client by its id and where it comes from; it
has no payload and no password.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.broker.access.audit import claimed_tenant
from penstock.broker.figures.metrics import Metrics
from penstock.broker.limited_log import LimitedLog
from penstock.broker.session.session import Session
from penstock.core.masking import masked
from penstock.doors.link import Link
from penstock.doors.mqtt.connection import Connection
from penstock.doors.mqtt.world import MqttWorld
from penstock.doors.strangers import CROWDED, EVICTED, FULL
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.mqtt.packets import Connect


class ClientEvents:
    """Used by the door and by those who let clients in."""

    def __init__(
        self, metrics: Metrics, log: LimitedLog, worlds: Mapping[TenantId, MqttWorld]
    ) -> None:
        self._metrics = metrics
        self._worlds = worlds
        self._log = log

    def connected(self, connection: Connection, session: Session, *, is_present: bool) -> None:
        if self._log.tells_info:
            values = {
                "client": session.client_id,
                "user": connection.principal.user,
                "peer": connection.peer,
                "version": connection.version,
                "keep_alive_s": connection.keep_alive_s,
                "resumes": is_present,
            }
            login = "as user %(user)r" if values["user"] else "without a login"
            text = f"client %(client)r connected from %(peer)s {login}"
            self._log.info("client connected", text, values)

    def disconnected(self, connection: Connection, session: Session) -> None:
        if self._log.tells_info:
            reason = connection.end_reason or "the connection was closed without DISCONNECT"
            values = {"client": session.client_id, "reason": reason}
            text = "client %(client)r disconnected: %(reason)s"
            self._log.info("client disconnected", text, values)

    def login_refused(self, connection: Connection, packet: Connect, why: str) -> None:
        """The broker's Access has counted it. A certificate decides, whatever else is said."""
        login, certificate = packet.username or "", connection.certificate
        if certificate is not None:
            access = self._worlds[DEFAULT_TENANT].exchange.engine.access
            login = access.certificates.login_of(certificate)
        values = {
            "client": packet.client_id,
            "user": masked(login),
            "peer": connection.peer,
            "reason": why,
        }
        text = "login of user %(user)r, client %(client)r, from %(peer)s refused: %(reason)s"
        self._log.warning("login refused", text, values)
        self._note_login(claimed_tenant(login, self._worlds), login, connection, why)

    def _note_login(self, tenant: TenantId, who: str, connection: Connection, why: str) -> None:
        audit = self._worlds[tenant].exchange.engine.audit
        audit.note_login(who, connection.peer, "mqtt", why)

    def certificate_refused(self, peer: str, problem: str) -> None:
        """Its name is not proven, so that only its address is recorded, for the default tenant."""
        self._worlds[DEFAULT_TENANT].exchange.engine.audit.note_login("", peer, "mqtt", problem)

    def refused(self, connection: Connection, packet: Connect, counted_as: str, why: str) -> None:
        self._metrics.refused[counted_as] += 1
        values = {"client": packet.client_id, "peer": connection.peer, "reason": why}
        text = "client %(client)r from %(peer)s refused: %(reason)s"
        self._log.warning("client refused", text, values)
        principal = connection.principal
        if counted_as == "client_id":  # somebody who logged in wants to be another client
            self._note_login(principal.tenant, principal.user, connection, why)

    def too_many(self, link: Link, *, is_full: bool) -> None:
        self._metrics.refused["connections" if is_full else "strangers"] += 1
        text = FULL if is_full else CROWDED
        self._log.warning("connection refused", text, {"peer": link.peer})

    def evicted(self, network: str) -> None:
        """A connection that had not logged in was closed for another one."""
        self._metrics.refused["strangers"] += 1
        self._log.warning("connection closed", EVICTED, {"network": network})

    def too_much(self, connection: Connection) -> None:
        self._metrics.refused["strangers"] += 1
        text = "connection from %(peer)s closed: clients that have not logged in hold too much"
        self._log.warning("stranger refused", text, {"peer": connection.peer})

    def unread(self, connection: Connection) -> None:
        """Clients that do not read leave too much unread together: this one has to go."""
        connection.end_reason = "it does not read what it is sent"
        text = "connection from %(peer)s closed: it does not read what it is sent"
        self._log.warning("connection closed", text, {"peer": connection.peer})

    def timed_out(self, connection: Connection) -> None:
        """A connection has not logged in in time: often a probe that only looks for the port."""
        self._metrics.refused["connect_timeout"] += 1
        text = "connection from %(peer)s closed: it did not log in within connect_timeout"
        self._log.info("connect timeout", text, {"peer": connection.peer})

    def violated(self, connection: Connection, problem: str) -> None:
        self._metrics.violations["mqtt"] += 1
        session = connection.session
        values = {
            "client": "" if session is None else session.client_id,
            "peer": connection.peer,
            "problem": problem,
        }
        text = "client %(client)r from %(peer)s broke a rule of MQTT: %(problem)s"
        self._log.warning("protocol violation", text, values)
