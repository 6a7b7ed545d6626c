# SPDX-License-Identifier: Apache-2.0
"""A script by which a shell completes verbs, options, recipes and files as they are typed; shtab writes it."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec

from .errors import UserError, unknown

FILES = ("data", "run", "study", "images", "out", "networks", "boxes", "beside", "folder", "like")
"""Arguments that are files or folders, or may be."""

WAYS = {
    "bash": "d=~/.local/share/bash-completion/completions; "
    'mkdir -p "$d" && viticulture completion bash > "$d/viticulture"',
    "zsh": "d=~/.zfunc; mkdir -p $d && viticulture completion zsh > $d/_viticulture; and at the end of ~/.zshrc: "
    "fpath=(~/.zfunc $fpath); autoload -Uz compinit && compinit",
    "fish": "set d ~/.config/fish/completions; mkdir -p $d && viticulture completion fish > $d/viticulture.fish",
}
"""Shell -> how its script is kept."""


def script(
    shell: str,
    verbs: Mapping[str, tuple[argparse.ArgumentParser, Sequence[argparse.Action]]],
    more: Mapping[str, Collection[str]],
    named: Mapping[str, Collection[str]],
) -> str:
    """The script.

    Args:
        shell: bash, zsh or fish.
        verbs: parser of each verb, and its arguments.
        more: what a verb takes besides: options of recipe keys, and with a paper's table; words.
        named: what an argument may be, by its name.

    Raises: UserError for another shell, or where shtab is not installed.
    """
    if shell not in WAYS:
        raise unknown("shell", shell, WAYS)
    if find_spec("shtab") is None:
        raise UserError("completion is written by shtab, which is not installed: pip install 'viticulture[completion]'")
    import shtab

    whole = argparse.ArgumentParser("viticulture")
    every = whole.add_subparsers()
    for verb, (parser, arguments) in verbs.items():
        shown = every.add_parser(
            verb, help=(parser.description or "").split("\n")[0], parents=[parser]
        )  # unseen without help
        for action in (*arguments, *map(shown.add_argument, more.get(verb, ()))):
            if action.dest in named:
                action.choices = named[action.dest]
            elif action.dest in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(whole, shell)
