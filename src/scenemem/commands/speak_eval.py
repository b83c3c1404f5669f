"""``scenemem speak eval RUN``: BLEU-4 of a speaker on a split, beside two controls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from scenemem.commands.console import open_data, output, print_json, progress_bar, use_threads
from scenemem.errors import UserError
from scenemem.evaluation.bleu import (
    bleu_scorer,
    corpus_bleu,
    describe_paths,
    paths_of,
    retrieved_texts,
    shuffled_bleu,
)
from scenemem.learning.run_folder import RunFolder
from scenemem.speaking import Speaking, stored_speaking
from scenemem.tasks.vocabulary import split_words

_MEANINGS = {
    "bleu": "the speaker's descriptions against all instructions of their paths",
    "retrieval": "the first instruction of the most similar training path instead",
    "shuffled": "the speaker's descriptions against the instructions of other paths",
}


def speak_eval(
    run: Annotated[Path, tyro.conf.Positional],
    split: str = "val_unseen",
    data: Path | None = None,
    *,
    beam: int = 1,
    checkpoint: Literal["best", "last"] = "best",
    seed: int = 0,
    threads: int = 1,
    json: bool = False,
) -> None:
    """Describe all paths of a split; print corpus BLEU-4, a retrieval baseline and a shuffled control.

    Args:
        run: the run folder of a speaker.
        split: which paths.
        data: the data folder; the embedded houses when left out.
        beam: texts kept at once in beam search; 1 takes the most likely word each time.
        checkpoint: the weights that did best on the run's selection split, or its last ones.
        seed: of the shuffled control.
        threads: torch threads; more than one only pays on an otherwise idle machine.
        json: print one JSON object instead of a table.
    """
    use_threads(threads)
    if beam < 1:
        raise UserError(f"--beam must be 1 or more, got {beam}")
    report = evaluation(open_speaker(run, data, checkpoint), split, beam, seed)
    if json:
        print_json(report)
        return
    title = f"{run} on {split}: {report['n']} paths, {report['words']:.1f} words each"
    table = Table("", "BLEU-4", "", title=title)
    for name, meaning in _MEANINGS.items():
        table.add_row(name, f"{report[name]:.4f}", meaning)
    output.print(table)


def open_speaker(run: Path, data: Path | None, checkpoint: str) -> Speaking:
    """The speaker of a run, on a data folder."""
    folder = RunFolder(run)
    folder.describe()
    return stored_speaking(folder.best if checkpoint == "best" else folder.last, open_data(data))


def evaluation(speaking: Speaking, split: str, beams: int, seed: int) -> dict[str, Any]:
    """What ``--json`` prints."""
    bleu_scorer()  # before the descriptions
    paths = paths_of(speaking.episodes(split))
    with progress_bar(f"describing {split}") as progress:
        said = describe_paths(speaking.speaker, paths, beams=beams, progress=progress)
    known = paths_of(speaking.episodes("train"))
    return {
        "split": split,
        "n": len(paths),
        "beam": beams,
        "words": sum(len(split_words(text)) for text in said) / len(said),
        "bleu": corpus_bleu(said, paths.references),
        "retrieval": corpus_bleu(retrieved_texts(speaking.sight, paths, known), paths.references),
        "shuffled": shuffled_bleu(said, paths.references, seed),
    }
