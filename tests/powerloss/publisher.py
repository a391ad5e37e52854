"""A real broker in a real program: uses everything, and says what it was told is stored.

Usage: publisher.py DIRECTORY LIFE, where LIFE is a name in LIVES.
Each line on stdout is a JSON array, written with one system call:
    ["begin", step, …]   about to be asked for
    ["done", step, …]    acknowledged by the broker
    ["sync", inode, place]   our own code is about to sync this file or directory, from there
promises.py reads them. A record's bytes follow from its topic and offset.
"""

from __future__ import annotations

import functools
import json
import os
import stat
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import penstock
from penstock import Broker
from penstock.model.record import TopicInfo

SEGMENT_BYTES = 64 * 1024

PACKAGE = Path(penstock.__file__).parent
PASSED_THROUGH = {  # says nothing about where a sync comes from
    ("disk", "sync"),
    ("disk", "sync_dir"),
    ("commit", "run_jobs"),
    ("commit", "_write"),
}

ends_at = ("", False)  # the place of a sync that we do not live to see; of a directory?


@functools.lru_cache(maxsize=100_000)
def message(declared: str, offset: int) -> bytes:
    """What the record at this offset holds: never the same for two of them, of any size."""
    head = f"{declared} {offset} ".encode()
    return head + bytes([offset % 251]) * (offset * 977 % 4_000)


def say(*words: object) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def tell_syncs() -> None:
    """From now on every sync that Python code makes is announced with the place it comes from."""
    turns: dict[int, threading.Lock] = defaultdict(threading.Lock)  # by inode: no mix-up of two

    def told(sync: Callable[[int], None]) -> Callable[[int], None]:
        def wrapper(fd: int) -> None:
            found = os.fstat(fd)
            where = place(sys._getframe(1))
            if (where, stat.S_ISDIR(found.st_mode)) == ends_at:
                os._exit(0)
            with turns[found.st_ino]:
                say("sync", found.st_ino, where)
                sync(fd)

        return wrapper

    for name in ("fsync", "fdatasync"):
        setattr(os, name, told(getattr(os, name)))


def place(frame: FrameType | None) -> str:
    """The functions of ours that led to a sync, innermost first, but for the disk's own."""
    names: list[str] = []
    while frame is not None and len(names) < 4:
        path = Path(frame.f_code.co_filename)
        name = frame.f_code.co_name
        is_ours = PACKAGE in path.parents
        if is_ours and (path.stem, name) not in PASSED_THROUGH:
            names.append(f"{path.stem}.{name}")
        frame = frame.f_back
    return " < ".join(names)


class Life:
    """One broker from opening to its end, with every step told before and after."""

    def __init__(self, directory: str) -> None:
        say("begin", "open")
        self.broker = Broker(
            directory,
            segment_bytes=SEGMENT_BYTES,
            upkeep_s=3_600,  # looked after when we say so
            position_save_s_max=0.005,
            disk_free_percent_min=0,
        )
        found = {
            topic.topic: [topic.end_offset, topic.epoch, self.positions(topic.topic)]
            for topic in self.broker.topics()
        }
        say("done", "open", found)

    def positions(self, topic: str) -> dict[str, int]:
        return {one.consumer: one.next_offset for one in self.broker.consumers(topic)}

    def facts(self, topic: str) -> TopicInfo:
        (found,) = [one for one in self.broker.topics() if one.topic == topic]
        return found

    def create(self, topic: str, **settings: Any) -> None:
        say("begin", "create", topic, settings)
        self.broker.create_topic(topic, **settings)
        say("done", "create", topic, self.facts(topic).id)

    def alter(self, topic: str, **settings: Any) -> None:
        say("begin", "alter", topic, settings)
        self.broker.alter_topic(topic, **settings)
        say("done", "alter", topic, settings)

    def delete(self, topic: str) -> None:
        say("begin", "delete", topic)
        self.broker.delete_topic(topic)
        say("done", "delete", topic)

    def publish(self, topic: str, count: int) -> None:
        """So many messages with one call."""
        start = self.facts(topic).end_offset
        say("begin", "publish", topic, start + count)
        messages = [message(topic, offset) for offset in range(start, start + count)]
        offsets = self.broker.publish_many(messages, topic)
        assert offsets == range(start, start + count)
        say("done", "publish", topic, start + count)

    def publish_each(self, topic: str, count: int) -> None:
        """So many messages, each acknowledged before the next."""
        for offset in range(start := self.facts(topic).end_offset, start + count):
            say("begin", "publish", topic, offset + 1)
            assert self.broker.publish(message(topic, offset), topic) == offset
            say("done", "publish", topic, offset + 1)

    def publish_together(self, count: int, *topics: str) -> None:
        """To several topics at once, so that they share rounds."""
        with ThreadPoolExecutor(len(topics)) as pool:
            list(pool.map(lambda topic: self.publish_each(topic, count), topics))

    def subscribe(self, consumer: str, topic: str, start: str = "earliest") -> None:
        say("begin", "subscribe", consumer, topic)
        self.broker.subscribe(consumer, topic, start=start)
        say("done", "subscribe", consumer, topic, self.positions(topic)[consumer])

    def unsubscribe(self, consumer: str, topic: str) -> None:
        say("begin", "unsubscribe", consumer, topic)
        self.broker.unsubscribe(consumer, topic)
        say("done", "unsubscribe", consumer, topic)

    def consume(self, consumer: str, topic: str, limit: int, *, commit: bool = True) -> None:
        say("begin", "consume", consumer, topic, commit)
        self.broker.consume(consumer, topic, limit=limit, commit=commit)
        say("done", "consume", consumer, topic, self.positions(topic)[consumer])

    def commit(self, consumer: str, topic: str, offset: int | None = None) -> None:
        target = self.positions(topic)[consumer] if offset is None else offset
        say("begin", "commit", consumer, topic, target)
        self.broker.commit(consumer, topic, offset)
        say("done", "commit", consumer, topic, target)

    def seek(self, consumer: str, topic: str, offset: int) -> None:
        say("begin", "seek", consumer, topic, offset)
        self.broker.seek(consumer, topic, offset)
        say("done", "seek", consumer, topic, offset)

    def bind(self, filter: str, topic: str) -> None:
        say("begin", "bind", filter, topic)
        self.broker.bind(filter, topic)
        say("done", "bind", filter, topic)

    def unbind(self, filter: str) -> None:
        say("begin", "unbind", filter)
        self.broker.unbind(filter)
        say("done", "unbind", filter)

    def look_after(self) -> None:
        """Seal, and let retention trim."""
        say("begin", "look_after")
        upkeep = self.broker._broker.engine.upkeep
        self.broker._call(upkeep.look_after_all())
        assert not upkeep.troubles, upkeep.troubles
        firsts = {topic.topic: topic.first_offset for topic in self.broker.topics()}
        say("done", "look_after", firsts)

    def close(self) -> None:
        say("begin", "close")
        self.broker.close()
        say("done", "close")

    def die(self) -> None:
        """End as if killed: nothing is flushed or closed."""
        os._exit(0)

    def die_before(self, place: str, *, of_directory: bool) -> None:
        """End as if killed, as soon as this sync is about to be made."""
        global ends_at
        ends_at = (place, of_directory)


def all_steps(life: Life) -> None:
    """Every kind of step at level fsync, over several segments."""
    life.create("orders")
    life.publish_each("orders", 4)
    life.create("Events")
    life.publish("Events", 30)
    life.subscribe("billing", "orders")
    life.subscribe("audit", "Events", "latest")
    life.bind("shop/#", "orders")
    life.bind("old/+", "Events")
    life.consume("billing", "orders", 2)
    life.consume("billing", "orders", 1)
    life.publish_together(8, "orders", "Events")
    life.commit("billing", "orders")
    life.consume("billing", "orders", 3, commit=False)
    life.commit("billing", "orders", 4)
    life.publish("orders", 40)
    life.publish("Events", 40)
    life.seek("audit", "Events", 7)
    life.create("doomed")
    life.publish("doomed", 50)
    life.subscribe("billing", "doomed")
    life.publish("orders", 20)
    life.look_after()
    life.delete("doomed")
    life.consume("audit", "Events", 5)
    life.publish_each("Events", 3)
    life.publish("Events", 40)
    life.unbind("old/+")
    life.alter("orders", retention_bytes=1)
    life.publish("orders", 30)
    life.look_after()
    life.create("Doomed")
    life.publish("Doomed", 3)
    life.consume("audit", "Events", 5)
    life.consume("billing", "orders", 5)
    life.close()


def go_on(life: Life) -> None:
    """Some more, and a sudden end."""
    life.publish_each("orders", 3)
    life.consume("audit", "Events", 4)
    life.consume("billing", "orders", 2)
    life.publish("Doomed", 30)
    life.unsubscribe("audit", "Events")
    life.delete("Doomed")
    life.create("late", retention_bytes=100_000)
    life.publish_together(5, "orders", "late", "Events")
    life.die_before("active.sync < commit.sync", of_directory=False)
    life.publish("orders", 3)


def die_rolling(life: Life) -> None:
    """The next segment is there and its entry not synced: the next life builds on it."""
    life.create("brief")
    life.publish("brief", 30)
    life.die_before("active.create_segment < commit.write", of_directory=True)
    life.publish("Events", 40)


def die_deleting(life: Life) -> None:
    life.publish("Events", 3)
    life.die_before("store._delete_files", of_directory=True)
    life.delete("brief")


def recover(life: Life) -> None:
    """Opening after a sudden end."""
    life.publish_each("orders", 2)
    life.subscribe("audit", "Events", "latest")
    life.publish("late", 30)
    life.look_after()
    life.publish_each("late", 2)
    life.close()


def loose_steps(life: Life) -> None:
    """Topics that acknowledge what the operating system holds, beside one that does not."""
    life.create("loose", durability="os")
    life.create("orders")
    life.publish_each("loose", 3)
    life.subscribe("billing", "loose")
    life.consume("billing", "loose", 2)
    life.commit("billing", "loose")
    life.publish("orders", 3)
    life.publish("loose", 60)
    life.consume("billing", "loose", 60)
    life.commit("billing", "loose")
    life.create("switched")
    life.publish("switched", 2)
    life.alter("switched", durability="os")
    life.publish("switched", 3)
    life.alter("switched", durability="fsync")
    life.create("idle", durability="os")
    life.publish("idle", 2)
    life.close()


def loose_go_on(life: Life) -> None:
    life.publish_each("loose", 4)
    life.consume("billing", "loose", 10)
    life.commit("billing", "loose")
    life.publish("orders", 3)
    life.publish("loose", 20)
    life.alter("orders", durability="os")
    life.publish("orders", 5)
    life.subscribe("billing", "orders", "latest")
    life.die()


def loose_recover(life: Life) -> None:
    life.publish_each("loose", 3)
    life.consume("billing", "loose", 100)
    life.commit("billing", "loose")
    life.alter("loose", durability="fsync")
    life.publish_each("loose", 2)
    life.publish("orders", 2)
    life.alter("orders", durability="fsync")
    life.publish("orders", 2)
    life.alter("orders", durability="os")
    life.publish("orders", 2)
    life.die()


def open_close(life: Life) -> None:
    life.close()


def open_die(life: Life) -> None:
    life.die()


LIVES = {
    life.__name__: life
    for life in (
        all_steps,
        go_on,
        die_rolling,
        die_deleting,
        recover,
        loose_steps,
        loose_go_on,
        loose_recover,
        open_close,
        open_die,
    )
}


if __name__ == "__main__":
    tell_syncs()
    LIVES[sys.argv[2]](Life(sys.argv[1]))
