"""Is everything of a tenant invisible to another, under the same names, through every door?"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.model.errors import RefusedError, TopicNotFound
from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Connack, Connect, Disconnect, Publish, Will
from penstock.mqtt.properties import Properties
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.doors.wire import Wire
from tests.http.asking import Asking
from tests.waiting import wait_until

TENANTS = ("default", "acme", "globex")


def login(tenant: str) -> tuple[str, bytes]:
    """The same user in every tenant, each with a password of its own."""
    return ("ann" if tenant == "default" else f"{tenant}/ann"), f"of {tenant}".encode()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Hosted]:
    with Hosted(tmp_path) as broker:
        add_tenants(broker)
        yield broker


def add_tenants(broker: Hosted) -> None:
    async def add(server: Any) -> None:
        for tenant in TENANTS:
            if tenant != "default":
                await server.broker.tenants.add(tenant, "Wile E.", "Coyote", "c@acme.example")
            await server.broker.engine.access.add_user("ann", login(tenant)[1], tenant=tenant)

    broker.run(add)


class Asker(Asking):
    """Asks over HTTP as the user of a tenant."""

    def __init__(self, broker: Hosted, tenant: str) -> None:
        super().__init__(broker.ports["http"])
        user, password = login(tenant)
        pair = base64.b64encode(user.encode() + b":" + password).decode()
        self._login = {"Authorization": f"Basic {pair}"}

    def get(self, method: str, path: str, body: Any = b"", **headers: str) -> Any:
        """What the answer holds; the status if it is a refusal."""
        answer = self.ask(method, path, body, **self._login, **headers)
        if answer.status >= 300:
            return answer.status
        return answer.json if answer.body else None


class Client(Wire):
    """Speaks MQTT as the user of a tenant."""

    def __init__(self, broker: Hosted, tenant: str, client_id: str, will: Will | None = None):
        super().__init__(broker.port, client_id, MQTT_5)
        user, password = login(tenant)
        kept = Properties(session_expiry_interval=600)
        self.send(
            Connect(client_id, False, 0, will, user, password, version=MQTT_5, properties=kept)
        )
        assert self.expect(Connack).reason == Reason.SUCCESS

    def payloads(self) -> list[bytes]:
        """Of all messages that have come up to now."""
        return [one.payload for one in self.settle() if isinstance(one, Publish)]


def test_over_http_each_tenant_has_its_own_topics_records_consumers_and_groups(
    broker: Hosted,
) -> None:
    for tenant in TENANTS:
        with Asker(broker, tenant) as client:
            assert client.get("GET", "/v1/topics")["topics"] == []
            client.get("PUT", "/v1/topics/orders", {})
            client.get("POST", "/v1/topics/orders/records", {"payload": tenant})
            client.get("PUT", "/v1/topics/orders/consumers/billing", {})
            client.get("POST", "/v1/topics/orders/groups/workers/fetch", {})
            client.get("POST", "/v1/bindings", {"filter": "a/#", "topic": "orders"})
            client.get("PUT", f"/v1/topics/only-{tenant}", {})
            client.get("POST", "/v1/users/ann/keys")
    for tenant in TENANTS:
        with Asker(broker, tenant) as client:
            topics = {one["topic"] for one in client.get("GET", "/v1/topics")["topics"]}
            assert topics == {"orders", f"only-{tenant}"}
            assert set(client.get("GET", "/topics")["topics"]) == topics
            records = client.get("GET", "/v1/topics/orders/records")["records"]
            assert [one["payload"] for one in records] == [tenant]
            assert len(client.get("GET", "/v1/topics/orders/consumers")["consumers"]) == 1
            assert len(client.get("GET", "/v1/topics/orders/groups")["groups"]) == 1
            assert len(client.get("GET", "/v1/bindings")["bindings"]) == 1
            assert [one["user"] for one in client.get("GET", "/v1/users")["users"]] == ["ann"]
            assert len(client.get("GET", "/v1/keys")["keys"]) == 1
            for other in TENANTS:
                found = client.get("GET", f"/v1/topics/only-{other}")
                assert (found != 404) == (other == tenant)


def test_over_mqtt_the_same_client_id_and_names_are_sessions_that_never_meet(
    broker: Hosted,
) -> None:
    clients = {tenant: Client(broker, tenant, "pump") for tenant in TENANTS}
    for client in clients.values():
        for filter in ("#", "$share/g/#"):
            assert client.subscribe(filter).reasons == (Reason.GRANTED_QOS_0,)
    for tenant, client in clients.items():
        client.publish("state", tenant.encode(), retain=True)
    for tenant, client in clients.items():
        assert [client.receive().payload for _ in range(2)] == [tenant.encode()] * 2
        assert client.payloads() == []
    for tenant in TENANTS:
        late = Client(broker, tenant, "late")
        late.subscribe("state")
        assert late.receive().payload == tenant.encode()
        late.subscribe("$SYS/broker/clients/connected")
        assert late.receive().payload == b"2", "of this tenant only"
        late.close()
        with Asker(broker, tenant) as asking:
            sessions = asking.get("GET", "/v1/sessions")["sessions"]
            assert {one["client_id"] for one in sessions} == {"pump", "late"}
    for client in clients.values():
        client.close()


def test_wills_of_a_tenant_reach_its_own_clients_only(broker: Hosted) -> None:
    heirs = {tenant: Client(broker, tenant, "heir") for tenant in TENANTS}
    for heir in heirs.values():
        heir.subscribe("gone")
    Client(broker, "acme", "mortal", Will("gone", b"farewell")).close()
    assert heirs["acme"].receive().payload == b"farewell"
    for tenant, heir in heirs.items():
        assert heir.payloads() == [], tenant
        heir.close()


def test_the_bus_is_of_the_default_tenant_and_meets_no_other(tmp_path: Path) -> None:
    with Hosted(tmp_path / "data", bus__path=str(tmp_path / "bus")) as broker:
        add_tenants(broker)
        called: list[bytes] = []
        clients = {tenant: Client(broker, tenant, "pump") for tenant in TENANTS}
        with penstock.Bus.connect(tmp_path / "bus") as bus:
            bus.subscribe(7, lambda id, data: called.append(data))
            for tenant, client in clients.items():
                client.subscribe("bus/#")
                client.publish("bus/7", tenant.encode(), qos=1)
            bus.publish(7, b"of a program")
            wait_until(lambda: b"of a program" in called)
        assert called == [b"default", b"of a program"]
        assert clients["default"].receive().payload == b"default"
        assert clients["default"].receive().payload == b"of a program"
        for tenant in ("acme", "globex"):
            assert clients[tenant].payloads() == [tenant.encode()]
        for client in clients.values():
            client.close()


def test_only_an_operator_asks_for_another_tenant(broker: Hosted) -> None:
    with Asker(broker, "acme") as client:
        assert client.get("GET", "/v1/tenants") == 403
        assert client.get("GET", "/v1/topics", Penstock_Tenant="globex") == 403
        assert client.get("GET", "/v1/topics", Penstock_Tenant="acme") == {"topics": []}
    broker.run(lambda server: server.broker.engine.access.set_roles("ann", ["operator"]))
    with Asker(broker, "default") as operator:
        found = operator.get("GET", "/v1/tenants")["tenants"]
        assert [one["tenant"] for one in found] == list(TENANTS)
        assert operator.get("GET", "/v1/topics", Penstock_Tenant="nobody") == 404
        operator.get("PUT", "/v1/topics/theirs", {}, Penstock_Tenant="globex")
        assert operator.get("GET", "/v1/topics")["topics"] == []
        assert operator.get("DELETE", "/v1/tenants/globex") == 409
        client = Client(broker, "globex", "pump")
        assert operator.get("DELETE", "/v1/tenants/globex?purge=true") is None
        client.expect(Disconnect)
        assert client.is_closed()
        assert operator.get("GET", "/v1/tenants/globex") == 404
        assert operator.get("PUT", "/v1/tenants/Globex", {}) == 400
        assert operator.get("PUT", "/v1/tenants/globex", {})["tenant"] == "globex"
        assert operator.get("GET", "/v1/topics", Penstock_Tenant="globex")["topics"] == []
    with Asker(broker, "globex") as gone:
        assert gone.get("GET", "/v1/topics") == 401


def test_tenants_keep_what_they_have_over_a_restart(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        add_tenants(broker)
        for tenant in TENANTS:
            client = Client(broker, tenant, "pump")
            client.subscribe("#", qos=1)
            client.close()
            with Client(broker, tenant, "publisher") as publisher:
                publisher.publish("state", tenant.encode(), qos=1, retain=True)
    for tenant in TENANTS:
        with penstock.Broker(tmp_path, tenant=tenant) as local:
            assert [one.payload for one in local.read("default")] == [tenant.encode()]
    with Hosted(tmp_path) as broker:
        for tenant in TENANTS:
            client = Client(broker, tenant, "pump")
            assert client.receive().payload == tenant.encode()
            assert client.payloads() == []
            client.close()


def test_a_broker_in_a_program_is_of_one_tenant(tmp_path: Path) -> None:
    with Hosted(tmp_path) as broker:
        add_tenants(broker)
    with penstock.Broker(tmp_path, tenant="acme") as acme:
        acme.create_topic("orders")
        acme.publish("dynamite", "orders")
    with penstock.Broker(tmp_path) as default, pytest.raises(TopicNotFound):
        default.publish("no", "orders")
    with pytest.raises(RefusedError, match="there is no tenant 'nobody'"):
        penstock.Broker(tmp_path, tenant="nobody")
