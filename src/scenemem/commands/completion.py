"""``scenemem completion``: scripts with which a shell completes commands, presets and weights."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import tyro

from scenemem.commands.table import COMMANDS

_BASH = """# scenemem completion bash >> ~/.bashrc, or source it
_scenemem() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} first=${{COMP_WORDS[1]}}
    COMP_WORDBREAKS=${{COMP_WORDBREAKS//:/}}
    case $COMP_CWORD:$first in
        1:*) COMPREPLY=($(compgen -W "{first}" -- "$word")); return ;;
{groups}
        2:train) COMPREPLY=($(compgen -W "{presets}" -- "$word")); return ;;
    esac
    case $before in
        --split|--splits) COMPREPLY=($(compgen -W "train val_seen val_unseen test dev_unseen" -- "$word")) ;;
        *) COMPREPLY=($(compgen -f -W "{weights}" -- "$word")) ;;
    esac
}}
complete -o filenames -F _scenemem scenemem
"""
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL")],
) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    Use it in this session with 'source <(scenemem completion bash)', in fish with
    'scenemem completion fish | source'.

    Args:
        shell: which shell it is for.
    """
    sys.stdout.write(_fish() if shell == "fish" else (_ZSH if shell == "zsh" else "") + _bash())


def _groups() -> dict[str, list[str]]:
    """First words of commands -> their second words."""
    groups: dict[str, list[str]] = {}
    for name in COMMANDS:
        first, *rest = name.split()
        groups.setdefault(first, []).extend(rest)
    return groups


def _weights() -> list[str]:
    from scenemem.runs.weights import PREFIX, WEIGHTS

    return [PREFIX + file.stem for file in sorted(WEIGHTS.glob("*.safetensors"))]


def _bash() -> str:
    from scenemem.presets import PRESETS

    groups = "\n".join(
        f'        2:{first}) COMPREPLY=($(compgen -W "{" ".join(rest)}" -- "$word")); return ;;'
        for first, rest in _groups().items()
        if rest
    )
    return _BASH.format(
        first=" ".join(_groups()), groups=groups, presets=" ".join(PRESETS), weights=" ".join(_weights())
    )


def _fish() -> str:
    from scenemem.presets import PRESETS

    lines = []
    for first, rest in _groups().items():
        lines.append(f"complete -c scenemem -n __fish_use_subcommand -f -a {first}")
        lines += [f"complete -c scenemem -n '__fish_seen_subcommand_from {first}' -a {word}" for word in rest]
    lines += [f"complete -c scenemem -n '__fish_seen_subcommand_from train' -f -a {name}" for name in PRESETS]
    walking = "eval view report serve compare submit"
    lines += [
        f"complete -c scenemem -n '__fish_seen_subcommand_from {walking}' -a {name}" for name in _weights()
    ]
    return "\n".join(lines) + "\n"
