"""A broker with its doors open: what `penstock serve` runs."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from penstock.app.aio import serving_broker
from penstock.app.first_user import add_first_user
from penstock.app.schedule import Schedule
from penstock.broker.access import check_exposure
from penstock.broker.access.tokens import Tokens
from penstock.broker.cluster.node import FORGET, KICK, SESSION
from penstock.broker.engine import Engine
from penstock.broker.settings import NodeSettings, make_settings
from penstock.broker.tenants import Tenants
from penstock.broker.world import World
from penstock.config import (
    OFF,
    ServerSettings,
    environment,
    parse_address,
    spark_variables,
    storage_variables,
)
from penstock.core.engine_kind import engine_kind
from penstock.doors.bridge.bridges import Bridges
from penstock.doors.budget import STRANGERS_BYTES_MAX, Budget
from penstock.doors.bus.door import BusDoor
from penstock.doors.descriptors import Descriptors
from penstock.doors.http.door import HttpDoor
from penstock.doors.http.passing.passing import Passing
from penstock.doors.http.passing.peer import make_context
from penstock.doors.http.routing.routes import add_all
from penstock.doors.link import shown_address
from penstock.doors.mqtt.door import MqttDoor
from penstock.doors.mqtt.kicking import kick_asked
from penstock.doors.selector import DoorSelector
from penstock.doors.tls.context import TlsContext, TlsFiles
from penstock.doors.tls.revocations import Revocations
from penstock.log.files.directory import SOCKET_NAME
from penstock.model.errors import InvalidSetting, UnavailableError
from penstock.model.record import DEFAULT_TENANT, TenantId
from penstock.model.version import VERSION

LOG: Final = logging.getLogger("penstock.server")


class Listener(NamedTuple):
    """An address that a door is opened on."""

    scheme: str
    host: str
    port: int
    context: TlsContext | None
    takes_anybody: bool  # also clients without a certificate
    is_shared: bool = False  # with other nodes on this machine


class Server:
    """The broker and its doors. Runs on a DoorLoop."""

    def __init__(
        self,
        settings: ServerSettings,
        selector: DoorSelector,
        reread: Callable[[], ServerSettings] | None = None,
    ) -> None:
        """`reread` reads the settings again, for `reload`; None: they never change."""
        self._reread = reread or (lambda: settings)
        self.broker = serving_broker(settings.data, settings.node, **settings.broker)
        self.on_ended: list[Callable[[str], None]] = []  # other nodes have taken over; why
        self.addresses: list[str] = []
        self._settings = settings
        self._selector = selector
        self._mqtt: MqttDoor | None = None
        self._http: HttpDoor | None = None
        self._bus: BusDoor | None = None
        self._bridges: Bridges | None = None
        self._worlds: dict[TenantId, World] = {}
        self._schedule: Schedule | None = None
        self._contexts: dict[str, TlsContext] = {}  # by scheme
        self._revocations: Revocations | None = None
        self._is_started = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the data directory first, the doors last; a refused start leaves nothing behind."""
        listeners = listeners_of(self._settings)
        await self.broker.open()
        for note in self.broker.notes:
            LOG.warning("recovered: %(note)s", {"event": "recovered", "note": note})
        try:
            await self._bind(listeners)
        except BaseException:
            self.broker.give_up()
            await self.close()
            raise
        try:
            await self._begin()
        except BaseException:
            await self.close()
            raise

    async def _bind(self, listeners: list[Listener]) -> None:
        """All that a start can be refused for. Until it returns no client is served."""
        settings = self._settings
        await self._apply_bindings()
        access = self.broker.engine.access
        access.allow_anonymous = settings.allow_anonymous
        access.certificates = settings.certificates
        access.roles.declare(settings.roles, settings.rules)
        await add_first_user(access, settings.first_user)
        if settings.tokens is not None:
            access.tokens = Tokens(settings.tokens, self.broker.engine.clock)
        for one in listeners:
            check_exposure(access, one.host, takes_anybody=one.takes_anybody)
        if settings.proxies and not access.asks_login and not access.allow_anonymous:
            raise InvalidSetting(
                "trusted_proxies would let clients of other machines in as clients of this one, "
                "because no user exists: add a user (penstock user add), or use --allow-anonymous"
            )
        if settings.bus != OFF:
            self._bus = BusDoor(self.broker.engine, settings.bus_processes_max)
            await self._bus.open(Path(settings.bus))
        if access.asks_login:
            await access.prepare_logins()
        bridges = await self._open_doors()
        await bridges.prepare()
        for one in listeners:  # without an await: nobody is served before all are bound
            self._listen(one)
        self._follow_revocations()
        self._listen_local(settings.data / SOCKET_NAME)

    async def _begin(self) -> None:
        if self._bus is not None:
            await self._bus.serve()
            self.addresses.append(f"bus:{self._settings.bus}")
        self.broker.announce(self.addresses, SOCKET_NAME)
        if self._settings.schedule:
            self._start_schedule()
        if self._bridges is not None:
            self._bridges.start()
        node = self.broker.engine.shared.node
        if node is not None:
            assert self._settings.node is not None
            address = self._settings.node.advertise or ", ".join(self.addresses)
            http = http_address(self._settings.node, self.addresses)
            await node.catalog.set_address(node.inc, address, http)
        values = {
            "event": "started",
            "version": VERSION,
            "engine": engine_kind(),
            "pid": os.getpid(),
            "data": str(self._settings.data),
            "listening": ", ".join(self.addresses),
        }
        LOG.info(
            "penstock %(version)s started: process %(pid)d, data %(data)s, listening on"
            " %(listening)s, %(engine)s engine",
            values,
        )
        self._is_started = True

    async def _apply_bindings(self) -> None:
        """What the settings bind is bound, after what was bound before."""
        for binding in self._settings.bindings:
            await self.broker.create_topic(binding.topic, exist_ok=True)
            await self.broker.bind(binding.filter, binding.topic)

    async def _open_doors(self) -> Bridges:
        settings = self._settings
        tenants = self.broker.tenants
        for engine in tenants.engines.values():
            await self._open_world(engine)
        loop = asyncio.get_running_loop()
        default = self._worlds[DEFAULT_TENANT]
        descriptors = Descriptors()
        proxies = settings.proxies
        strangers = Budget(STRANGERS_BYTES_MAX)  # of all doors together
        self._mqtt = MqttDoor(
            *(default, self._selector, loop, descriptors),
            limits=settings.mqtt_limits,
            proxies=proxies,
            strangers_budget=strangers,
        )
        self._take_part(tenants)
        bridges = self._bridges = Bridges(settings.bridges, self._mqtt, self._selector)
        build = partial(add_all, self._mqtt, tenants, self.reload, bridges)
        self._http = HttpDoor(
            *(default, build, self._selector, loop, descriptors),
            limits=settings.http_limits,
            proxies=proxies,
            strangers=strangers,
            passing=self._make_passing(default),
        )
        for world in self._worlds.values():
            if world is not default:
                self._admit(world)
        tenants.listeners.append(self)
        return bridges

    def _make_passing(self, world: World) -> Passing | None:
        """As a node, have others answer what this one cannot."""
        node, settings = world.engine.shared.node, self._settings.node
        if node is None or settings is None:
            return None
        return Passing(node, world.engine, make_context(settings.http_ca_file))

    def _take_part(self, tenants: Tenants) -> None:
        """As a node, do what the others ask for."""
        node, mqtt = tenants.shared.node, self._mqtt
        if node is None:
            return
        assert mqtt is not None
        node.on_asked[SESSION] = mqtt.release
        node.on_asked[KICK] = partial(kick_asked, self._worlds, is_forgotten=False)
        node.on_asked[FORGET] = partial(kick_asked, self._worlds, is_forgotten=True)
        node.count_clients = lambda: mqtt.connection_count
        node.on_draining.append(self._drain)
        node.on_recovered.append(self._adopt_wills)
        node.on_ended.append(self._end)

    def _drain(self, is_draining: bool) -> None:
        for world in self._worlds.values():
            world.wills.is_draining = is_draining
        if self._mqtt is not None:
            self._mqtt.drain(is_draining)

    def _adopt_wills(self) -> None:
        """A node was recovered: its wills are published here, unless their clients return."""
        for world in self._worlds.values():
            self._spawn(world.wills.open())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, reason: str) -> None:
        for listener in self.on_ended:
            listener(reason)

    async def _open_world(self, engine: Engine) -> World:
        limits = self._settings.mqtt_limits
        engine.topics.automatic_max = limits.auto_create_topics
        world = self._worlds[engine.tenant] = await World.open(
            engine, keeps_qos0=limits.queue_qos0, will_grace_s=limits.will_grace_s
        )
        return world

    def _admit(self, world: World) -> None:
        """Let users of another tenant than the default one in."""
        assert self._mqtt is not None and self._http is not None
        self._mqtt.add_world(world)
        self._http.tenants.add(world)

    # The broker's TenantListener

    async def begin_tenant(self, engine: Engine) -> None:
        self._admit(await self._open_world(engine))

    async def end_tenant(self, engine: Engine) -> None:
        assert self._mqtt is not None and self._http is not None
        self._mqtt.end_world(engine.tenant)
        self._http.tenants.end(engine.tenant)
        await self._worlds.pop(engine.tenant).close()

    def _start_schedule(self) -> None:
        settings = self._settings
        engine = self.broker.engine
        self._schedule = Schedule(
            settings.schedule,
            settings.data,
            engine.pipelines,
            clock=engine.clock,
            environment=environment()
            | storage_variables(settings.broker)
            | spark_variables(settings.spark_master),
            running_max=settings.jobs_max,
        )
        self._schedule.start()

    def _listen(self, one: Listener) -> None:
        assert self._mqtt is not None and self._http is not None
        if one.context is not None:
            self._contexts[one.scheme] = one.context
        listen = self._http.listen if one.scheme.startswith("http") else self._mqtt.listen
        try:
            bound = listen(one.host, one.port, one.context, is_shared=one.is_shared)
        except OSError as failed:
            why = os.strerror(failed.errno) if failed.errno else str(failed)
            raise UnavailableError(
                f"{one.scheme} cannot listen on {shown_address(one.host, one.port)}: "
                f"{why}; choose another address, or stop the program that uses this one"
            ) from failed
        self.addresses.append(f"{one.scheme}://{shown_address(*bound)}")

    def _follow_revocations(self) -> None:
        loop, access = asyncio.get_running_loop(), self.broker.engine.access
        contexts = self._contexts.values()
        self._revocations = Revocations(contexts, loop, access.revoke_certificates)
        self._revocations.start()

    def _listen_local(self, path: Path) -> None:
        """Take commands of whoever may open the data directory."""
        assert self._http is not None
        try:
            self._http.listen_local(path)
        except OSError as failed:
            raise UnavailableError(
                f"commands cannot be taken at {str(path)!r}: {failed.strerror or failed}; remove "
                "that file, or keep the data directory on a file system that has Unix sockets"
            ) from failed

    def reload(self) -> list[str]:
        """Read files and settings again that may change while the broker runs; what went wrong.

        Certificates, revocation lists, the keys of tokens, roles, rules, quotas and the log level.
        Whatever cannot be used stays as it was. No connection ends, except those whose certificate
        is now revoked.
        """
        problems: list[str] = []
        settings = self._settings
        try:
            settings = self._reread()
            self.broker.engine.access.roles.declare(settings.roles, settings.rules)
            self._set_quotas(settings)
        except InvalidSetting as wrong:
            problems.append(f"the settings stay as they were: {wrong}")
        logging.getLogger("penstock").setLevel(settings.log_level.upper())
        for scheme, files in (("mqtts", settings.tls), ("https", settings.http_tls)):
            context = self._contexts.get(scheme)
            if context is not None and files is not None:
                problems += _tried(f"TLS of {scheme}", partial(context.reload, files))
        tokens = self.broker.engine.access.tokens
        if tokens is not None and settings.tokens is not None:
            problems += _tried("tokens", partial(tokens.reload, settings.tokens))
        for problem in problems:
            LOG.warning("reload: %(problem)s", {"event": "reload failed", "problem": problem})
        if not problems:
            LOG.info("settings and certificates were read again", {"event": "reloaded"})
        return problems

    def _set_quotas(self, settings: ServerSettings) -> None:
        self.broker.tenants.set_quotas(make_settings(settings.broker).quotas)
        if self._mqtt is not None:
            self._mqtt.renew_meters()

    def reload_by_signal(self) -> None:
        self.broker.engine.audit.note_signal("reload", self.reload())

    def leave(self) -> None:
        """From now on `/readyz` says that this server stops; clients are served until `close`."""
        if self._http is not None:
            self._http.will_stop = True

    async def close(self) -> None:
        """Close the doors first, the data directory last."""
        self.leave()
        was_started, self._is_started = self._is_started, False
        if was_started:
            LOG.info("stopping", {"event": "stopping"})
        self.broker.hurry()
        schedule, self._schedule = self._schedule, None
        if schedule is not None:
            await schedule.close()
        bridges, self._bridges = self._bridges, None
        if bridges is not None:
            await bridges.stop()
        for world in self._worlds.values():
            world.wills.stop()
        mqtt, self._mqtt = self._mqtt, None
        if mqtt is not None:
            mqtt.close()
        if self._revocations is not None:
            self._revocations.close()
        http, self._http = self._http, None
        if http is not None:
            await http.close()
        bus, self._bus = self._bus, None
        worlds, self._worlds = self._worlds, {}
        try:
            if mqtt is not None:
                await mqtt.wait_gone()
            if bus is not None:
                await bus.close()
            for world in worlds.values():
                await world.close()
        finally:
            await self.broker.close()
        if was_started:
            LOG.info("stopped", {"event": "stopped"})


def _tried(what: str, work: Callable[[], None]) -> list[str]:
    try:
        work()
    except InvalidSetting as wrong:
        return [f"{what}: {wrong}; what was read before is still in use"]
    return []


def listeners_of(settings: ServerSettings) -> list[Listener]:
    """What the settings open; InvalidSetting if a TLS file cannot be used."""
    mqtts, https = tls_contexts(settings)
    node = settings.node
    own = [] if node is None else [("mqtt", node.listen), ("http", node.http_listen)]
    is_shared = node is not None and node.shares_ports
    alone = [
        Listener(scheme, *parse_address(address), None, True)
        for scheme, address in own
        if address != OFF
    ]
    return alone + [
        Listener(scheme, *parse_address(address), context, takes_anybody, is_shared)
        for scheme, address, context, takes_anybody in (
            ("mqtt", settings.mqtt, None, True),
            ("mqtts", settings.mqtts, mqtts, _takes_anybody(settings.tls)),
            ("http", settings.http, None, True),
            ("https", settings.https, https, _takes_anybody(settings.http_tls)),
        )
        if address != OFF
    ]


def http_address(node: NodeSettings, addresses: list[str]) -> str:
    """The URL where other nodes reach the HTTP of this one; empty: nowhere.

    A listener for all addresses is reached where the node advertises its MQTT, or by the name of
    its machine. A port that nodes share leads to any of them.
    """
    if node.http_advertise:
        return node.http_advertise.rstrip("/")
    urls = [one for one in addresses if one.startswith(("http://", "https://"))]
    if not urls or (node.shares_ports and node.http_listen == OFF):
        return ""
    scheme, _, address = urls[0].partition("://")
    host, port = parse_address(address)
    if host in ("0.0.0.0", "::"):
        host = parse_address(node.advertise)[0] if node.advertise else socket.gethostname()
    return f"{scheme}://{shown_address(host, port)}"


def _takes_anybody(files: TlsFiles | None) -> bool:
    return files is None or not files.demands_client


def tls_contexts(settings: ServerSettings) -> tuple[TlsContext | None, TlsContext | None]:
    """How the TLS listeners of MQTT and of HTTP speak."""
    return (
        None if settings.tls is None else TlsContext(settings.tls),
        None if settings.http_tls is None else TlsContext(settings.http_tls),
    )
