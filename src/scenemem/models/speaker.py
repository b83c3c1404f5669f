"""The speaker: puts a path into words, the way back from an agent that puts words into a path.

Shape letters: B paths, T viewpoints of the longest path, M viewpoints of all paths together, L words of the
longest text, D visual columns, H width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from scenemem.errors import SettingError
from scenemem.models.attention import masked_softmax
from scenemem.tasks.vocabulary import BOS, PAD, UNK


@dataclass(frozen=True)
class SpeakerConfig:
    """Sizes and dropout of a speaker."""

    word_width: int = 256
    """width of the word embeddings"""
    width: int = 256
    """width H of the path encoding and of the decoder's state"""
    dropout: float = 0.25
    """share of state and input numbers dropped in training"""
    feature_dropout: float = 0.2
    """share of visual columns dropped in training, the same for all views and paths of a batch"""

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2:
            raise SettingError(f"width must be even and positive, got {self.width}; both directions share it")
        if self.word_width < 1:
            raise SettingError(f"word_width must be 1 or more, got {self.word_width}")
        for name in ("dropout", "feature_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"{name} must be in [0, 1), got {getattr(self, name)}")


@dataclass(frozen=True)
class PathViews:
    """What a walker sees along its path, and where it goes."""

    mask: Tensor  # (B, T) bool, true at viewpoints; each path fills the first places of its row
    chosen: Tensor  # (B, T, D) the view walked along; 0 at the last viewpoint, where the path stops
    direction: Tensor  # (B, T, 4) the direction walked, relative to the walker's heading; 0 at the last one
    panoramas: Tensor  # (M, 36, D) all views from every viewpoint, path after path
    angles: Tensor  # (M, 36, 4) their directions, relative to the walker's heading


@dataclass(frozen=True)
class EncodedPaths:
    """Paths ready to be described."""

    context: Tensor  # (B, T, H)
    mask: Tensor  # (B, T) bool
    state: DecoderState  # before the first word

    def select(self, rows: Tensor) -> EncodedPaths:
        """The given paths, in the given order."""
        return EncodedPaths(self.context[rows], self.mask[rows], self.state.select(rows))


@dataclass(frozen=True)
class DecoderState:
    """What the decoder carries from word to word."""

    hidden: Tensor  # (B, H)
    cell: Tensor  # (B, H)

    def select(self, rows: Tensor) -> DecoderState:
        """The states of the given rows, in the given order."""
        return DecoderState(self.hidden[rows], self.cell[rows])


@dataclass(frozen=True)
class Likelihood:
    """How likely a speaker finds given texts; unknown words do not count."""

    total: Tensor  # (B,) natural logarithm of the probability of all counted words and the end mark
    words: Tensor  # (B,) int64, how many were counted

    @property
    def per_word(self) -> Tensor:
        """(B,)"""
        return self.total / self.words


class SpeakerNetwork(nn.Module):
    """Path -> text: an encoder of paths, and a decoder that attends to their steps.

    Args:
        config: sizes and dropout.
        words: size of the vocabulary.
        visual: columns D of the view features.
    """

    def __init__(self, config: SpeakerConfig, words: int, visual: int) -> None:
        super().__init__()
        self.config = config
        self.visual = visual
        self.encoder = PathEncoder(visual, config.width, config.dropout)
        self.decoder = WordDecoder(words, config.word_width, config.width, config.dropout)

    def likelihood(self, paths: PathViews, feature_mask: Tensor, tokens: Tensor) -> Likelihood:
        """How likely texts are, each given its path; with gradients.

        feature_mask: (D,)  tokens: (B, L) ``<BOS> words <EOS>``, padded
        """
        encoded = self.encoder(paths, feature_mask)
        heard, target = tokens[:, :-1], tokens[:, 1:]
        counted = (target != PAD) & (target != UNK)
        attended = self.decoder(heard, encoded)
        # only counted words are compared with the vocabulary, the dearest part of a step
        logits = self.decoder.say(attended[counted])
        chance = -functional.cross_entropy(logits, target[counted], reduction="none")
        total = torch.zeros_like(attended[:, 0, 0]).index_add(0, counted.nonzero()[:, 0], chance)
        return Likelihood(total, counted.sum(dim=1))


class PathEncoder(nn.Module):
    """An LSTM both ways over what was chosen, a look around at every step, another LSTM over what was seen.

    Visual features are small numbers in many columns, directions large ones in few; each is brought to unit
    size by itself, and every layer adds to what the one before knew. The first state of the decoder is
    h_0 = tanh(W max_t x_t), c_0 = W max_t x_t.
    """

    def __init__(self, visual: int, width: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.chosen = SightEmbedding(visual, width)
        self.walk = TwoWayLSTM(width)
        self.look = PanoramaAttention(visual, width)
        self.seen = SightEmbedding(visual, width)
        self.read = TwoWayLSTM(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.begin_hidden = nn.Linear(width, width)
        self.begin_cell = nn.Linear(width, width)

    def forward(self, paths: PathViews, feature_mask: Tensor) -> EncodedPaths:
        """feature_mask: (D,) environment dropout, one mask for all views of all paths"""
        mask = paths.mask
        after_walk, after_look, after_read = self.norms
        chosen = self.drop(self.chosen(paths.chosen * feature_mask, paths.direction))
        walked = after_walk(chosen + self.walk(chosen, mask))
        asking = self.drop(walked[mask])
        steps = torch.zeros_like(walked)
        steps[mask] = after_look(asking + self.seen(*self.look(asking, paths, feature_mask)))
        steps = self.drop(steps)
        context = after_read(steps + self.read(steps, mask))
        strongest = context.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        state = DecoderState(torch.tanh(self.begin_hidden(strongest)), self.begin_cell(strongest))
        return EncodedPaths(self.drop(context), mask, state)


class SightEmbedding(nn.Module):
    """What is seen and in which direction, as one vector."""

    def __init__(self, visual: int, width: int) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(visual, width), nn.LayerNorm(width))
        self.direction = nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width))

    def forward(self, visual: Tensor, direction: Tensor) -> Tensor:
        """visual: (..., D)  direction: (..., 4)  ->  (..., H)"""
        embedded: Tensor = self.visual(visual) + self.direction(direction)
        return embedded


class PanoramaAttention(nn.Module):
    """Attention of every step over its 36 views, visual and orientation features together."""

    def __init__(self, visual: int, width: int) -> None:
        super().__init__()
        self.ask_visual = nn.Linear(width, visual, bias=False)
        self.ask_direction = nn.Linear(width, 4, bias=False)

    def forward(self, asking: Tensor, paths: PathViews, feature_mask: Tensor) -> tuple[Tensor, Tensor]:
        """asking: (M, H)  feature_mask: (D,)  ->  visual (M, D), direction (M, 4)"""
        # masking the query is masking the features, for a 36th of the work
        visual = (self.ask_visual(asking) * feature_mask).unsqueeze(-1)
        direction = self.ask_direction(asking).unsqueeze(-1)
        scores = torch.bmm(paths.panoramas, visual) + torch.bmm(paths.angles, direction)
        weights = scores.softmax(dim=1).transpose(1, 2)
        seen = torch.bmm(weights, paths.panoramas).squeeze(1) * feature_mask
        return seen, torch.bmm(weights, paths.angles).squeeze(1)


class WordDecoder(nn.Module):
    """h_l = LSTM(word_{l-1}, h_{l-1}); h~_l = tanh(W [sum_t a_t x_t, h_l]); p(word_l) = softmax(W h~_l).

    Padding, the unknown word and the begin mark are never said: their probability is 0.
    """

    def __init__(self, words: int, word_width: int, width: int, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.embedding = nn.Embedding(words, word_width, padding_idx=PAD)
        self.lstm = nn.LSTM(word_width, width, batch_first=True)
        self.listen = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)
        self.words = nn.Linear(width, words)
        never = torch.zeros(words)
        never[[PAD, UNK, BOS]] = -torch.inf
        self.register_buffer("never", never, persistent=False)

    never: Tensor

    def forward(self, tokens: Tensor, paths: EncodedPaths) -> Tensor:
        """The attended states h~ after every word, all words at once.  tokens: (B, L)  ->  (B, L, H)"""
        begin = (paths.state.hidden.unsqueeze(0), paths.state.cell.unsqueeze(0))
        hidden, _ = self.lstm(self.drop(self.embedding(tokens)), begin)
        return self._attended(self.drop(hidden), paths)

    def step(self, word: Tensor, state: DecoderState, paths: EncodedPaths) -> tuple[Tensor, DecoderState]:
        """One word more.  word: (B,)  ->  logits (B, words), the next state"""
        entered = self.drop(self.embedding(word))
        hidden, cell = torch.lstm_cell(entered, (state.hidden, state.cell), *self.lstm.all_weights[0])
        attended = self._attended(self.drop(hidden).unsqueeze(1), paths).squeeze(1)
        return self.say(attended), DecoderState(hidden, cell)

    def say(self, attended: Tensor) -> Tensor:
        """attended: (..., H)  ->  logits (..., words)"""
        logits: Tensor = self.words(attended)
        return logits + self.never

    def _attended(self, hidden: Tensor, paths: EncodedPaths) -> Tensor:
        """hidden: (B, L, H)  ->  (B, L, H)"""
        scores = torch.bmm(self.listen(hidden), paths.context.transpose(1, 2))
        weights = masked_softmax(scores, paths.mask.unsqueeze(1))
        joined = self.join(torch.cat([torch.bmm(weights, paths.context), hidden], dim=-1))
        attended: Tensor = self.drop(torch.tanh(joined))
        return attended


class TwoWayLSTM(nn.Module):
    """A bidirectional LSTM out of reach of padding: backwards, a row is turned within its own length."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.forward_lstm = nn.LSTM(width, width // 2, batch_first=True)
        self.backward_lstm = nn.LSTM(width, width // 2, batch_first=True)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """rows: (B, T, H)  mask: (B, T)  ->  (B, T, H); anything at pads"""
        place = torch.arange(mask.shape[1], device=mask.device)
        turned = torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - place, place)
        ahead, _ = self.forward_lstm(rows)
        back, _ = self.backward_lstm(_rearranged(rows, turned))
        return torch.cat([ahead, _rearranged(back, turned)], dim=-1)


def _rearranged(rows: Tensor, place: Tensor) -> Tensor:
    """rows: (B, T, H)  place: (B, T)  ->  (B, T, H)"""
    return rows.gather(1, place.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))
