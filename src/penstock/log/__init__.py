"""Append, read, recover, trim, seal and verify logs."""

import logging

# Here, where every broker passes: a program chooses its own handlers.
logging.getLogger("penstock").addHandler(logging.NullHandler())
