"""`penstock completion bash|zsh|fish`: a script for a shell, made from the commands themselves.

The script knows all commands, actions, options and fixed choices. Names of topics it asks for with
`penstock completion topics`, which prints nothing if they cannot be had at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.cli.remote import add_remote
from penstock.model.errors import PenstockError

SHELLS: Final = ("bash", "zsh", "fish")
TOPIC: Final = "topic"  # a positional argument with this name is completed with topics


@dataclass(slots=True)
class Level:
    """What can follow a command, or an action of one."""

    path: str  # "topic create"
    actions: dict[str, str] = field(default_factory=dict)  # name -> what it does
    options: dict[str, str] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)  # option -> values
    takers: list[str] = field(default_factory=list)  # options that a value follows
    words: list[str] = field(default_factory=list)  # fixed values of a positional argument
    takes_topic: bool = False


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "completion",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="bash: penstock completion bash > ~/.local/share/bash-completion/completions/"
        "penstock\nzsh:  penstock completion zsh > ~/.zfunc/_penstock   (with ~/.zfunc in fpath)\n"
        "fish: penstock completion fish > ~/.config/fish/completions/penstock.fish",
    )
    parser.add_argument(
        "shell",
        choices=[*SHELLS, "topics"],
        help="shell to print a script for; topics prints the names of topics",
    )
    add_remote(parser, has_tenant=False)
    parser.set_defaults(run=print_script, of_tenant="")


def print_script(options: argparse.Namespace) -> None:
    if options.shell == "topics":
        _print_topics(options)
        return
    from penstock.cli.main import make_parser

    levels = list(walk(make_parser()))
    scripts = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
    print(scripts[options.shell](levels), end="")


def _print_topics(options: argparse.Namespace) -> None:
    from penstock.cli.data.topics import known_topics

    try:
        for one in known_topics(options):
            print(one)
    except (PenstockError, OSError):
        return  # a completion says nothing about what is wrong


def walk(parser: argparse.ArgumentParser, path: str = "") -> Iterator[Level]:
    """Every command and action of a parser, itself first."""
    level = Level(path)
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            says = {one.dest: one.help or "" for one in action._choices_actions}
            level.actions = {name: says.get(name, "") for name in action.choices}
            below += [(f"{path} {name}".strip(), one) for name, one in action.choices.items()]
        elif action.option_strings:
            _add_option(level, action)
        elif action.choices:
            level.words = [str(one) for one in action.choices]
        elif action.dest == TOPIC:
            level.takes_topic = True
    yield level
    for name, one in below:
        yield from walk(one, name)


def _add_option(level: Level, action: argparse.Action) -> None:
    if action.help == argparse.SUPPRESS:
        return
    for name in action.option_strings:
        level.options[name] = (action.help or "").replace("%%", "%")
        if action.choices:
            level.choices[name] = [str(one) for one in action.choices]
        if action.nargs != 0:
            level.takers.append(name)


_FIND_PATH: Final = """\
  local cmd="" word next="" i
  for ((i = FIRST; i < CURRENT_WORD; i++)); do
    word="WORD_AT"
    if [[ -n $next ]]; then next=""; continue; fi
    case "$cmd $word" in
PATHS
    esac
    case "$cmd" in
TAKERS
    esac
  done
"""


def _path_cases(levels: list[Level]) -> str:
    names = "|".join(f'" {one.path}"' for one in levels if one.path)
    return f'      {names}) cmd="$cmd $word"; continue;;'


def _taker_cases(levels: list[Level]) -> str:
    lines = []
    for one in levels:
        if one.takers:
            options = "|".join(one.takers)
            lines.append(f'      "{_key(one)}") case "$word" in {options}) next=1;; esac;;')
    return "\n".join(lines)


def _key(level: Level) -> str:
    return f" {level.path}" if level.path else ""


def _shell_body(levels: list[Level], first: int, current: str, word_at: str) -> str:
    """Find out which command is being typed, then what may follow it: bash and zsh share it.

    No variable is called as one of zsh's own: path, words, options.
    """
    found = (
        _FIND_PATH.replace("FIRST", str(first))
        .replace("CURRENT_WORD", current)
        .replace("WORD_AT", word_at)
        .replace("PATHS", _path_cases(levels))
        .replace("TAKERS", _taker_cases(levels))
    )
    values = [
        f'    "{_key(one)} {option}") vals="{" ".join(values)}";;'
        for one in levels
        for option, values in one.choices.items()
    ]
    takers = [
        f'    "{_key(one)} {option}") is_value=1;;' for one in levels for option in one.takers
    ]
    words = []
    for one in levels:
        plain = " ".join([*one.actions, *one.words])
        topics = " wants_topic=1;" if one.takes_topic else ""
        options = " ".join(one.options)
        words.append(f'    "{_key(one)}") list="{plain}"; opts="{options}";{topics};')
    return f"""\
{found}\
  local vals="" list="" opts="" is_value="" wants_topic=""
  case "$cmd $prev" in
{chr(10).join(values)}
  esac
  case "$cmd $prev" in
{chr(10).join(takers)}
  esac
  case "$cmd" in
{chr(10).join(words)}
  esac
  if [[ -n $vals ]]; then list="$vals"
  elif [[ -n $is_value ]]; then list=""
  elif [[ $cur == -* ]]; then list="$opts"
  elif [[ -n $wants_topic ]]; then list="$list $(penstock completion topics 2>/dev/null)"
  fi
"""


def bash_script(levels: list[Level]) -> str:
    body = _shell_body(levels, 1, "COMP_CWORD", "${COMP_WORDS[i]}")
    return f"""\
# Completion of penstock for bash: source this file, or put it where bash-completion looks.
_penstock() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
{body}  COMPREPLY=($(compgen -W "$list" -- "$cur"))
}}
complete -o default -F _penstock penstock
"""


def zsh_script(levels: list[Level]) -> str:
    body = _shell_body(levels, 2, "CURRENT", "${words_typed[i]}")
    return f"""\
#compdef penstock
# Completion of penstock for zsh: put this file as _penstock into a directory of $fpath.
_penstock() {{
  local -a words_typed; words_typed=("${{words[@]}}")
  local cur="${{words_typed[CURRENT]}}" prev="${{words_typed[CURRENT-1]}}"
{body}  if [[ -n ${{list// /}} ]]; then compadd -- ${{=list}}; else _files; fi
}}
if [[ "$funcstack[1]" == "_penstock" ]]; then _penstock "$@"; else compdef _penstock penstock; fi
"""


def fish_script(levels: list[Level]) -> str:
    lines = [
        "# Completion of penstock for fish: put this file into ~/.config/fish/completions.",
        "function __penstock_path",
        "    set -l path",
        "    for word in (commandline -opc)[2..-1]",
        '        set -l longer (string join -- " " $path $word)',
        "        if contains -- $longer $__penstock_paths",
        "            set path $path $word",
        "        end",
        "    end",
        '    string join -- " " $path',
        "end",
        "function __penstock_at",
        '    test (__penstock_path | string collect -a) = "$argv"',
        "end",
        "set -g __penstock_paths " + " ".join(f"'{one.path}'" for one in levels if one.path),
        "complete -c penstock -e",
    ]
    for one in levels:
        here = f"complete -c penstock -n '__penstock_at {one.path}'"
        for name, says in one.actions.items():
            lines.append(f"{here} -f -a {name} -d {_quoted(says)}")
        for word in one.words:
            lines.append(f"{here} -f -a {word}")
        if one.takes_topic:
            lines.append(f"{here} -f -a '(penstock completion topics 2>/dev/null)' -d topic")
        for name, says in one.options.items():
            kind = f"-l {name[2:]}" if name.startswith("--") else f"-o {name[1:]}"
            kind = f"-s {name[1:]}" if len(name) == 2 else kind
            taken = " -r" if name in one.takers else ""
            if name in one.choices:
                taken = f" -x -a {_quoted(' '.join(one.choices[name]))}"
            lines.append(f"{here} {kind}{taken} -d {_quoted(says)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """As fish reads it between single quotes; one line, the beginning is enough."""
    short = " ".join(text.split())
    return "'" + short.replace("\\", "\\\\").replace("'", "\\'") + "'"
