"""DUET (Chen 2022): a coarse map of all seen places and a fine panorama, each read by a Transformer, fused.

Views of a panorama become tokens that attend to each other. A visited place is the mean of its tokens, an
unvisited one the mean of the tokens that saw it, from whichever place. On the map, a stop token and the
places attend to the words and to each other with a bias from D, the shortest ways over the map
("graph-aware"):

    softmax(Q K^T / sqrt(d) + w D + b) V

Here, a stop token and the views do the same without the bias. Both score stop and places, and are fused:

    s = sigmoid(W [g_stop, l_stop]),   score = s * map + (1 - s) * here'

here' of stop and of unvisited neighbours is their own score; of every other place it is the sum of the scores
of visited neighbours, "go back". On its own walks the agent learns from a pseudo expert, the place v of the
map with the shortest d(here, v) + d(v, goal). When evaluated, every end sends it to the visited place where
stopping was likeliest. A jump changes no state on its way.

Read in the released code. Differences: no pre-training of the instruction encoder; step numbers are
sinusoids; a walk to learn from goes on when it passes the goal, and its labels lead on from there.
``views="candidates"`` is a third of the arithmetic. On the common recipe the recurrent state joins the stop
tokens; as published there is none.

Shape letters: X observations, R decision steps, K candidate slots, V further views, N nodes, U unvisited
places, P = N + U, O = N * K ways, D visual columns, W token width, H state width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.encoders import sinusoids
from scenemem.zoo.panoramic import view_angles
from scenemem.zoo.places import POSITION, PlaceActions, SeenPlaces
from scenemem.zoo.recipes import published, shared
from scenemem.zoo.transformer import CrossModalLayer, TokenConfig, hidden_bias, token_parts

_AT_A_TIME = 256  # panoramas averaged together, so that they are never all in memory


@dataclass(frozen=True)
class DuetConfig(TokenConfig):
    """Settings of DUET."""

    layers: int = 2
    """of the map's Transformer, and of the panorama's after it has read the words"""
    panorama_layers: int = 1
    """in which the views of a panorama attend to each other only"""
    views: Literal["candidates", "all"] = "candidates"
    """which views become tokens: all 36, or those that lead somewhere and the mean of all"""
    recurrent: bool = True
    """the state of the common recurrent core joins the stop tokens; False as published"""


class Still(ext.StateUpdater):
    """No recurrence: the state is the summary of the instruction, whatever is seen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def initial_state(self, instructions: ext.Instructions) -> ext.State:
        """The summary."""
        return ext.State(instructions.hidden)

    def forward(self, state: ext.State, observation: ext.Observation) -> ext.State:
        """The same state."""
        del observation
        return state


@dataclass(frozen=True)
class PanoramaTokens:
    """The panorama of every observation as tokens: candidates first, then further views."""

    tokens: Tensor  # (X, K + V, W)
    mask: Tensor  # (X, K + V) bool


@dataclass(frozen=True)
class Fused:
    """Scores of both scales for R decision steps."""

    confidence: Tensor  # (R, O + 1, 2) of every option: the panorama's here', and the map's
    mix: Tensor  # (R, 2) their weights 1 - s and s
    words: Callable[[], dict[str, Tensor]]  # (R, L) what the stop tokens attend to, for viewers


class Duet(ext.Agent):
    """Scores all seen places at once, at two scales."""

    config: DuetConfig

    def __init__(self, config: DuetConfig, sizes: ext.DataSizes) -> None:
        make = None if config.recurrent else (lambda settings, _: Still(settings.width))
        super().__init__(config, sizes, token_parts(config, sizes, make))
        width, heads = config.map_width, config.heads
        self.view = _normed(sizes.visual, width)
        self.angle = _normed(4, width)
        self.leads = nn.Parameter(torch.zeros(width))  # added to views that lead somewhere
        self.enter = nn.LayerNorm(width)
        self.panorama = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(config.panorama_layers)
        )
        self.place_code = _normed(POSITION, width)
        self.view_code = _normed(2 * POSITION, width)
        self.text = nn.LayerNorm(config.width)  # an LSTM's states are small, and attention to them flat
        self.unvisited = nn.Parameter(torch.zeros(width))
        self.distance = nn.Linear(1, 1)
        self.map_layers = nn.ModuleList(
            CrossModalLayer(width, config.width, heads) for _ in range(config.layers)
        )
        self.here_layers = nn.ModuleList(
            CrossModalLayer(width, config.width, heads) for _ in range(config.layers)
        )
        # what is added to all places and stop alike changes nothing
        self.map_score = _scorer(width, bias=False)
        self.here_score = _scorer(width)
        self.fusion = nn.Linear(2 * width, 1)
        self.joins = nn.Linear(config.width, 2 * width) if config.recurrent else None
        nn.init.normal_(self.leads, std=0.02)
        nn.init.normal_(self.unvisited, std=0.02)
        nn.init.normal_(self.distance.weight, std=0.02)  # of metres: larger ones would hide half of the map
        nn.init.zeros_(self.distance.bias)

    def action_space(
        self, world: ext.World, episodes: int, max_decisions: ext.Limit, *, learning: bool = False
    ) -> ext.ActionSpace:
        """Every seen place once, or stop; when evaluated, ends lead to the likeliest place to stop."""
        options = ext.WalkOptions(restore_state=True, final_backtrack=not learning)
        return PlaceActions(world, episodes, max_decisions, options)

    def look(self, observations: ext.Observations) -> PanoramaTokens:
        """The panorama tokens of every observation."""
        seen, mask = observations.candidates, observations.feature_mask
        visual, angles, kept = self._further_views(observations)
        leads = self.view(seen.visual * mask) + self.angle(seen.orientation) + self.leads
        tokens = torch.cat([leads, self.view(visual * mask) + self.angle(angles)], dim=1)
        tokens, exists = self.enter(tokens), torch.cat([seen.mask, kept], dim=1)
        for layer in self.panorama:
            tokens = layer(tokens, src_key_padding_mask=~exists)
        return PanoramaTokens(tokens, exists)

    def _further_views(self, observations: ext.Observations) -> tuple[Tensor, Tensor, Tensor]:
        """Views that are no candidates: visual (X, V, D), angles (X, V, 4), which there are (X, V) bool"""
        environment, here = observations.environment, observations.viewpoint
        if self.config.views == "all":
            taken = torch.zeros(len(here), 36, dtype=torch.int, device=here.device)
            views = environment.world.neighbour_view[here]
            taken.scatter_add_(1, views, observations.candidates.mask.int())
            return environment.panorama(here), view_angles(observations.view), taken == 0
        mean = torch.cat([environment.panorama(part).mean(dim=1) for part in torch.split(here, _AT_A_TIME)])
        angles = mean.new_zeros(len(here), 1, 4)
        return mean.unsqueeze(1), angles, torch.ones_like(angles[..., 0], dtype=torch.bool)

    def node_features(self, observations: ext.Observations) -> dict[str, Tensor]:
        """A visited place is the mean of its tokens, its ways are the tokens that look along them."""
        look, slots = observations.cached(self.look), observations.candidates.mask.shape[1]
        kept = look.mask.unsqueeze(-1)
        place = (look.tokens * kept).sum(dim=1) / kept.sum(dim=1)
        return {"place": place, "ways": look.tokens[:, :slots].flatten(1)}

    def map_tokens(self, point: ext.DecisionPoint, seen: SeenPlaces, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Stop, nodes and unvisited places, and the graph-aware bias  ->  (R, 1 + P, W), (R, 1 + P, 1 + P)"""
        graph, width = point.memory(), self.config.map_width
        visited = graph.column("place")
        visited = visited + sinusoids(visited.shape[1] + 1, width)[1:].to(visited)
        unvisited = seen.pooled(graph.ways("ways", *seen.open_ways), "mean") + self.unvisited
        places = torch.cat([visited, unvisited], dim=1) + self.place_code(codes)
        metres = nn.functional.pad(seen.metres, (1, 0, 1, 0))  # stop lies nowhere
        bias = self.distance(metres.unsqueeze(-1)).squeeze(-1)
        exists = nn.functional.pad(seen.all >= 0, (1, 0), value=True)
        tokens = nn.functional.pad(places, (0, 0, 1, 0))
        return tokens, bias + hidden_bias(exists)

    def here_tokens(self, point: ext.DecisionPoint, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Stop and the views of here  ->  (R, 1 + K + V, W), (R, 1, 1 + K + V)"""
        look, candidates = point.observations.cached(self.look), point.candidates()
        tokens, exists = look.tokens[point.row], look.mask[point.row]
        length = point.observations.environment.world.neighbour_length[point.viewpoint]
        metres = length.masked_fill(~candidates.mask, 0.0).to(tokens).unsqueeze(-1) / 30.0
        hop = torch.full_like(metres, 0.1)
        own = torch.cat([candidates.orientation, metres, metres, hop], dim=-1)  # (R, K, 7)
        own = nn.functional.pad(own, (0, 0, 1, tokens.shape[1] - own.shape[1]))
        start = codes[:, :1].expand(-1, own.shape[1], -1)
        tokens = nn.functional.pad(tokens, (0, 0, 1, 0)) + self.view_code(torch.cat([start, own], dim=-1))
        return tokens, hidden_bias(nn.functional.pad(exists, (1, 0), value=True))

    def known_words(self, instructions: ext.Instructions) -> Tensor:
        """Keys and values of the words for all layers  ->  (B, L, layers * 2W)"""
        context = self.text(instructions.context)
        return torch.cat([layer.words.keys_and_values(context) for layer in self._layers], dim=-1)

    @property
    def _layers(self) -> list[CrossModalLayer]:
        """Those of the map, then those of here."""
        layers = [*self.map_layers, *self.here_layers]
        return [layer for layer in layers if isinstance(layer, CrossModalLayer)]

    def words_of(self, point: ext.DecisionPoint) -> tuple[tuple[Tensor, ...], Tensor]:
        """The words of every decision step: keys and values for each layer, and a bias that hides padding."""
        seen = point.observations
        known = seen.inputs.cached(self.known_words)[seen.episode[point.row]]
        padding = hidden_bias(seen.instructions.mask[point.row]).to(known)
        return torch.split(known, 2 * self.config.map_width, dim=-1), padding

    def read(self, point: ext.DecisionPoint) -> Fused:
        """Both scales, and how they are fused."""
        graph, (known, padding) = point.memory(), self.words_of(point)
        seen = SeenPlaces.of(graph)
        codes = seen.positions(point.heading)
        places, bias = self.map_tokens(point, seen, codes)
        views, hidden = self.here_tokens(point, codes)
        if self.joins is not None:
            joins = self.joins(point.state.hidden * point.mask("decision")).unsqueeze(1)
            to_map, to_here = (
                nn.functional.pad(part, (0, 0, 0, tokens.shape[1] - 1))
                for part, tokens in zip(joins.chunk(2, dim=-1), (places, views), strict=True)
            )
            places, views = places + to_map, views + to_here
        attended: dict[str, Callable[[], Tensor]] = {}
        layers, count = self._layers, self.config.layers
        for on_map, here in zip(range(count), range(count, 2 * count), strict=True):
            attended = {
                "action": partial(layers[on_map].words.weights, places[:, :1], known[on_map], padding),
                "perception": partial(layers[here].words.weights, views[:, :1], known[here], padding),
            }
            places = layers[on_map](places, bias, known[on_map], padding)
            views = layers[here](views, hidden, known[here], padding)
        of_map, of_here = self.map_score(places).squeeze(-1), self.here_score(views).squeeze(-1)
        share = torch.sigmoid(self.fusion(torch.cat([places[:, 0], views[:, 0]], dim=-1)))
        nodes, slots = graph.open.shape[1:]
        back = go_back(of_here[:, 1 : 1 + slots], seen, point.candidates().mask)
        ways = torch.stack([back, seen.per_way(of_map[:, 1 + nodes :])], dim=-1)
        stop = torch.stack([of_here[:, 0], of_map[:, 0]], dim=-1).unsqueeze(1)
        return Fused(
            torch.cat([ways, stop], dim=1),
            torch.cat([1 - share, share], dim=-1),
            lambda: {name: weights().squeeze(1) for name, weights in attended.items()},
        )

    def score(self, point: ext.DecisionPoint) -> dict[ext.DecisionType, Tensor]:
        """Global decisions: (R, O + 1)"""
        fused = self.read(point)
        return {ext.GLOBAL: (fused.confidence * fused.mix.unsqueeze(1)).sum(dim=-1)}

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """What the stop tokens attend to, the scores of both scales, and the weight of the map."""
        fused = self.read(point)
        return ext.Explanation(
            fused.words(),
            {ext.GLOBAL: fused.confidence},
            {ext.GLOBAL: fused.mix},
            {"map weight": fused.mix[:, 1]},
        )


def _normed(columns: int, width: int) -> nn.Sequential:
    """A layer whose outputs are normed, so that what is added to them counts as much."""
    return nn.Sequential(nn.Linear(columns, width), nn.LayerNorm(width))


def _scorer(width: int, *, bias: bool = True) -> nn.Sequential:
    inner = nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width)
    return nn.Sequential(*inner, nn.Linear(width, 1, bias=bias))


def go_back(here: Tensor, seen: SeenPlaces, exists: Tensor) -> Tensor:
    """Scores here': of ways to unvisited neighbours their own, of others the sum of visited neighbours.

    here: (R, K) scores of candidates  exists: (R, K) bool  ->  (R, O)
    """
    graph, rows = seen.graph, torch.arange(len(here), device=here.device)
    new = graph.open[rows, graph.here]  # (R, K)
    back = here.masked_fill(~exists | new, 0.0).sum(dim=1, keepdim=True)
    nodes, slots = graph.open.shape[1:]
    place = seen.of_way.view(-1, nodes, slots)[rows, graph.here]  # (R, K) of every candidate of here
    scores = back.expand(-1, seen.viewpoint.shape[1] + 1).scatter(1, place, torch.where(new, here, back))
    return scores.gather(1, seen.of_way)


AGENTS = {"duet": ext.AgentSpec(Duet, DuetConfig)}
ROWS = {"duet": shared("duet", DuetConfig, learning={"labels": "shortest_detour"})}
AS_PUBLISHED = published(
    "duet",
    DuetConfig(
        word_width=768,
        width=768,
        dropout=0.1,
        map_width=768,
        layers=4,
        panorama_layers=2,
        heads=12,
        views="all",
        text_layers=9,
        recurrent=False,
    ),
    {"teacher_forcing": 0.2, "student_forcing": 1.0},
    decisions=15,
    steps=60,
    iterations=20_000,
    batch=8,
    learning_rate=1e-5,
    labels="shortest_detour",
)
