"""The fast lane: which messages may be forwarded before they are durable (DESIGN §4).

Compiled by mypyc; the same source runs interpreted.
"""

from __future__ import annotations


def may_go_ahead(retain: bool, is_level: bool, keeps_qos0: bool) -> bool:
    """May a message of QoS 0 be forwarded in the tick it arrived, ahead of its commit?

    Only while readers have been given all that came before it in its log (`is_level`): then what
    goes ahead is a suffix, and order holds. A retained message waits, so that a client that
    subscribes before its commit is given it live. Where QoS 0 is kept for sessions everything
    waits: what is kept is known by its offset.
    """
    return is_level and not retain and not keeps_qos0
