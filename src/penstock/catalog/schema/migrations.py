"""The catalog's tables, as numbered steps from an empty database to the newest version.

Invariant: the migrations that are missing and their numbers are stored in one transaction, so a
database is always at exactly one version, and a new one costs one sync. A released migration is
never changed. The tenant is in every key. Topic ids are unique across tenants, and come from a
counter that outlives the topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.catalog.database.interface import Database
from penstock.catalog.schema.client_tables import CLIENT_TABLES
from penstock.catalog.schema.clock_tables import CLOCK_TABLES
from penstock.catalog.schema.cluster_tables import CLUSTER_TABLES, HTTP_ADDRESSES, NODE_COLUMNS
from penstock.catalog.schema.group_tables import GROUP_SETTINGS, GROUP_TABLE, REDRIVE_COLUMNS
from penstock.catalog.schema.holding_tables import HOLDING_TABLES
from penstock.catalog.schema.login_columns import LOGIN_COLUMNS
from penstock.catalog.schema.owner_columns import OWNER_COLUMNS
from penstock.catalog.schema.partition_columns import PARTITION_COLUMNS
from penstock.catalog.schema.role_tables import ROLE_TABLES
from penstock.catalog.schema.share_tables import SHARE_TABLES
from penstock.catalog.schema.user_quota_tables import USER_QUOTA_TABLES
from penstock.model.errors import RefusedError

if TYPE_CHECKING:
    from penstock.catalog.database.thread import Runner


@dataclass(frozen=True, slots=True)
class Migration:
    """The statements that lead from `number - 1` to `number`."""

    number: int
    statements: tuple[str, ...]


MIGRATIONS: Final = (
    Migration(
        1,
        (
            """
            create table tenants (
                tenant text not null primary key,
                created_at bigint not null
            )
            """,
            """
            create table counters (
                counter text not null primary key,
                next_value bigint not null
            )
            """,
            "insert into counters (counter, next_value) values ('topic_id', 1)",
            """
            create table topics (
                tenant text not null references tenants (tenant),
                topic_id bigint not null unique,
                key text not null,
                declared text not null,
                settings text not null,
                created_at bigint not null,
                primary key (tenant, topic_id),
                unique (tenant, key)
            )
            """,
            """
            create table bindings (
                tenant text not null,
                position bigint not null,
                filter text not null,
                topic_id bigint not null,
                primary key (tenant, position),
                unique (tenant, filter),
                foreign key (tenant, topic_id) references topics (tenant, topic_id)
                    on delete cascade
            )
            """,
            "create index bindings_of_topic on bindings (tenant, topic_id)",
            """
            create table consumers (
                tenant text not null,
                topic_id bigint not null,
                consumer text not null,
                created_at bigint not null,
                primary key (tenant, topic_id, consumer),
                foreign key (tenant, topic_id) references topics (tenant, topic_id)
                    on delete cascade
            )
            """,
            """
            create table positions (
                tenant text not null,
                topic_id bigint not null,
                consumer text not null,
                epoch bigint not null,
                next_offset bigint not null,
                saved_at bigint not null,
                primary key (tenant, topic_id, consumer),
                foreign key (tenant, topic_id, consumer)
                    references consumers (tenant, topic_id, consumer) on delete cascade
            )
            """,
        ),
    ),
    Migration(
        2,
        (
            "insert into counters (counter, next_value) values ('incarnation', 1)",
            """
            create table sessions (
                tenant text not null references tenants (tenant),
                client_id text not null,
                owner text not null,
                incarnation bigint not null unique,
                expiry_s bigint not null,
                is_connected bigint not null,
                disconnected_at bigint not null,
                primary key (tenant, client_id)
            )
            """,
            """
            create table subscriptions (
                tenant text not null,
                client_id text not null,
                filter text not null,
                qos bigint not null,
                options bigint not null,
                identifier bigint not null,
                since text not null,
                primary key (tenant, client_id, filter),
                foreign key (tenant, client_id) references sessions (tenant, client_id)
                    on delete cascade
            )
            """,
            """
            create table session_positions (
                tenant text not null,
                client_id text not null,
                topic_id bigint not null references topics (topic_id) on delete cascade,
                epoch bigint not null,
                next_offset bigint not null,
                primary key (tenant, client_id, topic_id),
                foreign key (tenant, client_id) references sessions (tenant, client_id)
                    on delete cascade
            )
            """,
            """
            create table outstanding (
                tenant text not null,
                client_id text not null,
                topic_id bigint not null references topics (topic_id) on delete cascade,
                message_offset bigint not null,
                packet_id bigint not null,
                qos bigint not null,
                is_released bigint not null,
                primary key (tenant, client_id, topic_id, message_offset),
                foreign key (tenant, client_id) references sessions (tenant, client_id)
                    on delete cascade
            )
            """,
            """
            create table opened (
                tenant text not null,
                client_id text not null,
                topic_id bigint not null references topics (topic_id) on delete cascade,
                packet_id bigint not null,
                primary key (tenant, client_id, topic_id, packet_id),
                foreign key (tenant, client_id) references sessions (tenant, client_id)
                    on delete cascade
            )
            """,
            """
            create table levels (
                topic_id bigint not null primary key references topics (topic_id)
                    on delete cascade,
                epoch bigint not null,
                level_offset bigint not null
            )
            """,
            """
            create table retained (
                tenant text not null,
                name text not null,
                topic_id bigint not null references topics (topic_id) on delete cascade,
                message_offset bigint not null,
                timestamp bigint not null,
                expires_at bigint not null,
                qos bigint not null,
                kind bigint not null,
                publisher text not null,
                headers text not null,
                payload bytea not null,
                primary key (tenant, name)
            )
            """,
        ),
    ),
    Migration(
        3,
        (
            """
            create table credentials (
                tenant text not null references tenants (tenant),
                user_name text not null,
                password_hash text not null,
                created_at bigint not null,
                changed_at bigint not null,
                primary key (tenant, user_name)
            )
            """,
        ),
    ),
    Migration(
        4,
        (
            "insert into counters (counter, next_value) values ('will_id', 1)",
            """
            create table wills (
                tenant text not null references tenants (tenant),
                will_id bigint not null primary key,
                client_id text not null,
                owner text not null,
                name text not null,
                payload bytea not null,
                qos bigint not null,
                retain bigint not null,
                headers text not null,
                message_expiry_s bigint not null,
                delay_s bigint not null,
                session_expiry_s bigint not null,
                due_at bigint not null
            )
            """,
        ),
    ),
    Migration(
        5,
        (
            "alter table subscriptions add column feed_id bigint not null default 0",
            "alter table subscriptions add column expression text not null default ''",
            """
            create table feed_positions (
                tenant text not null,
                client_id text not null,
                feed_id bigint not null,
                topic_id bigint not null references topics (topic_id) on delete cascade,
                epoch bigint not null,
                next_offset bigint not null,
                primary key (tenant, client_id, feed_id, topic_id),
                foreign key (tenant, client_id) references sessions (tenant, client_id)
                    on delete cascade
            )
            """,
            """
            create table outstanding_by_feed (
                tenant text not null,
                client_id text not null,
                feed_id bigint not null,
                topic_id bigint not null references topics (topic_id) on delete cascade,
                message_offset bigint not null,
                packet_id bigint not null,
                qos bigint not null,
                is_released bigint not null,
                primary key (tenant, client_id, feed_id, topic_id, message_offset),
                foreign key (tenant, client_id) references sessions (tenant, client_id)
                    on delete cascade
            )
            """,
            """
            insert into outstanding_by_feed
                (tenant, client_id, feed_id, topic_id, message_offset, packet_id, qos, is_released)
            select tenant, client_id, 0, topic_id, message_offset, packet_id, qos, is_released
            from outstanding
            """,
            "drop table outstanding",
            "alter table outstanding_by_feed rename to outstanding",
        ),
    ),
    Migration(
        6,
        (
            """
            create table shares (
                tenant text not null references tenants (tenant),
                share_id bigint not null,
                filter text not null,
                is_live bigint not null,
                primary key (tenant, share_id)
            )
            """,
            """
            create table share_positions (
                tenant text not null,
                share_id bigint not null,
                topic_id bigint not null references topics (topic_id) on delete cascade,
                epoch bigint not null,
                next_offset bigint not null,
                primary key (tenant, share_id, topic_id),
                foreign key (tenant, share_id) references shares (tenant, share_id)
                    on delete cascade
            )
            """,
            """
            create table share_outstanding (
                tenant text not null,
                share_id bigint not null,
                topic_id bigint not null references topics (topic_id) on delete cascade,
                message_offset bigint not null,
                qos bigint not null,
                client_id text not null,
                packet_id bigint not null,
                is_released bigint not null,
                primary key (tenant, share_id, topic_id, message_offset),
                foreign key (tenant, share_id) references shares (tenant, share_id)
                    on delete cascade
            )
            """,
        ),
    ),
    Migration(
        7,
        (
            """
            create table ordinals (
                tenant text not null,
                topic_id bigint not null,
                consumers bigint not null,
                producers bigint not null,
                primary key (tenant, topic_id),
                foreign key (tenant, topic_id) references topics (tenant, topic_id)
                    on delete cascade
            )
            """,
            """
            create view all_topics as
            select topics.declared as topicname,
                   topics.topic_id as topicid,
                   coalesce(ordinals.consumers, 0) as consumers,
                   coalesce(ordinals.producers, 0) as producers,
                   coalesce(levels.level_offset, 0) as tailid
            from topics
            left join ordinals
                on ordinals.tenant = topics.tenant and ordinals.topic_id = topics.topic_id
            left join levels on levels.topic_id = topics.topic_id
            """,
            """
            create view all_consumers as
            select consumer as consumerid, next_offset as queueoffset from positions
            """,
        ),
    ),
    Migration(8, GROUP_TABLE),
    Migration(
        9,
        (
            """
            create table idempotency_keys (
                tenant text not null,
                topic_id bigint not null,
                key text not null,
                digest bigint not null,
                first_offset bigint not null,
                message_count bigint not null,
                stored_at bigint not null,
                primary key (tenant, topic_id, key),
                foreign key (tenant, topic_id) references topics (tenant, topic_id)
                    on delete cascade
            )
            """,
            "create index idempotency_keys_by_age on idempotency_keys (tenant, stored_at)",
        ),
    ),
    Migration(
        10,
        (
            """
            create table pipeline_runs (
                tenant text not null references tenants (tenant),
                run_id text not null,
                job text not null,
                arguments text not null,
                state text not null,
                started_at bigint not null,
                updated_at bigint not null,
                ended_at bigint not null,
                row_count bigint not null,
                batch_count bigint not null,
                lag bigint not null,
                offsets text not null,
                error text not null,
                primary key (tenant, run_id)
            )
            """,
        ),
    ),
    Migration(
        11,
        (
            """
            create table access_keys (
                tenant text not null,
                key_id text not null,
                user_name text not null,
                digest text not null,
                created_at bigint not null,
                primary key (tenant, key_id),
                foreign key (tenant, user_name) references credentials (tenant, user_name)
                    on delete cascade
            )
            """,
        ),
    ),
    Migration(12, ("alter table topics add column is_automatic bigint not null default 0",)),
    Migration(13, CLOCK_TABLES),
    Migration(
        14,
        (
            "alter table tenants add column first_name text not null default ''",
            "alter table tenants add column last_name text not null default ''",
            "alter table tenants add column email text not null default ''",
            # The views know no tenant, so they show the topics of the default one.
            "drop view all_topics",
            "drop view all_consumers",
            """
            create view all_topics as
            select topics.declared as topicname,
                   topics.topic_id as topicid,
                   coalesce(ordinals.consumers, 0) as consumers,
                   coalesce(ordinals.producers, 0) as producers,
                   coalesce(levels.level_offset, 0) as tailid
            from topics
            left join ordinals
                on ordinals.tenant = topics.tenant and ordinals.topic_id = topics.topic_id
            left join levels on levels.topic_id = topics.topic_id
            where topics.tenant = 'default'
            """,
            """
            create view all_consumers as
            select consumer as consumerid, next_offset as queueoffset from positions
            where tenant = 'default'
            """,
        ),
    ),
    Migration(15, ROLE_TABLES),
    Migration(16, CLIENT_TABLES),
    Migration(17, LOGIN_COLUMNS),
    Migration(18, GROUP_SETTINGS),
    Migration(19, OWNER_COLUMNS),
    Migration(20, PARTITION_COLUMNS),
    Migration(21, CLUSTER_TABLES),
    Migration(22, USER_QUOTA_TABLES),
    Migration(23, REDRIVE_COLUMNS),
    Migration(24, NODE_COLUMNS),
    Migration(25, HTTP_ADDRESSES),
    Migration(26, SHARE_TABLES),
    Migration(27, HOLDING_TABLES),
)


async def migrate(runner: Runner, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the database to the newest version; refuses one that is newer than this program."""
    await runner.run(partial(bring_up, migrations))


def bring_up(migrations: Sequence[Migration], database: Database) -> None:
    """The same inside a transaction of a database that is open on this thread."""
    database.execute("create table if not exists schema_version (version bigint primary key)")
    ((version,),) = database.fetch("select coalesce(max(version), 0) from schema_version")
    newest = migrations[-1].number
    if version > newest:
        raise RefusedError(
            f"the catalog has schema version {version} but this Penstock supports versions up to "
            f"{newest}: run the newer Penstock, or restore the copy from before the upgrade"
        )
    for migration in migrations:
        if migration.number > version:
            for statement in migration.statements:
                database.execute(statement)
            database.execute("insert into schema_version (version) values ($1)", migration.number)
