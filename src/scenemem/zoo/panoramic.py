"""Recurrent cores of published panoramic systems: Speaker-Follower's follower, and the co-grounded LSTM.

Together with ``LSTMUpdater`` (E-Dropout) these are the three cores the panoramic systems of the field share.
They differ in what the state attends to first, in whether the LSTM reads the action just taken, and in what
is carried. Shape letters: M or X observations, K candidate slots, D visual columns, U = D + 128 columns of an
action, A width of an embedded action, H state width, L words.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.errors import SettingError
from scenemem.world.graph import HEADINGS, STEP, VIEWS, angle_feature, rotated, view_elevation, view_heading
from scenemem.zoo.encoders import sinusoids


def candidate_actions(seen: ext.CandidateFeatures, feature_mask: Tensor) -> Tensor:
    """Candidates as actions u_k, visual and tiled direction, and stop as a row of zeros, the last one.

    feature_mask: (D,)  ->  (M, K + 1, U)
    """
    actions = torch.cat([seen.visual * feature_mask, ext.tiled(seen.orientation)], dim=-1)
    return nn.functional.pad(actions, (0, 0, 0, 1))


def with_stop_option(mask: Tensor) -> Tensor:
    """(M, K)  ->  (M, K + 1), stop is always an option"""
    return nn.functional.pad(mask, (0, 1), value=True)


def navigator_words(agent: ext.Agent, point: ext.DecisionPoint) -> dict[str, Tensor]:
    """The words the recurrent core attends to, for what it sees and how it moves alike  ->  name: (R, L)"""
    words = agent.words_at(point)["navigator"]
    return {"perception": words, "action": words}


def action_taken(observation: ext.Observation, faced: Tensor) -> Tensor:
    """The action u that led here, as it looked from where the agent stood; 0 at the start.

    faced: (M,) the view the agent faced when it took the action  ->  (M, U)
    """
    environment = observation.environment
    world, here = environment.world, observation.previous.clamp_min(0)
    slot = world.slot_of(here, observation.viewpoint).clamp_min(0)
    visual = environment.store.gather_views(here, world.neighbour_view[here, slot]).float()
    direction = angle_feature(world.neighbour_heading[here, slot], world.neighbour_elevation[here, slot], 4)
    action = torch.cat(
        [visual * observation.masks.feature, ext.tiled(rotated(direction, view_heading(faced)))], dim=-1
    )
    return action * (observation.previous >= 0).unsqueeze(-1)


@dataclass(frozen=True)
class FollowerState(ext.State):
    """The state of ``FollowerUpdater``; ``hidden`` is h~, ``output`` the h_t that the LSTM carries."""

    output: Tensor  # (B, H)
    cell: Tensor  # (B, H)
    word_attention: Tensor  # (B, L)
    faced: Tensor  # (B,) the view faced now

    @property
    def attention(self) -> dict[str, Tensor]:
        """The attention over the words."""
        return {"navigator": self.word_attention}


class CarryingUpdater(ext.StateUpdater):
    """h_t = LSTM(what entered, h_{t-1}) is carried; h~_t = tanh(W [sum_l a_l x_l, h_t]) decides."""

    def add_layers(self, entered: int, width: int) -> None:
        """The last layers of a core, after those of its own."""
        self.entered, self.width = entered, width
        self.lstm = nn.LSTMCell(entered, width)
        self.word_query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)

    def mask_widths(self) -> dict[str, int]:
        """Masks on what enters the LSTM, and on its output."""
        return {"lstm_input": self.entered, "output": self.width}

    def initial_state(self, instructions: ext.Instructions) -> FollowerState:
        """The summaries of the instruction; nothing is faced yet."""
        hidden = instructions.hidden
        nothing = torch.zeros_like(instructions.context[..., 0])
        faced = torch.zeros_like(hidden[:, 0], dtype=torch.long)
        return FollowerState(hidden, hidden, instructions.cell, nothing, faced)

    @abstractmethod
    def entering(self, state: FollowerState, observation: ext.Observation) -> list[Tensor]:
        """What the LSTM reads beside its state, as (M, W) each."""

    def forward(self, state: FollowerState, observation: ext.Observation) -> FollowerState:
        """One update."""
        words, masks = observation.instructions, observation.masks
        entered = torch.cat(self.entering(state, observation), dim=-1) * masks["lstm_input"]
        output, cell = self.lstm(entered, (state.output, state.cell))
        dropped = output * masks["output"]
        text, weights = words.attend(self.word_query(dropped))
        hidden = torch.tanh(self.join(torch.cat([text, dropped], dim=-1)))
        return FollowerState(hidden, output, cell, weights, observation.view)


class FollowerUpdater(CarryingUpdater):
    """Speaker-Follower: h_t = LSTM([u_{t-1}, v_t], h_{t-1}), v_t = attention of h_{t-1} over the 36 views."""

    def __init__(self, visual: int, width: int, inner: int = 256) -> None:
        super().__init__()
        self.view_query = nn.Linear(width, inner)
        self.view_key = nn.Linear(visual + ext.ANGLE_WIDTH, inner)
        self.add_layers(2 * (visual + ext.ANGLE_WIDTH), width)

    def entering(self, state: FollowerState, observation: ext.Observation) -> list[Tensor]:
        """The action taken, and the views attended to."""
        angles = ext.tiled(view_angles(observation.view)).to(observation.panorama)
        views = torch.cat([observation.panorama * observation.masks.feature, angles], dim=-1)  # (M, 36, U)
        attention = ext.dots(self.view_key(views), self.view_query(state.output)).softmax(dim=-1)
        view = torch.bmm(attention.unsqueeze(1), views).squeeze(1)
        return [action_taken(observation, state.faced), view]


def view_angles(view: Tensor) -> Tensor:
    """Directions of all 36 views relative to the view faced.  view: (M,)  ->  (M, 36, 4)"""
    views = torch.arange(VIEWS, device=view.device)
    relative = view_heading(views) - ((view % HEADINGS) * STEP).unsqueeze(-1)
    return angle_feature(relative, view_elevation(views).expand_as(relative), width=4)


class ActionEmbedding(nn.Module):
    """g(u) = ReLU(norm(W u)): one embedding for candidates, for stop and for the action taken.

    Self-Monitoring normalises over the batch, which would make acting and learning two networks; here every
    row is normalised by itself.
    """

    def __init__(self, action_width: int, width: int, *, norm: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(action_width, width)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, actions: Tensor) -> Tensor:
        """(..., U)  ->  (..., A)"""
        return torch.relu(self.norm(self.linear(actions)))


@dataclass(frozen=True)
class CoGroundedState(ext.State):
    """The state of ``CoGroundedUpdater``: what it carries, and what the last update attended to."""

    cell: Tensor  # (B, H)
    before: Tensor  # (B, H) the hidden state before the last observation
    text: Tensor  # (B, H) the words attended to
    seen: Tensor  # (B, A) the candidates attended to
    word_attention: Tensor  # (B, L)
    faced: Tensor  # (B,) the view faced now

    @property
    def attention(self) -> dict[str, Tensor]:
        """The textual grounding, for things and directions alike."""
        return {"perception": self.word_attention, "action": self.word_attention}


class CoGroundedUpdater(ext.StateUpdater):
    """Self-Monitoring: words and candidates are grounded with h_{t-1}, then the LSTM reads both.

    a_l = softmax_l(x_l . W_x h_{t-1}),  x^ = sum_l a_l x_l  (words carry a position code)
    b_k = softmax_k(g(u_k) . W_v h_{t-1}),  v^ = sum_k b_k g(u_k)
    h_t, c_t = LSTM([g(u_{t-1}), v^, x^], h_{t-1}, c_{t-1})

    In the form of Tactical Rewind (``raw``) values and the previous action are the raw u, and the words that
    are summed carry no position code.

    Args:
        raw: the form of Tactical Rewind.
        norm: g normalises what it embeds; EGP's does not.
    """

    def __init__(
        self, visual: int, width: int, embedded: int, *, raw: bool = False, norm: bool = True
    ) -> None:
        super().__init__()
        self.width = width
        self.raw = raw
        self.embed = ActionEmbedding(visual + ext.ANGLE_WIDTH, embedded, norm=norm)
        self.embedded = embedded
        self.seen_width = visual + ext.ANGLE_WIDTH if raw else embedded
        self.word_query = nn.Linear(width, width, bias=False)
        self.candidate_query = nn.Linear(width, embedded, bias=False)
        self.lstm = nn.LSTMCell(2 * self.seen_width + width, width)

    def mask_widths(self) -> dict[str, int]:
        """A mask on embedded actions, and one on the LSTM's output where it decides (``decision``)."""
        return {"embedded_action": self.embedded}

    def initial_state(self, instructions: ext.Instructions) -> CoGroundedState:
        """The summaries of the instruction; nothing was attended to yet."""
        hidden = instructions.hidden
        return CoGroundedState(
            hidden,
            instructions.cell,
            hidden,
            torch.zeros_like(hidden),
            hidden.new_zeros(len(hidden), self.seen_width),
            torch.zeros_like(instructions.context[..., 0]),
            torch.zeros_like(hidden[:, 0], dtype=torch.long),
        )

    def forward(self, state: CoGroundedState, observation: ext.Observation) -> CoGroundedState:
        """One update."""
        words, masks = observation.instructions, observation.masks
        candidates = observation.environment.candidates(observation.viewpoint, observation.view)
        code = sinusoids(words.context.shape[1], self.width).to(words.context)
        coded = replace(words, context=words.context + code)
        text, attention = coded.attend(self.word_query(state.hidden))
        if self.raw:
            text = torch.bmm(attention.unsqueeze(1), words.context).squeeze(1)
        actions = candidate_actions(candidates, masks.feature)
        embedded = self.embed(actions) * masks["embedded_action"].unsqueeze(1)
        weights = ext.masked_softmax(
            ext.dots(embedded, self.candidate_query(state.hidden)), with_stop_option(candidates.mask)
        )
        seen = torch.bmm(weights.unsqueeze(1), actions if self.raw else embedded).squeeze(1)
        taken = action_taken(observation, state.faced)
        if not self.raw:
            taken = self.embed(taken) * masks["embedded_action"]
        hidden, cell = self.lstm(torch.cat([taken, seen, text], dim=-1), (state.hidden, state.cell))
        return CoGroundedState(hidden, cell, state.hidden, text, seen, attention, observation.view)


class EmbedsActions(ext.Agent):
    """Mixed into an agent that reads embedded candidates; with the common core it has an ``embed`` itself."""

    embed: ActionEmbedding

    def embedded(self, observations: ext.Observations) -> Tensor:
        """g(u) of candidates and stop; 0 at slots without a candidate, which are most  ->  (X, K + 1, A)"""
        core, seen, real = self.updater, observations.candidates, observations.candidates.mask
        embed = core.embed if isinstance(core, CoGroundedUpdater) else self.embed
        visual, angles = seen.visual[real] * observations.feature_mask, ext.tiled(seen.orientation[real])
        known = embed(torch.cat([visual, angles], dim=-1))
        stop = embed(visual.new_zeros(1, 1, embed.linear.in_features))
        table = known.new_zeros(*real.shape, known.shape[1]).masked_scatter(real.unsqueeze(-1), known)
        embedded = torch.cat([table, stop.expand(len(table), 1, -1)], dim=1)
        if isinstance(core, CoGroundedUpdater):
            embedded = embedded * observations.mask("embedded_action").unsqueeze(1)
        return embedded


class ProgressMonitor(nn.Module):
    """p = tanh(w [a, m]),  m = sigmoid(W [h, v^]) * tanh(c): how much of the way is done, in (-1, 1).

    The weights a of the words are an input themselves, so the number of words is fixed; shorter instructions
    are padded.
    """

    def __init__(self, width: int, seen: int, words: int) -> None:
        super().__init__()
        self.words = words
        self.gate = nn.Linear(width + seen, width)
        self.score = nn.Linear(words + width, 1)

    def forward(self, attention: Tensor, hidden: Tensor, seen: Tensor, cell: Tensor) -> Tensor:
        """attention: (X, L)  hidden, cell: (X, H)  seen: (X, A)  ->  (X,)"""
        missing = self.words - attention.shape[1]
        if missing < 0:
            raise SettingError(
                f"the progress monitor was built for {self.words} words, got {attention.shape[1]}; "
                f"set `model.monitor_words` to {attention.shape[1]} or more"
            )
        memory = torch.sigmoid(self.gate(torch.cat([hidden, seen], dim=-1))) * torch.tanh(cell)
        padded = nn.functional.pad(attention, (0, missing))
        score: Tensor = self.score(torch.cat([padded, memory], dim=-1))
        return torch.tanh(score).squeeze(-1)
