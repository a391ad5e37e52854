"""The command `penstock`: parse, run, and turn errors into a line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Final

from penstock import __version__
from penstock.cli import (
    bench,
    groups,
    logs,
    pipeline,
    pub,
    records,
    serve,
    sessions,
    settings,
    sub,
    topics,
    users,
)
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

# In the order in which --help shows their commands.
MODULES: Final[tuple[Any, ...]] = (
    serve,
    pub,
    sub,
    topics,
    records,
    groups,
    sessions,
    users,
    logs,
    pipeline,
    settings,
    bench,
)
EPILOG = """\
a first look, without a server:
  penstock topic create sensors
  penstock publish sensors 'hello' --name sensors/42/temp
  penstock consume sensors --consumer me
  penstock log verify

with one, each in a terminal of its own:
  penstock serve
  penstock sub -t 'sensors/#' -v
  penstock pub -t sensors/42/temp -m 21.5

`penstock COMMAND --help` says more. Exit codes: 0 done, 1 refused or failed, 2 usage, 3 unavailable
(try again).
"""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="A durable publish/subscribe broker: acknowledged means on disk.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in MODULES:
        module.add_commands(commands)
    _explain(parser)
    return parser


def _explain(parser: argparse.ArgumentParser) -> None:
    """Let every command begin its help with what it does, and show it if nothing was chosen."""
    parser.set_defaults(refuse_usage=parser.error)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parser.set_defaults(run=lambda options: _show_usage(parser))
            says = {one.dest: one.help or "" for one in action._choices_actions}
            for name, below in action.choices.items():
                below.description = _sentence(below.description or says[name])
                _explain(below)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _show_usage(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return EXIT_USAGE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    options, unknown = make_parser().parse_known_args(arguments)
    if unknown:  # by the command itself, whose usage is shown; argparse would show all commands
        options.refuse_usage(f"unrecognized arguments: {' '.join(unknown)}")
    options.typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
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
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
