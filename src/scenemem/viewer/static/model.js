// What there is to see in a frame: a move of one agent, or its end. Nothing here touches the page.

const TURN = 2 * Math.PI;

// kinds of decisions, besides "frontier" and "action"
const GLOBAL = "global";
const FINAL = "final";

/** Decisions for a remembered place. */
const PLACES = ["frontier", FINAL];

/** The places an agent stood at up to move `count`, start included. */
function pathUntil(task, moves, count) {
  return [task.start, ...moves.slice(0, count).flatMap((move) => move.walk.slice(1))];
}

/** Places in the order of their first visit -> their numbers, from 1. */
function numbered(path) {
  const numbers = new Map();
  for (const place of path) if (!numbers.has(place)) numbers.set(place, numbers.size + 1);
  return numbers;
}

/** Frame `index` of an agent; the frame after the last move shows the end. */
function frameOf(data, agent, index) {
  const { task } = data;
  const ended = index >= agent.moves.length;
  const count = Math.min(index, agent.moves.length);
  const move = ended ? null : agent.moves[index];
  const path = pathUntil(task, agent.moves, count);
  const numbers = numbered(path);
  const frontier = move && PLACES.includes(move.decisions[0]?.kind) ? move.decisions[0] : null;
  const action = move ? move.decisions.find((decision) => !PLACES.includes(decision.kind)) ?? null : null;
  const memory = move ? move.memory : ended && agent.ending ? agent.ending.memory : null;
  return {
    index, move, path, numbers, frontier, action, memory,
    ended: ended && Boolean(agent.ending),
    here: path[path.length - 1],
    heading: move ? move.heading : arrivalHeading(data.scene.places, path, agent),
    letters: new Map(Object.entries(move ? agent.letters[index] : {}).map(([place, letter]) => [Number(place), letter])),
    back: backTo(move),
    returns: agent.moves.slice(0, count).map(returnOf).filter((way) => way.length > 1),
    told: move ? (backTo(move) === null ? move.decisions.length - 1 : 0) : null, // the decision whose words are marked
  };
}

/** The remembered place a move first returns to, or null. */
function backTo(move) {
  if (!move || !move.memory) return null;
  const option = move.decisions[0].options[move.decisions[0].choice];
  const elsewhere = option.node !== null && option.node !== undefined && option.node !== move.memory.here;
  return elsewhere ? move.memory.nodes[option.node] : null;
}

/** The part of a move's walk that leads back over known places. */
function returnOf(move) {
  const back = backTo(move);
  return back === null ? [] : move.walk.slice(0, move.walk.indexOf(back) + 1);
}

/** Where an agent faces at the end of a path: the way it came, or as it stood at the start. */
function arrivalHeading(places, path, agent) {
  if (path.length > 1) return headingOf(places[path[path.length - 2]], places[path[path.length - 1]]);
  return agent.moves.length ? agent.moves[0].heading : 0;
}

/** Clockwise from north, from one place to another. */
function headingOf(from, to) {
  return Math.atan2(to.x - from.x, to.y - from.y);
}

/** View, direction and the rest of every option's score, each against the mean of all options; null if unknown. */
function cuesOf(decision) {
  const { options, weights } = decision;
  if (!weights || options.some((option) => option.visual === null || option.visual === undefined)) return null;
  const raw = options.map((option) => {
    const view = weights[0] * option.visual;
    const direction = weights[1] * option.geometric;
    return [view, direction, option.logit - view - direction];
  });
  const mean = [0, 1, 2].map((i) => raw.reduce((sum, row) => sum + row[i], 0) / raw.length);
  return raw.map((row) => row.map((value, i) => value - mean[i]));
}

/** Numbers of the options of a decision: the choice first, the others by their chance. */
function ranked({ options, choice }) {
  return options.map((_, i) => i).sort((a, b) => (b === choice) - (a === choice) || options[b].probability - options[a].probability);
}

/** What an option is called. */
function optionName(option, frame) {
  if (option.stop) return "stop here";
  if (option.name) return option.name;
  const number = frame.numbers.get(option.place);
  return number ? `place ${number}` : `way ${frame.letters.get(option.place)}`;
}

/** Whether it is known how an agent decided; a result file only says where it went. */
function decides(agent) {
  return !agent.moves.length || agent.moves.some((move) => move.decisions.length);
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

/** The floors that are worth a look, lowest first. */
function touchedFloors(data) {
  const floors = [...touchedPlaces(data)].map((place) => data.scene.places[place].floor);
  return [...new Set(floors)].sort((a, b) => a - b);
}

/** Everything the agents have touched up to a move, or ever: places to keep in view. */
function touchedPlaces(data, last = Infinity) {
  const touched = new Set([...data.task.reference, data.task.start]);
  for (const agent of data.agents) {
    for (const move of agent.moves.slice(0, last + 1)) {
      move.walk.forEach((place) => touched.add(place));
      move.decisions.forEach((decision) => decision.options.forEach((option) => touched.add(option.place)));
      if (move.memory) move.memory.ways.forEach((way) => touched.add(way.place));
    }
  }
  return touched;
}
