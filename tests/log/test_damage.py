"""Damaged files: what opens is a prefix without a gap, and no corrupt record is ever returned.

Every byte of a small log is changed in turn; the active segment is cut at each of its last bytes,
and garbage or zeros follow it. CorruptError is an answer; a wrong record never is.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.commit import run_jobs
from penstock.log.embedded import EmbeddedLog
from penstock.log.files import RealDisk
from penstock.log.interface import Draft, LogIdentity, LogSettings
from penstock.log.marks import MARK_IDEMPOTENCY_KEY, Mark
from penstock.log.reader import FileReader
from penstock.log.segment import segment_bases, segment_path
from penstock.log.store import EmbeddedStore, log_directory
from penstock.log.verify import verify_log
from penstock.model.clock import ManualClock
from penstock.model.errors import CorruptError
from penstock.model.record import Record
from tests.sim.fake_disk import FakeDisk
from tests.sim.workers import SimWorkers, VirtualLoop

ROOT = Path("/data")
IDENTITY = LogIdentity("default", 1, "orders")
DIRECTORY = log_directory(ROOT, IDENTITY)
SETTINGS = LogSettings(segment_bytes=700)
