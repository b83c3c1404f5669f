"""Loss terms over a rollout and its replay (paper, section 3.4); each is a plain function of records.

Shape letters: B lanes, T ticks, M decisions of one kind, X decisions of all kinds, J decisions of one lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.agents.network import Replay
from scenemem.agents.rollout import Kind, Rollout
from scenemem.errors import SettingError
from scenemem.tasks.episode_set import SUCCESS_METRES
from scenemem.world.graph import NONE


@dataclass(frozen=True)
class RewardConfig:
    """What an agent earns for getting closer."""

    quantised: bool = True
    """+1 for closer, -1 for farther; False pays the metres themselves"""
    success: float = 2.0
    """for stopping within 3 m of the goal; the same is taken for stopping elsewhere"""
    discount: float = 0.9
    """per decision"""

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1:
            raise SettingError(f"discount must be in [0, 1], got {self.discount}")


def imitation(rollout: Rollout, replay: Replay, weights: Mapping[Kind, float]) -> Tensor:
    """Cross-entropy of the labels, summed over the decisions of a lane, averaged over lanes.

    Kinds without a weight count with 1; decisions without a label do not count.
    """
    lanes = len(rollout.alive)
    terms = [
        _label_losses(logits, rollout.decisions[kind].label).sum() * weights.get(kind, 1.0)
        for kind, logits in replay.logits.items()
    ]
    return torch.stack(terms).sum() / lanes


def actor_critic(
    rollout: Rollout,
    replay: Replay,
    reward: RewardConfig,
    *,
    entropy_weight: float,
    value_weight: float,
    decisions: float | None = None,
) -> Tensor:
    """A2C: -log p(choice) * advantage + value error - entropy, divided by the number of decisions.

    ``decisions`` is that number when it is not that of this rollout, as in one process of several.

    Every frontier step and every action step earns its own reward; lanes that were cut off expect what the
    critic says about their last observation.
    """
    kinds = list(replay.logits)
    tables = [rollout.decisions[kind] for kind in kinds]
    lane = torch.cat([table.lane for table in tables])
    order = torch.cat([table.order for table in tables])
    value = torch.cat([replay.values[table.lane, table.tick] for table in tables])
    earned = torch.cat([rewards(table.before, table.after, table.stops, reward) for table in tables])
    last = replay.values.gather(1, (rollout.ticks - 1).unsqueeze(1)).squeeze(1).detach()
    bootstrap = last.masked_fill(rollout.stopped, 0.0)
    target = discounted_returns(earned, lane, order, bootstrap, reward.discount)

    log_p = [replay.logits[kind].log_softmax(dim=-1) for kind in kinds]
    chosen = torch.cat(
        [lp.gather(1, table.choice.unsqueeze(1)).squeeze(1) for lp, table in zip(log_p, tables, strict=True)]
    )
    entropy = torch.cat([-(lp.exp() * lp.masked_fill(lp.isinf(), 0.0)).sum(dim=-1) for lp in log_p])
    advantage = target - value.detach()
    policy = -(chosen * advantage)
    error = value_weight * (target - value).square()
    return (policy + error - entropy_weight * entropy).sum() / (len(lane) if decisions is None else decisions)


def rewards(before: Tensor, after: Tensor, stops: Tensor, config: RewardConfig) -> Tensor:
    """The change in metres to the goal, or the verdict at a stop.  before, after, stops: (M,)  ->  (M,)"""
    closer = before - after
    moved = closer.sign() if config.quantised else closer
    verdict = torch.where(after < SUCCESS_METRES, config.success, -config.success)
    return torch.where(stops, verdict, moved).float()


def discounted_returns(
    reward: Tensor, lane: Tensor, order: Tensor, bootstrap: Tensor, discount: float
) -> Tensor:
    """R_j = r_j + discount * R_{j+1} along the decisions of each lane, R after the last = bootstrap.

    reward, lane, order: (X,)  bootstrap: (B,)  ->  (X,)
    """
    row = torch.argsort(lane * (int(order.max()) + 1) + order)
    length = torch.bincount(lane, minlength=len(bootstrap))
    begin = length.cumsum(0) - length
    place = torch.arange(len(row), device=row.device) - begin[lane[row]]
    padded = reward.new_zeros(len(bootstrap), int(length.max()))
    padded[lane[row], place] = reward[row]
    collected = torch.empty_like(padded)
    following = bootstrap
    for step in range(padded.shape[1] - 1, -1, -1):
        following = torch.where(step < length, padded[:, step] + discount * following, following)
        collected[:, step] = following
    result = torch.empty_like(reward)
    result[row] = collected[lane[row], place]
    return result


def _label_losses(logits: Tensor, label: Tensor) -> Tensor:
    """(M, O), (M,)  ->  (M,), 0 where there is no label"""
    loss: Tensor = torch.nn.functional.cross_entropy(logits, label, ignore_index=NONE, reduction="none")
    return loss
