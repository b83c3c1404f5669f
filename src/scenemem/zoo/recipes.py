"""What the presets of the family have in common: the shared recipe, and how published ones are written down.

``shared`` puts a system's idea on the recipe of ``basic``: the same features, encoder, recurrent core,
losses, batch and budget, so that rows differ in the idea alone. ``published`` takes the system's own numbers.
What those rows share even so: imitation and progress are summed over steps and averaged over episodes, decay
is AdamW's, the learning rate falls to 0 along a cosine, word vectors learn and words are not dropped, and
what decides is dropped once more than in most releases (``decision``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import scenemem.extend as ext

SEARCH_WALK = ext.WalkConfig(max_decisions=40, max_steps=600)
"""How far a long search may walk back and forth."""
STUDENT = {"student_forcing": 1.0}


@dataclass(frozen=True)
class SystemConfig(ext.ModelConfig):
    """Settings of a system: whole numbers are 1 or more, unless they ``may_be_0``, others 0 or more."""

    may_be_0: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for item in fields(self):
            value = getattr(self, item.name)
            least = 0 if isinstance(value, float) or item.name in self.may_be_0 else 1
            if not isinstance(value, (bool, str)) and value < least:
                raise ext.SettingError(f"{item.name} must be {least} or more, got {value}")


def shared(
    agent: str,
    config: type[ext.ModelConfig],
    losses: Mapping[str, float] | None = None,
    *,
    walk: ext.WalkConfig | None = None,
    learning: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ext.Preset[Any]:
    """A system on the recipe of ``basic``, with further losses and settings beside those of ``ModelConfig``.

    Without ``walk`` it walks as long as basic when it is evaluated; ``learning`` are settings of
    ``LearningConfig``.
    """
    base = ext.PRESETS["basic"]
    (stage,) = base.learning.stages
    names = ("word_width", "width", "dropout", "feature_dropout")
    model = config(**{name: getattr(base.model, name) for name in names}, **settings)
    stage = replace(stage, losses={**stage.losses, **(losses or {})})
    course = replace(base.learning, stages=(stage,), **(learning or {}))
    return replace(base, agent=agent, model=model, walk=walk or base.walk, learning=course)


def published(
    agent: str,
    model: ext.ModelConfig,
    stages: Mapping[str, float] | tuple[ext.Stage, ...],
    *,
    decisions: int = 10,
    steps: int | None = None,
    walk: ext.WalkConfig | None = None,
    word_vectors: bool = False,
    **learning: Any,
) -> dict[str, ext.Preset[Any]]:
    """A system with its own numbers, by its name.

    Walks, also those to learn from, have so many ``decisions`` and one step more unless given; ``walk`` is
    another one to evaluate with. A single stage is its losses. With ``word_vectors`` words begin with GloVe,
    and ``learning`` are settings of ``LearningConfig``.
    """
    steps = steps or decisions + 1
    course = {"batch": 64, "learning_rate": 1e-4, "weight_decay": 0.0, **learning}
    course |= {"max_decisions": decisions, "max_steps": steps}
    course["stages"] = stages if isinstance(stages, tuple) else (ext.Stage(losses=dict(stages)),)
    walk = walk or ext.WalkConfig(max_decisions=decisions, max_steps=steps)
    data = ext.DataConfig(word_vectors=word_vectors)
    return {agent: ext.Preset(agent, model, walk, data, ext.LearningConfig(**course))}
