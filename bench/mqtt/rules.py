"""A broker with roles, rules and quotas, as a benchmark compares it with one that has none.

Clients log in as one user who has ten roles with 100 rules each. Every name of the benchmarks is
matched by 120 of the rules, a name beside them is denied, and the other rules are about names that
nobody uses. All quotas are on, and high enough that none of them stops a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock import AsyncBroker

USER: Final = "bench"
PASSWORD: Final = b"a password of the benchmarks"
ROLES: Final = 10
ROLE_RULES: Final = 100
# Filters that match the names of the rows; each name is matched by two of them.
FILTERS: Final = (
    *("bench/#", "bench/+"),
    *("plant/#", "plant/+/temp"),
    *("loose/#", "loose/+"),
    *("d/#", "d/+"),
)
ACTIONS: Final = (
    "publish",
    "subscribe",
    "receive",
    "publish,receive",
    "subscribe,receive",
    "publish,subscribe,receive",
)
DENIED: Final = "deny publish,subscribe,receive bench/denied"
SETTINGS: Final = """\
[quotas]
connections = 1000000
subscriptions = 10000000
stored_bytes = "1 TiB"
retained_bytes = "1 TiB"
publish_rate = 1000000000
publish_bytes_rate = "1 TiB"

[quotas.user]
connections = 1000000
subscriptions = 10000000
publish_rate = 1000000000
publish_bytes_rate = "1 TiB"
"""


def put_rules(directory: str) -> None:
    """Add the user, the roles and the rules to a data directory."""
    # Here, because an older checkout, which a run compares with, has no rules.
    from penstock.core.access import parse_rule

    async def main() -> None:
        async with AsyncBroker(Path(directory)) as broker:
            access = broker.engine.access
            names = [f"bench-{number}" for number in range(ROLES)]
            for number, name in enumerate(names):
                await access.roles.add(name, [parse_rule(text) for text in role_rules(number)])
            await access.add_user(USER, PASSWORD, names)

    asyncio.run(main())


def role_rules(number: int) -> list[str]:
    """The rules of one role."""
    rules = [f"allow {actions} {filter}" for filter in FILTERS for actions in ACTIONS]
    if number == ROLES - 1:
        rules.append(DENIED)
    return [*rules, *_unused(number, ROLE_RULES - len(rules))]


def _unused(number: int, count: int) -> Iterator[str]:
    for at in range(count):
        yield f"allow publish,subscribe,receive site/{number}/line/{at}/#"
