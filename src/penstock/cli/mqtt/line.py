"""A connection that comes back: lost, it is made anew, with growing pauses.

Only one that stood before is made anew: who cannot connect at all hears it at once. So does whom
the server refuses, and whose message it answers by closing the connection, CLOSINGS_MAX times.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Final

from penstock.cli.mqtt.client import MqttClient, Outcome, Target, open_client
from penstock.cli.output import warn
from penstock.model.errors import RefusedError, UnavailableError
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connect
from penstock.mqtt.properties import NO_PROPERTIES, Properties

PAUSE_S_FIRST: Final = 0.5
PAUSE_S_MAX: Final = 30.0
CLOSINGS_MAX: Final = 3  # in a row, with the same message unanswered


class Line:
    """One client's connections, one after the other. `client` is the one that stands."""

    def __init__(self, target: Target, *, comes_back: bool = True, is_quiet: bool = False) -> None:
        self._target = target
        self._comes_back = comes_back
        self._is_quiet = is_quiet
        self._client: MqttClient | None = None
        self._pause_s = PAUSE_S_FIRST
        self._closings = 0

    @property
    def client(self) -> MqttClient:
        assert self._client is not None, "opened first"
        return self._client

    async def open(self) -> MqttClient:
        self._client = await open_client(self._target)
        return self._client

    async def renew(self, lost: UnavailableError) -> MqttClient:
        """Connect again, however long it takes; raises `lost` where that is not wanted.

        RefusedError when the server has closed too many connections on the same message.
        """
        if not self._comes_back:
            raise lost
        before = self.client
        await before.drop()
        self._learn_from(before)
        self.note(f"{lost}; reconnecting")
        target = replace(self._target, connect=_coming_back(self._target.connect))
        while True:
            # Not all clients of a broker that was away at the same moment.
            await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
            try:
                self._client = await open_client(target, before)
            except UnavailableError:
                self._closings = 0  # it was away, which is no answer to a message
            else:
                self.note("reconnected")
                return self._client

    def _learn_from(self, before: MqttClient) -> None:
        """Pauses go on growing until a connection was of use, else a broker is hammered."""
        if before.has_advanced or before.stood_s >= PAUSE_S_MAX:
            self._pause_s = PAUSE_S_FIRST
            self._closings = 0
        message = before.unanswered
        if message is None:
            return
        self._closings += 1
        if self._closings == CLOSINGS_MAX:
            raise RefusedError(
                f"the server closed the connection {CLOSINGS_MAX} times instead of acknowledging "
                f"the message {message.name!r}, so it rejects the message: use MQTT 5 (-V 5) to "
                "learn the reason"
            )

    async def publish(
        self, name: str, payload: bytes, *, qos: int, retain: bool, properties: Properties
    ) -> asyncio.Future[Outcome]:
        """As the client does; again, if the connection was lost before it was taken."""
        while True:
            try:
                return await self.client.publish(
                    name, payload, qos=qos, retain=retain, properties=properties
                )
            except UnavailableError as lost:
                await self.renew(lost)

    async def wait_acknowledged(self, done: asyncio.Future[Outcome]) -> Outcome:
        """As the client does, over as many connections as it takes."""
        while True:
            try:
                return await self.client.wait_acknowledged(done)
            except UnavailableError as lost:
                await self.renew(lost)

    async def close(self, *, is_clean: bool, forgets: bool = False) -> None:
        """Take leave, unless something went wrong; if told, the session ends with that."""
        if self._client is None:
            return
        if not is_clean:
            await self._client.drop()
            return
        expiry = Properties(session_expiry_interval=0) if forgets else NO_PROPERTIES
        await self._client.stop(expiry)

    def note(self, text: str) -> None:
        if not self._is_quiet:
            warn(text)


def _coming_back(connect: Connect) -> Connect:
    """A session that outlives its connection goes on; another one begins anew."""
    if connect.version == MQTT_5 and connect.properties.session_expiry_interval:
        return replace(connect, clean_start=False)
    return connect
