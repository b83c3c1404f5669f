"""Counted operations are the ones worked out by hand; time goes to the innermost part that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import measure as measuring
from benchmarks.machine import Options
from benchmarks.measure import PARTS, Amount, OperationCounter, PartClock, flop_counter, measure, watched
from benchmarks.workload import Workload
from scenemem.agents import walker
from scenemem.learning import trainer
from scenemem.ssm.graph import SceneMemory

B, L, K, H = 3, 5, 7, 11  # episodes, words, columns, width


def _inputs(*shape: int) -> Tensor:
    return torch.rand(*shape, requires_grad=True)


def _counted(work: Callable[[], Tensor], *, backward: bool) -> int:
    with flop_counter() as counter:
        result = work()
        if backward:
            torch.autograd.backward(result.sum())
    return int(counter.get_total_flops())


# work, its forward operations by hand; the gradients of both factors cost twice as much
# work, its forward operations by hand; the gradients of both factors cost twice as much
CASES: dict[str, tuple[Callable[[], Tensor], int]] = {
    "linear over words": (lambda: nn.Linear(K, H)(_inputs(B, L, K)), 2 * B * L * K * H),
    "einsum": (lambda: torch.einsum("blk,bkh->blh", _inputs(B, L, K), _inputs(B, K, H)), 2 * B * L * K * H),
    "batched sum in place": (
        lambda: (torch.zeros(B, L, H) * _inputs(1)).baddbmm_(_inputs(B, L, K), _inputs(B, K, H)),
        2 * B * L * K * H,
    ),
    "lstm": (lambda: nn.LSTM(K, H, batch_first=True)(_inputs(B, L, K))[0], 2 * B * L * (K + H) * 4 * H),
    "lstm cell": (
        lambda: nn.LSTMCell(K, H)(_inputs(B, K), (_inputs(B, H), _inputs(B, H)))[0],
        2 * B * (K + H) * 4 * H,
    ),
    "gru cell": (lambda: nn.GRUCell(K, H)(_inputs(B, K), _inputs(B, H)), 2 * B * (K + H) * 3 * H),
}


@pytest.mark.parametrize("name", CASES)
def test_operations_are_the_ones_worked_out_by_hand(name: str) -> None:
    work, expected = CASES[name]
    assert _counted(work, backward=False) == expected
    assert _counted(work, backward=True) == 3 * expected
    with torch.no_grad():
        assert _counted(work, backward=False) == expected, "the same without gradients"


def test_vectors_count_and_so_does_what_autograd_does() -> None:
    matrix, vector = torch.rand(H, K), torch.rand(K)
    assert _counted(lambda: torch.addmv(torch.ones(H), matrix, vector), backward=False) == 2 * H * K
    square = _inputs(B, B)
    with torch.no_grad(), OperationCounter() as forward:
        (square @ square).exp()
    assert forward.count == 2
    total = (square @ square).sum()
    with OperationCounter() as backward:
        torch.autograd.backward(total)
    assert backward.count >= 3, "two products and the sum of their gradients"


def test_an_inner_part_does_not_count_for_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(measuring, "now", lambda _device: now)
    clock = PartClock()

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    def read() -> None:
        pass_time(1.0)
        clock.timed("reasoning", pass_time)(3.0)
        pass_time(2.0)

    pass_time(4.0)
    clock.timed("reader", read)()
    with pytest.raises(ZeroDivisionError):
        clock.timed("memory", lambda: 1 / 0)()
    clock.timed("speaker", read)()
    pass_time(4.0)
    seen = {part: share for part, share in clock.shares().items() if share}
    assert seen == pytest.approx({"other": 0.4, "reader": 0.15, "reasoning": 0.15, "speaker": 0.3})


def test_every_part_of_the_work_takes_time(tiny_load: Workload) -> None:
    def shares(mode: Any) -> dict[str, float]:
        clock = PartClock()
        with watched(tiny_load.agent.network, clock.timed):
            tiny_load.run(mode, 1)
        return clock.shares()

    mixed, greedy = shares("mixed"), shares("greedy")
    assert tuple(mixed) == PARTS
    assert sum(mixed.values()) == pytest.approx(1.0)
    assert {part for part, share in mixed.items() if not share} == {"speaker"}
    assert greedy["backward"] == greedy["optimiser"] == 0.0, "walking trains nothing"
    assert min(greedy["rollout"], greedy["updater"], greedy["memory"]) > 0


def test_the_watched_code_is_put_back(tiny_load: Workload) -> None:
    network = tiny_load.agent.network
    before = (SceneMemory.visit, walker.AgentPolicy.decide, torch.autograd.backward, torch.optim.AdamW.step)
    with watched(network, PartClock().timed):
        assert SceneMemory.visit is not before[0]
        assert trainer.collect is not walker.collect  # type: ignore[attr-defined]
    assert before == (
        *(SceneMemory.visit, walker.AgentPolicy.decide),
        *(torch.autograd.backward, torch.optim.AdamW.step),
    )
    assert trainer.collect is walker.collect  # type: ignore[attr-defined]
    assert "forward" not in vars(network.encoder)


def test_a_speed_is_work_by_time() -> None:
    square, calls = torch.rand(64, 64), []

    def work() -> Amount:
        calls.append(square @ square)
        return Amount(episodes=8, steps=2, observations=24)

    speed = measure({"work": work}, nn.Identity(), Options(repeats=2))["work"]
    assert len(calls) == 2 + 3, "timed twice; then parts, memory and operations"
    assert (speed.episodes, speed.steps, speed.repeats, speed.observations_per_episode) == (8, 2, 2, 3.0)
    assert speed.gigaflops_per_episode == pytest.approx(2 * 64**3 / 8 / 1e9)
    assert speed.operations_per_step == 0.5
    assert speed.episodes_per_second == pytest.approx(4 * speed.steps_per_second)
    achieved = speed.gigaflops_per_episode * speed.episodes_per_second
    assert speed.gigaflops_per_second == pytest.approx(achieved)
