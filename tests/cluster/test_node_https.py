"""Do nodes pass requests on over TLS, and only to nodes whose certificates they can check?"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.node_queues import Queues
from tests.cluster.node_world import NodeWorld
from tests.doors.certificates import Authority
from tests.kafka_server import KafkaServer
from tests.pipeline.by_address.clusters import free_port
from tests.postgres_server import PostgresServer


def https_world(
    kafka: KafkaServer, postgres: PostgresServer, folder: Path, trusted: Path, signer: Authority
) -> NodeWorld:
    """Two nodes that advertise https:// only, and believe what `trusted` has signed."""
    own: dict[int, dict[str, str]] = {}
    for at in (0, 1):
        cert, key = signer.sign(f"node-{at}")
        port = free_port()
        own[at] = {
            "PENSTOCK_HTTP__TLS_LISTEN": f"127.0.0.1:{port}",
            "PENSTOCK_HTTP__TLS_CERT": str(cert),
            "PENSTOCK_HTTP__TLS_KEY": str(key),
            "PENSTOCK_NODE__HTTP_ADVERTISE": f"https://127.0.0.1:{port}",
            "PENSTOCK_NODE__HTTP_CA_FILE": str(trusted),
        }
    return NodeWorld(kafka, postgres, folder, own=own)


def test_requests_are_passed_on_over_https(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    signer = Authority(tmp_path)
    with https_world(kafka, postgres, tmp_path, signer.cert, signer) as world:
        addresses = world.sql("select http_address from {}.nodes order by inc")
        assert all(address.startswith("https://127.0.0.1:") for (address,) in addresses)
        queues = Queues(world)
        queues.ready("orders")
        consumer = "/v1/topics/orders/consumers/billing"
        queues.done(0, "PUT", consumer, {"from": "earliest"})
        queues.publish(1, "orders", [str(number) for number in range(40)])
        got: list[str] = []
        while len(got) < 40:  # one of the two nodes has to ask the other
            fetched = queues.done(
                len(got) % 2, "POST", consumer + "/fetch", {"limit": 7, "wait": 10}
            )
            got += [one["payload"] for one in fetched["records"]]
        assert sorted(got, key=int) == [str(number) for number in range(40)]


def test_a_node_whose_certificate_another_authority_signed_is_not_asked(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    signer, other = Authority(tmp_path), Authority(tmp_path, "other")
    with https_world(kafka, postgres, tmp_path, other.cert, signer) as world:
        queues = Queues(world)
        queues.ready("orders")
        consumer = "/v1/topics/orders/consumers/billing"
        answers = [queues.ask(at, "PUT", consumer, {}) for at in (0, 1)]
        refused = [answer for status, answer in answers if status == 503]
        assert sorted(status for status, _ in answers) == [201, 503], answers
        assert "certificate verify failed" in refused[0]["detail"], refused
