"""The table of commands: their names, where their code is, and what they do."""

from __future__ import annotations

# command -> (module in scenemem.commands, function, what it does); modules are imported when called
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("demo", "demo", "build the houses, train two agents, walk unseen houses, write a report"),
    "data check": ("data", "data_check", "what is in a data folder, what is wrong, what is still needed"),
    "data fetch": ("fetch", "data_fetch", "fetch the public files that a task or a track needs"),
    "data convert": ("fetch", "data_convert", "convert originals: rooms, objects, word vectors"),
    "data houses": ("data", "data_houses", "build the embedded houses as a data folder"),
    "data r4r": ("data", "data_r4r", "write R4R from R2R"),
    "data features": ("data", "data_features", "convert a TSV or HDF5 feature file to a mapped store"),
    "data captions": ("data", "data_captions", "build view features from captions of the views"),
    "data objects": ("data", "data_objects", "build view features from object and room annotations"),
    "data join": ("data", "data_join", "join feature stores into a union of tracks"),
    "data images": ("images", "data_images", "build view features from pictures with an image encoder"),
    "train": ("train", "parse", "train an agent from a preset"),
    "eval": ("evaluate", "eval_run", "walk an agent over a split and print its metrics"),
    "follow": ("evaluate", "follow", "which decisions of an agent are right along the reference paths"),
    "compare": ("evaluate", "compare", "mean and standard deviation over seeds and variants"),
    "speak train": ("speak", "parse_train", "train a speaker, which describes paths in words"),
    "speak eval": ("speak", "speak_eval", "BLEU of a speaker beside a retrieval baseline and a control"),
    "speak describe": ("speak", "speak_describe", "describe paths in words"),
    "speak augment": ("speak", "speak_augment", "describe many new paths and write them as episodes"),
    "view": ("pages", "view", "replay episodes decision by decision as self-contained pages"),
    "report": ("pages", "report", "one page about some runs: scores, curves, failures"),
    "serve": ("pages", "serve", "a live page: type an instruction and watch the memory grow"),
    "weights pack": ("evaluate", "weights_pack", "pack the weights of a run, with a model card"),
    "weights": ("evaluate", "weights", "the weights that come with SceneMem"),
    "doctor": ("doctor", "doctor", "versions, devices and data on one page, for a bug report"),
    "score": ("evaluate", "score", "metrics of a result file, ours or another system's"),
    "completion": ("completion", "completion", "a script with which a shell completes these commands"),
    "submit": ("evaluate", "submit", "validate results and write the leaderboard file"),
}
