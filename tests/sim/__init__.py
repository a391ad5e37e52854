"""A deterministic simulation of the log under faults.

One seed makes one history: random publishers, readers and upkeep over the real log, on a disk
that loses what was not synced, on a loop whose time is virtual. The same seed replays the same
history: `.venv/bin/python -m tests.sim SEED` prints it.
"""
