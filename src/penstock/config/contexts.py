"""Contexts: names for the brokers and data directories that a person works with.

They are in `contexts.json` in the configuration directory of Penstock ($XDG_CONFIG_HOME/penstock,
else ~/.config/penstock), which only its owner can read: an address may hold a password.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from penstock.config.defaults import environment
from penstock.model.errors import RefusedError

FILE: Final = "contexts.json"
NAME_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Context:
    """Which broker, and how to log in to it."""

    at: str  # a directory or a URL
    key_file: str = ""
    tenant: str = ""
    mqtt: str = ""  # a URL; empty: the broker says where it speaks MQTT
    cafile: str = ""  # whose certificates are trusted there


@dataclass(slots=True)
class Contexts:
    """All contexts of a person; `current` is used if a command names nothing else."""

    current: str = ""
    contexts: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None:
            known = ", ".join(sorted(self.contexts)) or "none yet"
            raise RefusedError(
                f"there is no context {name!r}: add it with `penstock context add` (known "
                f"contexts: {known})"
            )
        return found


def contexts_path() -> Path:
    home = environment().get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home, "penstock", FILE)


def chosen_context() -> str:
    """The context that the environment names, or none."""
    return environment().get("PENSTOCK_CONTEXT", "")


def load_contexts() -> Contexts:
    """What is stored; RefusedError if the file cannot be used."""
    path = contexts_path()
    try:
        stored = json.loads(path.read_bytes())
        contexts = {name: Context(**one) for name, one in stored["contexts"].items()}
        return Contexts(stored["current"], contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as failed:
        raise RefusedError(f"{str(path)!r} cannot be read: {failed.strerror}") from failed
    except (ValueError, TypeError, KeyError, AttributeError) as broken:
        raise RefusedError(
            f"{str(path)!r} is not a file of contexts ({broken}): correct it, or remove it"
        ) from broken


def save_contexts(contexts: Contexts) -> None:
    """Replace the file; nobody but its owner can read it at any time."""
    path = contexts_path()
    text = json.dumps(asdict(contexts), indent=1, ensure_ascii=False)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{FILE}-")  # mode 0600
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(temporary, path)
    except OSError as failed:
        raise RefusedError(f"{str(path)!r} cannot be written: {failed.strerror}") from failed


def check_context_name(name: str) -> str:
    is_plain = 0 < len(name) <= NAME_CHARS_MAX and not name.startswith("-")
    if not is_plain or not all(char.isalnum() or char in "-_." for char in name):
        raise RefusedError(
            f"{name!r} is not a valid name of a context: use 1 to {NAME_CHARS_MAX} letters, "
            "digits, '-', '_' and '.'"
        )
    return name
