# SPDX-License-Identifier: Apache-2.0
"""Shell completion of commands, options, recipes and files; shtab writes the script."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec

from .errors import UserError, unknown

FILES = ("data", "run", "study", "images", "out", "networks", "boxes", "compare_with", "folder", "like")
"""Arguments that may be files or folders."""

WAYS = {
    "bash": "d=~/.local/share/bash-completion/completions; "
    'mkdir -p "$d" && viticulture completion bash > "$d/viticulture"',
    "zsh": "d=~/.zfunc; mkdir -p $d && viticulture completion zsh > $d/_viticulture; and at the end of ~/.zshrc: "
    "fpath=(~/.zfunc $fpath); autoload -Uz compinit && compinit",
    "fish": "set d ~/.config/fish/completions; mkdir -p $d && viticulture completion fish > $d/viticulture.fish",
}
"""Shell -> how to install its script."""


def script(
    shell: str,
    commands: Mapping[str, tuple[argparse.ArgumentParser, Sequence[argparse.Action]]],
    more: Mapping[str, Collection[str]],
    choices: Mapping[str, Collection[str]],
) -> str:
    """Return the completion script. Raises: UserError for another shell, or if shtab is not installed."""
    if shell not in WAYS:
        raise unknown("shell", shell, WAYS)
    if find_spec("shtab") is None:
        raise UserError("completion needs shtab, which is not installed: pip install 'viticulture[completion]'")
    import shtab

    program = argparse.ArgumentParser("viticulture")
    subparsers = program.add_subparsers()
    for name, (parser, arguments) in commands.items():
        summary = (parser.description or "").split("\n")[0]  # shtab leaves out a command without help
        subparser = subparsers.add_parser(name, help=summary, parents=[parser])
        for action in (*arguments, *map(subparser.add_argument, more.get(name, ()))):
            if action.dest in choices:
                action.choices = choices[action.dest]
            elif action.dest in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(program, shell)
