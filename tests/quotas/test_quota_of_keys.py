"""Keys beyond the quota of a tenant or a user are refused; a revoked key makes room again."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.access import key_id_of
from tests.doors.hosted import Hosted
from tests.doors.users import add_users
from tests.http.access.test_http_access import basic
from tests.http.asking import Answer, Asking


class Admin:
    def __init__(self, broker: Hosted) -> None:
        self._client = Asking(broker.ports["http"])

    def ask(self, method: str, path: str) -> Answer:
        return self._client.ask(method, path, Authorization=basic("alice", "wonder"))

    def make_key(self, user: str) -> Answer:
        return self.ask("POST", f"/v1/users/{user}/keys")


@pytest.mark.parametrize(("table", "others_may"), [("quotas", False), ("quotas.user", True)])
def test_a_key_too_many_is_answered_429_until_another_is_revoked(
    tmp_path: Path, table: str, others_may: bool
) -> None:
    add_users(tmp_path / "data", alice="wonder", bob="builder")
    config = tmp_path / "penstock.toml"
    config.write_text(f"[{table}]\nkeys = 2\n")
    with Hosted(tmp_path / "data", config=config) as broker:
        admin = Admin(broker)
        first, second = admin.make_key("bob"), admin.make_key("bob")
        assert first.status == second.status == 201
        refused = admin.make_key("bob")
        assert refused.status == 429 and "2 keys" in refused.detail
        assert admin.make_key("alice").status == (201 if others_may else 429)
        key_id = key_id_of(first.json["key"])
        assert admin.ask("DELETE", f"/v1/keys/{key_id}").status == 204
        assert admin.make_key("bob").status == 201
