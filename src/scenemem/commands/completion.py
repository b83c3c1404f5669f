"""``scenemem completion``: scripts with which a shell completes commands, presets and weights."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import Positional, arg

from scenemem.commands import COMMANDS
from scenemem.commands.console import write

_BASH = """# scenemem completion bash >> ~/.bashrc, or source it
_scenemem() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words
    COMP_WORDBREAKS=${{COMP_WORDBREAKS//:/}}
    case "$COMP_CWORD ${{COMP_WORDS[1]}} $before" in
        "1 "*) words="{first}" ;;
{second}
        *--split|*--splits) words="train val_seen val_unseen test dev_unseen" ;;
        *) COMPREPLY=($(compgen -f -W "{weights}" -- "$word")); return ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o filenames -F _scenemem scenemem"""
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
_WITH_RUNS = "eval view report serve compare submit"


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Positional, arg(metavar="SHELL")],
) -> None:
    """Print the completion script of a shell: bash, zsh or fish.

    Use it in this session with 'source <(scenemem completion bash)', in fish with
    'scenemem completion fish | source'.

    Args:
        shell: which shell it is for.
    """
    from scenemem.presets import PRESETS
    from scenemem.runs.weights import PREFIX, WEIGHTS

    weights = " ".join(PREFIX + file.stem for file in sorted(WEIGHTS.glob("*.safetensors")))
    first, second = dict.fromkeys(name.split()[0] for name in COMMANDS), dict[str, list[str]]()
    for name in COMMANDS:
        group, *word = name.split()
        second.setdefault(group, []).extend(word)
    second["train"] = list(PRESETS)
    follows = {group: " ".join(words) for group, words in second.items() if words}
    if shell == "fish":
        begin, after = "complete -c scenemem -n", "__fish_seen_subcommand_from"
        write(f"{begin} __fish_use_subcommand -f -a '{' '.join(first)}'")
        for group, words in follows.items():
            write(f"{begin} '{after} {group}' -a '{words}'")
        write(f"{begin} '{after} {_WITH_RUNS}' -a '{weights}'")
        return
    cases = "\n".join(f'        "2 {group} "*) words="{words}" ;;' for group, words in follows.items())
    script = _BASH.format(first=" ".join(first), second=cases, weights=weights)
    write((_ZSH if shell == "zsh" else "") + script)
