"""One decision of the Structured Scene Memory agent, written from the paper alone: slow, plain, float64.

Equation numbers are those of the paper. Nothing here is shared with the package under test.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Weights: TypeAlias = Mapping[str, Array]

TILES = 32  # section 3.4: the four numbers of an orientation are tiled 32 times


@dataclass(frozen=True)
class NavigableView:
    """One navigable viewpoint o_{v,k} of a place; the angles are absolute, in radians."""

    leads_to: Hashable
    feature: Array
    heading: float
    elevation: float


@dataclass(frozen=True)
class Place:
    """A visited place: all its navigable viewpoints, and further views which must never matter."""

    name: Hashable
    views: tuple[NavigableView, ...]
    other_features: Array


@dataclass(frozen=True)
class Situation:
    """All that one decision depends on, next to the weights."""

    visited: tuple[Place, ...]
    here: Hashable
    heading: float
    words: Array
    hidden: Array


@dataclass(frozen=True)
class Decision:
    """Node states after S iterations and the logits of every choice; the key None is to stop."""

    node_states: dict[Hashable, tuple[Array, Array]]
    frontier_scores: dict[Hashable, float]
    action_scores: dict[Hashable | None, float]
    one_step_scores: dict[tuple[Hashable, Hashable] | None, float] | None


def softmax(scores: Array) -> Array:
    """Positive shares that sum to one."""
    powers = np.exp(scores - np.max(scores))
    return np.asarray(powers / np.sum(powers), dtype=np.float64)


def attend(vectors: list[Array], query: Array) -> Array:
    """The sum of the vectors, weighted by the softmax of their products with the query; zero without any."""
    total = np.zeros(len(query))
    if not vectors:
        return total
    shares = softmax(np.array([float(vector @ query) for vector in vectors]))
    for share, vector in zip(shares, vectors, strict=True):
        total = total + share * vector
    return total


def aware_state(
    weights: Weights, kind: Literal["perception", "action"], words: Array, hidden: Array
) -> Array:
    """h^p or h^a; h itself when the weights hold no grounding (the ablation of section 4.3)."""
    if not any(name.startswith("grounding.") for name in weights):
        return hidden
    # Eq. 5: x = sum_l alpha_l x_l, alpha_l = softmax_l(x_l . W_x h)
    text = attend(list(words), weights[f"grounding.{kind}.query.weight"] @ hidden)
    # Eq. 6: W_h [h, x]
    return np.asarray(weights[f"grounding.{kind}.join.weight"] @ np.concatenate([hidden, text]))


def orientation(view: NavigableView, agent_heading: float) -> Array:
    """r_{v,k}, relative to where the agent looks."""
    theta = view.heading - agent_heading
    four = np.array([np.cos(theta), np.sin(theta), np.cos(view.elevation), np.sin(view.elevation)])
    return np.tile(four, TILES)


def sub_nodes(place: Place, visited: set[Hashable]) -> list[NavigableView]:
    """Section 3.1: the navigable viewpoints of the place which were not visited yet."""
    return [view for view in place.views if view.leads_to not in visited]


def connected(one: Place, other: Place) -> bool:
    """Whether two visited places share an edge: a navigable view of one of them leads to the other."""
    if one.name == other.name:
        return False
    there = any(view.leads_to == other.name for view in one.views)
    back = any(view.leads_to == one.name for view in other.views)
    return there or back


def gru_cell(weights: Weights, name: str, message: Array, state: Array) -> Array:
    """U(m, s), a GRU cell whose input is the message and whose state is the node's."""
    from_input = weights[f"{name}.weight_ih"] @ message + weights[f"{name}.bias_ih"]
    from_state = weights[f"{name}.weight_hh"] @ state + weights[f"{name}.bias_hh"]
    width = len(state)
    reset_gate = 1 / (1 + np.exp(-(from_input[:width] + from_state[:width])))
    update_gate = 1 / (1 + np.exp(-(from_input[width : 2 * width] + from_state[width : 2 * width])))
    new = np.tanh(from_input[2 * width :] + reset_gate * from_state[2 * width :])
    return np.asarray((1 - update_gate) * new + update_gate * state, dtype=np.float64)


def one_iteration(
    weights: Weights, name: str, states: dict[Hashable, Array], neighbours: dict[Hashable, list[Hashable]]
) -> dict[Hashable, Array]:
    """Eq. 9: each node hears the sum of its neighbours' states of iteration s; all change at once."""
    after: dict[Hashable, Array] = {}
    for node, state in states.items():
        message = np.zeros(len(state))
        for neighbour in neighbours[node]:
            message = message + states[neighbour]
        after[node] = gru_cell(weights, name, message, state)
    return after


def decide(
    weights: Weights,
    situation: Situation,
    *,
    steps: int,
    views: Literal["navigable", "unvisited"] = "navigable",
) -> Decision:
    """The node states and the logits of the decision, after `steps` iterations of message passing."""
    weights = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
    places = {place.name: place for place in situation.visited}
    visited = set(places)
    hidden = situation.hidden
    h_p = aware_state(weights, "perception", situation.words, hidden)
    h_a = aware_state(weights, "action", situation.words, hidden)
    both = np.concatenate([h_p, h_a])

    neighbours: dict[Hashable, list[Hashable]] = {}
    visual: dict[Hashable, Array] = {}
    turned: dict[Hashable, Array] = {}
    for name, place in places.items():
        neighbours[name] = [other.name for other in places.values() if connected(place, other)]
        # Eq. 3: the node embedding is the set of the f_{v,k}
        chosen = list(place.views) if views == "navigable" else sub_nodes(place, visited)
        embedding = [view.feature for view in chosen]
        # Eq. 7: att^f(v, h^p)
        read = attend(embedding, weights["reader.visual_read.query.weight"] @ h_p)
        if "reader.project.weight" in weights:
            read = weights["reader.project.weight"] @ read
        visual[name] = read
        # Eq. 4: e_{v,u} is the orientation of the view of v from which u can be navigated
        leaving = [view for view in place.views if view.leads_to in neighbours[name]]
        edges = [orientation(view, situation.heading) for view in leaving]
        # Eq. 8: att^r over the outgoing edges, with h^a
        turned[name] = attend(edges, weights["reader.orientation_read.query.weight"] @ h_a)

    for _ in range(steps):  # Eq. 9
        visual = one_iteration(weights, "reader.visual_messages.update", visual, neighbours)
        turned = one_iteration(weights, "reader.orientation_messages.update", turned, neighbours)

    def score(part: str, f: Array, r: Array, parent: tuple[Array, Array] | None = None) -> float:
        """[q^f, q^r] . w, with q^f = f . W_f h^p, q^r = r . W_r h^a and w = W [h^p, h^a]."""
        w_f, w_r = weights[f"{part}.query_visual.weight"], weights[f"{part}.query_orientation.weight"]
        if parent is not None:  # Eq. 10: [f_{v,k}, f^S_v] and [r_{v,k}, r^S_v], both halves of W_f and W_r
            f, r = np.concatenate([f, parent[0]]), np.concatenate([r, parent[1]])
            w_f = np.concatenate([w_f, weights[f"{part}.query_node_visual.weight"]])
            w_r = np.concatenate([w_r, weights[f"{part}.query_node_orientation.weight"]])
        q = np.array([f @ w_f @ h_p, r @ w_r @ h_a])
        w = weights[f"{part}.mix.weight"] @ both
        return float(q @ w)

    node_states = {name: (visual[name], turned[name]) for name in places}

    if "global_score.mix.weight" in weights:
        # Eqs. 10-12: every sub-node of the map, seen together with its parent node
        one_step: dict[tuple[Hashable, Hashable] | None, float] = {}
        for name, place in places.items():
            for view in sub_nodes(place, visited):
                r = orientation(view, situation.heading)
                parent = (visual[name], turned[name])
                one_step[(name, view.leads_to)] = score("global_score", view.feature, r, parent)
        stop_f, stop_r = weights["global_score.stop.visual"], weights["global_score.stop.orientation"]
        one_step[None] = score("global_score", stop_f, stop_r)
        return Decision(node_states, {}, {}, one_step)

    # Eq. 13: the frontiers W_t are the nodes with a sub-node; the node underfoot stays choosable
    frontier: dict[Hashable, float] = {}
    for name, place in places.items():
        if sub_nodes(place, visited) or name == situation.here:
            frontier[name] = score("frontier_score", visual[name], turned[name])

    # Eq. 14: the sub-nodes of the place where the agent stands, and stopping
    actions: dict[Hashable | None, float] = {}
    for view in sub_nodes(places[situation.here], visited):
        actions[view.leads_to] = score("actions", view.feature, orientation(view, situation.heading))
    actions[None] = score("actions", weights["actions.stop.visual"], weights["actions.stop.orientation"])
    return Decision(node_states, frontier, actions, None)
