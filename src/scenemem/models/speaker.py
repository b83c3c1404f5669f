"""The speaker: puts a path into words, the way back from an agent that puts words into a path.

Shape letters: B paths, T viewpoints of the longest path, M viewpoints of all paths together, L words of the
longest text, D visual columns, H width, K beams, V words known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from scenemem.errors import SettingError
from scenemem.models.navigator import masked_softmax
from scenemem.tasks.vocabulary import BOS, EOS, PAD, UNK

Choose = Callable[[Tensor], Tensor]
"""log-probabilities: (M, V)  ->  (M,) chosen words"""


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
    words: Tensor  # (B,) int64, number of counted words

    @property
    def per_word(self) -> Tensor:
        """(B,)"""
        return self.total / self.words


class SpeakerNetwork(nn.Module):
    """Path -> text: an encoder of paths, and a decoder that attends to their steps."""

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
        said, target = tokens[:, :-1], tokens[:, 1:]
        counted = (target != PAD) & (target != UNK)
        attended = self.decoder(said, encoded)
        # only counted words are compared with the vocabulary, the dearest part of a step
        logits = self.decoder.word_logits(attended[counted])
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
        self.chosen = ViewEmbedding(visual, width)
        self.walk = TwoWayLSTM(width)
        self.look = PanoramaAttention(visual, width)
        self.seen = ViewEmbedding(visual, width)
        self.read = TwoWayLSTM(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.initial_hidden = nn.Linear(width, width)
        self.initial_cell = nn.Linear(width, width)

    def forward(self, paths: PathViews, feature_mask: Tensor) -> EncodedPaths:
        """feature_mask: (D,) environment dropout, one mask for all views of all paths"""
        mask = paths.mask
        after_walk, after_look, after_read = self.norms
        chosen = self.drop(self.chosen(paths.chosen * feature_mask, paths.direction))
        walked = after_walk(chosen + self.walk(chosen, mask))
        query = self.drop(walked[mask])
        steps = torch.zeros_like(walked)
        steps[mask] = after_look(query + self.seen(*self.look(query, paths, feature_mask)))
        steps = self.drop(steps)
        context = after_read(steps + self.read(steps, mask))
        strongest = context.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        state = DecoderState(torch.tanh(self.initial_hidden(strongest)), self.initial_cell(strongest))
        return EncodedPaths(self.drop(context), mask, state)


class ViewEmbedding(nn.Module):
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
        self.query_visual = nn.Linear(width, visual, bias=False)
        self.query_direction = nn.Linear(width, 4, bias=False)

    def forward(self, query: Tensor, paths: PathViews, feature_mask: Tensor) -> tuple[Tensor, Tensor]:
        """query: (M, H)  feature_mask: (D,)  ->  visual (M, D), direction (M, 4)"""
        # masking the query is masking the features, for a 36th of the work
        visual = (self.query_visual(query) * feature_mask).unsqueeze(-1)
        direction = self.query_direction(query).unsqueeze(-1)
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
        self.path_query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)
        self.words = nn.Linear(width, words)
        never = torch.zeros(words)
        never[[PAD, UNK, BOS]] = -torch.inf
        self.register_buffer("never", never, persistent=False)

    never: Tensor

    def forward(self, tokens: Tensor, paths: EncodedPaths) -> Tensor:
        """The attended states h~ after every word, all words at once.  tokens: (B, L)  ->  (B, L, H)"""
        return self._read(tokens, paths.state, paths)[0]

    def step(self, word: Tensor, state: DecoderState, paths: EncodedPaths) -> tuple[Tensor, DecoderState]:
        """One word more.  word: (B,)  ->  logits (B, words), the next state"""
        attended, state = self._read(word.unsqueeze(1), state, paths)
        return self.word_logits(attended.squeeze(1)), state

    def word_logits(self, attended: Tensor) -> Tensor:
        """attended: (..., H)  ->  logits (..., words)"""
        logits: Tensor = self.words(attended)
        return logits + self.never

    def _read(self, tokens: Tensor, state: DecoderState, paths: EncodedPaths) -> tuple[Tensor, DecoderState]:
        """tokens: (B, L)  ->  h~ (B, L, H), the state after the last of them"""
        begin = (state.hidden.unsqueeze(0), state.cell.unsqueeze(0))
        read, (last, cell) = self.lstm(self.drop(self.embedding(tokens)), begin)
        hidden = self.drop(read)
        scores = torch.bmm(self.path_query(hidden), paths.context.transpose(1, 2))
        weights = masked_softmax(scores, paths.mask.unsqueeze(1))
        joined = self.join(torch.cat([torch.bmm(weights, paths.context), hidden], dim=-1))
        return self.drop(torch.tanh(joined)), DecoderState(last.squeeze(0), cell.squeeze(0))


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


@dataclass(frozen=True)
class Descriptions:
    """Texts as token numbers, each ``<BOS> words <EOS>``."""

    tokens: Tensor  # (B, L) int64, padded with <PAD>
    lengths: Tensor  # (B,) int64, both marks included
    log_likelihood: Tensor  # (B,) of all words and the end mark

    @property
    def per_word(self) -> Tensor:
        """(B,) mean log-likelihood of a word, the end mark included."""
        return self.log_likelihood / (self.lengths - 1)


def speak(decoder: WordDecoder, paths: EncodedPaths, choose: Choose, longest: int) -> Descriptions:
    """Describe paths word by word; a path that has got its end mark costs nothing any more.

    ``choose`` picks the next word; a text of ``longest`` tokens, both marks included, is ended there.
    """
    tokens = paths.mask.new_full((len(paths.mask), longest), PAD, dtype=torch.int64)
    tokens[:, 0] = BOS
    total = torch.zeros_like(paths.context[:, 0, 0])
    rows = torch.arange(len(tokens), device=tokens.device)
    state, word = paths.state, tokens[:, 0]
    for place in range(1, longest):
        logits, state = decoder.step(word, state, paths)
        chances = logits.log_softmax(dim=-1)
        word = torch.full_like(word, EOS) if place == longest - 1 else choose(chances)
        tokens[rows, place] = word
        total[rows] += chances.gather(1, word.unsqueeze(1)).squeeze(1)
        going = (word != EOS).nonzero().squeeze(1)
        if len(going) == 0:
            break
        if len(going) < len(rows):
            rows, word = rows[going], word[going]
            state, paths = state.select(going), paths.select(going)
    return _trimmed(tokens, total)


def beam_search(
    decoder: WordDecoder, paths: EncodedPaths, beams: int, longest: int, length_power: float = 0.7
) -> Descriptions:
    """The best text found while keeping the ``beams`` most promising ones per path, all paths at once.

    Texts are ranked by log-likelihood / tokens ** length_power: 0 prefers short texts, 1 takes the mean. A
    beam may lose the greedy text on its way to something worse, so the two are compared at the end.
    """
    tokens, total = _search(decoder, paths, beams, longest, length_power)
    greedy = speak(decoder, paths, lambda chances: chances.argmax(dim=-1), longest)
    found = _trimmed(tokens, total)
    rank, other = (one.log_likelihood / (one.lengths - 1) ** length_power for one in (greedy, found))
    better = rank > other
    padded = functional.pad(greedy.tokens, (0, longest - greedy.tokens.shape[1]), value=PAD)
    return _trimmed(
        torch.where(better.unsqueeze(1), padded, tokens), torch.where(better, greedy.log_likelihood, total)
    )


def _search(
    decoder: WordDecoder, paths: EncodedPaths, beams: int, longest: int, length_power: float
) -> tuple[Tensor, Tensor]:
    """The best beam of every path.  ->  tokens (B, longest), log-likelihood (B,)"""
    count, device = len(paths.mask), paths.mask.device
    row = torch.arange(count, device=device).unsqueeze(1)
    paths = paths.select(row.repeat(1, beams).flatten())
    tokens = torch.full((count, beams, longest), PAD, device=device)
    tokens[:, :, 0] = BOS
    total = paths.context.new_full((count, beams), -torch.inf)  # of the beams that are not texts yet
    total[:, 0] = 0.0
    said = torch.zeros_like(tokens[:, :, 0])  # words and end mark so far
    ended, state = said.bool(), paths.state
    for place in range(1, longest):
        logits, state = decoder.step(tokens[:, :, place - 1].flatten(), state, paths)
        chances = logits.log_softmax(dim=-1).view(count, beams, -1)
        number = torch.arange(chances.shape[2], device=device)
        if place == longest - 1:
            chances = chances.masked_fill(number != EOS, -torch.inf)
        # a text that has ended goes on with padding, at no cost
        padding = torch.zeros_like(chances).masked_fill(number != PAD, -torch.inf)
        grown = total.unsqueeze(-1) + torch.where(ended.unsqueeze(-1), padding, chances)
        said = said + (~ended).long()
        rank = grown / said.unsqueeze(-1) ** length_power
        best = rank.flatten(1).topk(beams, dim=1).indices
        origin, word = best.div(len(number), rounding_mode="floor"), best % len(number)
        tokens, said, ended = tokens[row, origin], said[row, origin], ended[row, origin] | (word == EOS)
        tokens[:, :, place] = word
        total = grown.flatten(1).gather(1, best)
        state = state.select((row * beams + origin).flatten())
        if bool(ended.all()):
            break
    best = (total / said**length_power).argmax(dim=1)
    return tokens[row[:, 0], best], total[row[:, 0], best]


def _trimmed(tokens: Tensor, total: Tensor) -> Descriptions:
    lengths = (tokens != PAD).sum(dim=1)
    return Descriptions(tokens[:, : int(lengths.max())], lengths, total)
