"""The command `penstock`: parse, run, and turn errors into a line and an exit code.

Only the module of the chosen command is imported, so that `penstock --help` and small commands
answer at once, and no command needs what another one imports.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from penstock.cli.output import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_REFUSED,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    UsageError,
    warn,
)
from penstock.model.errors import PenstockError, UnavailableError
from penstock.model.version import VERSION


class Command(NamedTuple):
    """Where a command is defined, and its line in --help."""

    module: str  # of penstock.cli; has `add_commands`
    says: str


# In the order in which --help shows them.
COMMANDS: Final = {
    "serve": Command("server.serve", "run a broker"),
    "pub": Command("mqtt.pub", "publish to an MQTT broker, with the options of mosquitto_pub"),
    "sub": Command(
        "mqtt.sub", "show messages of an MQTT broker, with the options of mosquitto_sub"
    ),
    "topic": Command("data.topics", "create, show, change and delete topics, erase records"),
    "binding": Command(
        "data.bindings", "add, list and remove bindings: which topic holds which names"
    ),
    "publish": Command("data.records", "store messages in a topic; needs no server"),
    "consume": Command("data.records", "show records of a topic; needs no server"),
    "consumer": Command(
        "data.records", "list, move and remove consumers: durable positions in a topic"
    ),
    "group": Command(
        "data.groups", "show, create and change groups of readers, redrive dead letters"
    ),
    "session": Command(
        "mqtt.sessions", "list, show, kick and remove MQTT clients of a running broker"
    ),
    "client": Command(
        "mqtt.clients", "list, show and forget MQTT clients that connected at any time"
    ),
    "bridge": Command("mqtt.bridges", "list the bridges to other MQTT brokers, and their state"),
    "node": Command("server.nodes", "list, show and drain the nodes of a cluster"),
    "status": Command("server.status", "show how a running broker is doing"),
    "top": Command("server.status", "show how a running broker is doing, refreshed until Ctrl-C"),
    "trace": Command("data.trace", "show where a message is: received, stored, sent, acknowledged"),
    "doctor": Command("server.doctor", "check this machine: engine, Java, disk, limits, ports"),
    "reload": Command("server.reload", "make a running broker read certificates and keys again"),
    "tenant": Command("security.tenants", "add, list, show and remove tenants"),
    "user": Command("security.users", "add, list, show and remove users and their keys"),
    "key": Command(
        "security.keys", "create, list, show and revoke keys with which programs log in"
    ),
    "role": Command("security.access", "add, list, show and remove roles: named sets of rules"),
    "rule": Command(
        "security.access", "add, list, show and remove rules of roles, users or everybody"
    ),
    "access": Command("security.access", "say whether a user may do something, and by which rule"),
    "log": Command("data.logs", "verify, dump, export and import the stored logs"),
    "backup": Command("data.backup", "copy the catalog and all topics at one moment"),
    "restore": Command("data.backup", "make a data directory from a backup"),
    "migrate": Command("data.migrate", "move a data directory into Kafka and PostgreSQL"),
    "history": Command(
        "data.histories", "list, show, verify, import and drop the histories of topics"
    ),
    "pipeline": Command("pipeline", "run jobs on Spark and show their results"),
    "context": Command("contexts", "give names to brokers, and choose one"),
    "completion": Command("completion", "print a script that lets a shell complete commands"),
    "config": Command("server.settings", "write a settings file"),
    "bench": Command("server.bench", "measure how fast a broker stores and reads"),
}
_SOME: Final = ("?", "*", "+")  # words of which there may be none, one or several
EPILOG = """\
try it without a server:
  penstock topic create sensors
  penstock publish sensors 'hello' --name sensors/42/temp
  penstock consume sensors --consumer me
  penstock log verify

with a server, each command in its own terminal:
  penstock serve
  penstock sub -t 'sensors/#' -v
  penstock pub -t sensors/42/temp -m 21.5

For details use `penstock COMMAND --help`. Exit codes: 0 success, 1 rejected or failed, 2 usage
error, 3 unavailable (nothing was changed, try again). If the response of a broker is lost, the exit
code is 1, because the command may have been carried out.
"""


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """The commands below `penstock`; the table has their help lines."""

    def add_parser(self, name: str, **settings: Any) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = super().add_parser(
            name, help=COMMANDS[name].says, **settings
        )
        return added

    def add_line(self, name: str) -> None:
        """Only for --help, and to be known: a parser takes a millisecond to make."""
        self._choices_actions.append(self._ChoicesPseudoAction(name, [], COMMANDS[name].says))
        self.choices[name] = None


class _Parser(argparse.ArgumentParser):
    """Names the nearest action if one is unknown; its subparsers do the same."""

    _is_mixing = False

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            known = ", ".join(action.choices)
            hint = _nearest(value, action.choices) or f"choose from {known}"
            raise argparse.ArgumentError(None, f"unknown action {value!r}: {hint}")
        super()._check_value(action, value)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Options may be anywhere, also before the last words: `publish orders --retain hello`."""
        if self._is_mixing or not any(one.nargs in _SOME for one in self._get_positional_actions()):
            return super().parse_known_args(args, namespace)
        self._is_mixing = True  # it calls this method twice: for the options, then for the words
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False


def make_parser(loaded: Collection[str] = COMMANDS) -> argparse.ArgumentParser:
    """All commands; those in `loaded` can be parsed, and their modules are imported for it."""
    parser = _Parser(
        prog="penstock",
        description="A durable publish/subscribe broker: acknowledged means on disk.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"penstock {VERSION}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", action=_Commands, prog="penstock"
    )
    assert isinstance(commands, _Commands)
    modules = {COMMANDS[name].module for name in loaded}
    for name, command in COMMANDS.items():
        if name in commands.choices:
            continue  # a module may add several
        if command.module in modules:
            import_module(f"penstock.cli.{command.module}").add_commands(commands)
        else:
            commands.add_line(name)
    _explain(parser)
    return parser


def _explain(parser: argparse.ArgumentParser) -> None:
    """Let every command begin its help with what it does, and show it if nothing was chosen."""
    parser.set_defaults(refuse_usage=parser.error, known=list(parser._option_string_actions))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parser.set_defaults(run=lambda options: _show_usage(parser))
            says = {one.dest: one.help or "" for one in action._choices_actions}
            for name, below in action.choices.items():
                if below is None:
                    continue
                below.description = _sentence(below.description or says[name])
                _explain(below)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _show_usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return EXIT_USAGE


def _unknown(name: str) -> str:
    return f"unknown command {name!r}: {_nearest(name, COMMANDS) or 'see `penstock --help`'}"


def _nearest(name: str, known: Iterable[str]) -> str:
    """The question whether another name is meant; empty if none is similar."""
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    command = [one for one in typed if not one.startswith("-")][:1]  # only flags come before it
    parser = make_parser(COMMANDS.keys() & command)
    for name in command:
        if name not in COMMANDS:
            parser.error(_unknown(name))
    options, unknown = parser.parse_known_args(typed)
    if unknown:  # by the command itself, whose usage is shown; argparse would show all commands
        hints = [_nearest(one, options.known) for one in unknown if one.startswith("--")]
        hint = next(filter(None, hints), "")
        options.refuse_usage(
            f"unrecognized arguments: {' '.join(unknown)}{': ' * bool(hint)}{hint}"
        )
    options.typed = typed
    try:
        if "context" in options and "at" in options:
            from penstock.cli.target import choose_target

            choose_target(options)
        code = options.run(options) or EXIT_DONE
        sys.stdout.flush()  # here, where a closed pipe is understood
        return code
    except UnavailableError as error:
        warn(error)
        return EXIT_UNAVAILABLE
    except PenstockError as error:
        warn(error)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_REFUSED
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output has seen enough; Python would complain once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_DONE
        warn(f"{error.filename}: {error.strerror}" if error.filename else error)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        # Work that was about to be handed to another thread is left undone, which is no mistake.
        import warnings

        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
