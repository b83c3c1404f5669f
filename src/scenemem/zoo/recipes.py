"""What the presets of the family have in common: the shared recipe, and how published ones are written down.

``shared`` puts a system's idea on the recipe of ``basic``: the same features, encoder, recurrent core,
losses, batch and budget, so that rows differ in the idea alone. ``published`` takes the system's own numbers.
What those rows share even so: imitation and progress are summed over steps and averaged over episodes, decay
is AdamW's, the learning rate falls to 0 along a cosine, word vectors learn and words are not dropped, and
what decides is dropped once more than in most releases (``decision``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scenemem.extend import (
    PRESETS,
    R2R_TRACKS,
    DataConfig,
    LearningConfig,
    ModelConfig,
    Preset,
    Stage,
    WalkConfig,
)

SEARCH_WALK = WalkConfig(max_decisions=40, max_steps=600)
"""How far a long search may walk back and forth."""


def shared(
    agent: str, config: type[ModelConfig], losses: Mapping[str, float] | None = None, **settings: Any
) -> Preset[Any]:
    """A system on the recipe of ``basic``.

    Args:
        agent: its name.
        config: its settings, those of ``ModelConfig`` being basic's.
        losses: further losses with their weights.
        **settings: that it has beside those of ``ModelConfig``.
    """
    base = PRESETS["basic"]
    (stage,) = base.learning.stages
    model = base.model
    common = {name: getattr(model, name) for name in ("word_width", "width", "dropout", "feature_dropout")}
    return replace(
        base,
        agent=agent,
        model=config(**common, **settings),
        learning=replace(base.learning, stages=(replace(stage, losses={**stage.losses, **(losses or {})}),)),
    )


def published(
    agent: str,
    model: ModelConfig,
    stages: tuple[Stage, ...],
    *,
    walk: WalkConfig | None = None,
    word_vectors: bool = False,
    **learning: Any,
) -> Preset[Any]:
    """A system with its own numbers.

    Args:
        agent: its name.
        model: its settings.
        stages: its losses.
        walk: how long it may walk when it is evaluated; 10 decisions unless told otherwise.
        word_vectors: words begin with GloVe.
        **learning: other settings of ``LearningConfig``; walks to learn from are as long as evaluated ones.
    """
    walk = walk or WalkConfig(max_decisions=10, max_steps=11)
    course = {
        "batch": 64,
        "learning_rate": 1e-4,
        "weight_decay": 0.0,
        "max_decisions": walk.max_decisions,
        "max_steps": walk.max_steps,
        **learning,
    }
    data = DataConfig(word_vectors=word_vectors)
    return Preset(agent, model, walk=walk, data=data, learning=LearningConfig(stages=stages, **course))


def on_tracks(name: str, preset: Preset[Any]) -> dict[str, Preset[Any]]:
    """The rows of a system on R2R, one per track, as basic's are: data, number of steps, what is watched."""
    rows = {}
    for track in R2R_TRACKS:
        like = PRESETS[f"basic-r2r-{track}"]
        learning = replace(preset.learning, iterations=like.learning.iterations)
        rows[f"{name}-r2r-{track}"] = replace(
            preset, data=like.data, learning=learning, selection=like.selection
        )
    return rows


def on_r4r(name: str, preset: Preset[Any], labels: str) -> dict[str, Preset[Any]]:
    """The rows of a system on R4R, one per track, as basic's are: paths and walks are twice as long.

    Args:
        name: of the system.
        preset: its row on R2R.
        labels: its label rule on R4R.
    """
    walk, learning = preset.walk, preset.learning
    rows = {}
    for track in R2R_TRACKS:
        like = PRESETS[f"basic-r4r-{track}"]
        rows[f"{name}-r4r-{track}"] = replace(
            preset,
            walk=WalkConfig(2 * walk.max_decisions, 2 * walk.max_steps, like.walk.max_words),
            data=like.data,
            learning=replace(
                learning,
                iterations=like.learning.iterations,
                max_decisions=2 * learning.max_decisions,
                max_steps=2 * learning.max_steps,
                labels=labels,
            ),
            selection=like.selection,
        )
    return rows
