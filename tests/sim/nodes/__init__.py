"""A deterministic simulation of several nodes: leases, fences, recovery, sessions that move.

One seed makes one history: clients of QoS 1 and 2, nodes that are killed, frozen, cut off and
started again, on a Kafka and a PostgreSQL in memory and on a clock that jumps. Real are the log in
Kafka with its sender and follower, heartbeats, recovery and all SQL of the catalog. Sessions keep
only what a client may send twice. `.venv/bin/python -m tests.sim.nodes SEED` prints a history.
"""
