"""SceneMem: vision-and-language navigation with a structured scene memory.

    import scenemem as sm

    agent = sm.load("weights:ssm-plus-houses")
    walk = agent.walk(sm.episodes("val_unseen")[0])

Names are imported when they are used, so that ``import scenemem`` itself takes no time.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenemem.api import (
        TrainingRun,
        compare,
        episodes,
        evaluate,
        list_presets,
        load,
        load_speaker,
        make_env,
        preset,
        register,
        score,
        train,
    )
    from scenemem.errors import DataError, UserError
    from scenemem.evaluation.evaluate import Evaluation
    from scenemem.registry import load_plugin
    from scenemem.runs.comparison import Comparison
    from scenemem.runs.opened import LoadedAgent, Walk
    from scenemem.runs.speakers import LoadedSpeaker
    from scenemem.ssm.graph import SceneMemory
    from scenemem.tasks.episode_set import Episode, EpisodeList

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "DataError",
    "Episode",
    "EpisodeList",
    "Evaluation",
    "LoadedAgent",
    "LoadedSpeaker",
    "SceneMemory",
    "TrainingRun",
    "UserError",
    "Walk",
    "__version__",
    "compare",
    "episodes",
    "evaluate",
    "list_presets",
    "load",
    "load_plugin",
    "load_speaker",
    "make_env",
    "preset",
    "register",
    "score",
    "train",
]

_ELSEWHERE = {
    "DataError": "scenemem.errors",
    "Episode": "scenemem.tasks.episode_set",
    "SceneMemory": "scenemem.ssm.graph",
    "UserError": "scenemem.errors",
    "Walk": "scenemem.runs.opened",
    "load_plugin": "scenemem.registry",
}  # everything else is in scenemem.api


if not TYPE_CHECKING:  # a type checker reads the names above

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'scenemem' has no attribute '{name}'")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_ELSEWHERE.get(name, "scenemem.api")), name)
        return value


def __dir__() -> list[str]:
    return __all__
