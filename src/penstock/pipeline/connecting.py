"""Which origin and which intake a connection leads to: files, or a broker's address.

Each is imported when it is used: Spark starts processes for every query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.pipeline.source.options import Connection, SinkOptions
from penstock.pipeline.source.origin import Origin

if TYPE_CHECKING:
    from penstock.pipeline.link import BrokerLink
    from penstock.pipeline.sink.intake import Intake


def origin_of(connection: Connection) -> Origin:
    """Where the records of a query are."""
    if connection.path is not None:
        from penstock.pipeline.source.directory import DirectoryOrigin

        return DirectoryOrigin(connection.path, connection.stored_tenant)
    from penstock.pipeline.source.remote import RemoteOrigin

    return RemoteOrigin(link_to(connection))


def intake_of(options: SinkOptions, *, is_stream: bool = False) -> Intake:
    """Where to write; refuses now what could only be refused after the work is done.

    A stream comes here for every micro-batch, and waits for a broker that restarts.
    """
    intake: Intake
    if options.connection.path is None:
        from penstock.pipeline.sink.remote_intake import PATIENCE_S, RemoteIntake

        intake = RemoteIntake(link_to(options.connection), PATIENCE_S if is_stream else 0.0)
    else:
        from penstock.pipeline.sink.intake import DirectoryIntake

        intake = DirectoryIntake(options.connection.path, options.connection.stored_tenant)
        intake.check_free()
    if options.topic is not None:
        intake.find(options.topic)
    return intake


def link_to(connection: Connection) -> BrokerLink:
    from penstock.pipeline.link import BrokerLink

    login = (connection.user, connection.password, connection.token)
    return BrokerLink(connection.url, *login, connection.tenant)
