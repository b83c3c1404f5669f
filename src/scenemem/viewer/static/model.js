// What there is to see in a frame: a round of one agent, or its end. Nothing here touches the page.

const TURN = 2 * Math.PI;

/** Decisions for a remembered place. */
const PLACES = ["frontier", "final"];

/** The places an agent stood at up to round `count`, start included. */
function pathUntil(task, rounds, count) {
  return [task.start, ...rounds.slice(0, count).flatMap((round) => round.walk.slice(1))];
}

/** Places in the order of their first visit -> their numbers, from 1. */
function numbered(path) {
  const numbers = new Map();
  for (const place of path) if (!numbers.has(place)) numbers.set(place, numbers.size + 1);
  return numbers;
}

/** Frame `index` of an agent; the frame after the last round shows the end. */
function frameOf(data, agent, index) {
  const { task } = data;
  const ended = index >= agent.rounds.length;
  const count = Math.min(index, agent.rounds.length);
  const round = ended ? null : agent.rounds[index];
  const path = pathUntil(task, agent.rounds, count);
  const numbers = numbered(path);
  const frontier = round && PLACES.includes(round.decisions[0].kind) ? round.decisions[0] : null;
  const action = round ? round.decisions.find((decision) => !PLACES.includes(decision.kind)) ?? null : null;
  const memory = round ? round.memory : ended && agent.ending ? agent.ending.memory : null;
  return {
    index, round, path, numbers, frontier, action, memory,
    ended: ended && Boolean(agent.ending),
    here: path[path.length - 1],
    heading: round ? round.heading : arrivalHeading(data.scene.places, path, agent),
    letters: new Map(Object.entries(round ? agent.letters[index] : {}).map(([place, letter]) => [Number(place), letter])),
    back: backTo(round),
    returns: agent.rounds.slice(0, count).map(returnOf).filter((way) => way.length > 1),
    told: round ? (backTo(round) === null ? round.decisions.length - 1 : 0) : null, // the decision whose words are marked
  };
}

/** The remembered place a round first returns to, or null. */
function backTo(round) {
  if (!round || !round.memory) return null;
  const option = round.decisions[0].options[round.decisions[0].choice];
  const elsewhere = option.node !== null && option.node !== undefined && option.node !== round.memory.here;
  return elsewhere ? round.memory.nodes[option.node] : null;
}

/** The part of a round's walk that leads back over known places. */
function returnOf(round) {
  const back = backTo(round);
  return back === null ? [] : round.walk.slice(0, round.walk.indexOf(back) + 1);
}

/** Where an agent faces at the end of a path: the way it came, or as it stood at the start. */
function arrivalHeading(places, path, agent) {
  if (path.length > 1) return headingOf(places[path[path.length - 2]], places[path[path.length - 1]]);
  return agent.rounds.length ? agent.rounds[0].heading : 0;
}

/** Clockwise from north, from one place to another. */
function headingOf(from, to) {
  return Math.atan2(to.x - from.x, to.y - from.y);
}

/** Sight, direction and further facts of every option, each against the mean of all options; null if unknown. */
function cuesOf(decision) {
  const { options, weights } = decision;
  if (!weights || options.some((option) => option.visual === null || option.visual === undefined)) return null;
  const raw = options.map((option) => {
    const sight = weights[0] * option.visual;
    const direction = weights[1] * option.geometric;
    return [sight, direction, option.logit - sight - direction];
  });
  const mean = [0, 1, 2].map((i) => raw.reduce((sum, row) => sum + row[i], 0) / raw.length);
  return raw.map((row) => row.map((value, i) => value - mean[i]));
}

/** What an option is called. */
function optionName(option, frame) {
  if (option.stop) return "stop here";
  const number = frame.numbers.get(option.place);
  return number ? `place ${number}` : `way ${frame.letters.get(option.place)}`;
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

/** The floors that are worth a look, lowest first. */
function touchedFloors(data) {
  const floors = [...touchedPlaces(data)].map((place) => data.scene.places[place].floor);
  return [...new Set(floors)].sort((a, b) => a - b);
}

/** Everything the agents have touched up to a round, or ever: places to keep in view. */
function touchedPlaces(data, last = Infinity) {
  const touched = new Set([...data.task.reference, data.task.start]);
  for (const agent of data.agents) {
    for (const round of agent.rounds.slice(0, last + 1)) {
      round.walk.forEach((place) => touched.add(place));
      round.decisions.forEach((decision) => decision.options.forEach((option) => touched.add(option.place)));
      if (round.memory) round.memory.ways.forEach((way) => touched.add(way.place));
    }
  }
  return touched;
}
