// The map of one floor: what the agent knows, what it did, what it is about to do.

const MARGIN = 1.7; // metres around everything worth seeing
const LEAST = 6; // metres shown at least
const OUTSIDE = 0.25; // metres shown around a building

/** What is drawn of a floor, in metres: all that has been touched there up to a move. */
function mapBounds(data, floor, width, height, last) {
  const touched = [...touchedPlaces(data, last)].map((number) => data.scene.places[number]).filter((place) => place.floor === floor);
  const places = touched.length ? touched : data.scene.places.filter((place) => place.floor === floor);
  const range = (axis) => {
    const values = places.map((place) => place[axis]);
    const [low, high] = [Math.min(...values) - MARGIN, Math.max(...values) + MARGIN];
    const more = Math.max(0, LEAST - (high - low)) / 2;
    return [low - more, high + more];
  };
  const walls = data.scenery.rooms.filter((room) => room.floor === floor && room.rect).map((room) => room.rect);
  const inside = ([low, high], axis) => (walls.length // nothing is to be seen outside the walls
    ? [Math.max(low, Math.min(...walls.map((rect) => rect[axis])) - OUTSIDE), Math.min(high, Math.max(...walls.map((rect) => rect[axis + 2])) + OUTSIDE)]
    : [low, high]);
  const [[west, east], [south, north]] = [inside(range("x"), 0), inside(range("y"), 1)];
  const scale = Math.min(width / (east - west), height / (north - south));
  const spare = (width / scale - (east - west)) / 2; // a tall building leaves room beside it
  return { west: west - spare, north, scale, height: Math.round((north - south) * scale) };
}

class FloorMap {
  constructor(svg, data) {
    Object.assign(this, { svg, data, places: data.scene.places });
    this.me = null;
  }

  /** Draw a frame on a floor; `width` and `height` are the most pixels there are. */
  draw(frame, floor, width, height) {
    const bounds = mapBounds(this.data, floor, width, height, frame.index);
    this.scale = bounds.scale;
    this.origin = [bounds.west, bounds.north];
    this.floor = floor;
    this.radius = Math.max(7.5, Math.min(11, 0.32 * this.scale));
    this.labels = new Labels(width, bounds.height);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${bounds.height}`);
    this.svg.replaceChildren();
    this.drawBuilding();
    this.drawReference();
    this.drawMemory(frame);
    this.drawWalk(frame);
    this.drawPlaces(frame);
    this.drawChoice(frame);
    this.drawAgent(frame);
    this.drawGoal(frame);
    this.drawNorth(width, bounds.height);
    this.drawNames(frame);
  }

  /** Where north is, in the first corner that no place is near to. */
  drawNorth(width, height) {
    const corners = [[width - 19, 14], [19, 14], [width - 19, height - 14], [19, height - 14]];
    const spots = this.places.map((_, number) => number).filter((number) => this.here(number)).map((number) => this.point(number));
    const free = ([x, y]) => spots.every(([px, py]) => Math.abs(px - x) > 28 || Math.abs(py - y) > 22);
    const [x, y] = corners.find(free) ?? corners[0];
    this.labels.boxes.push([x - 17, y - 12, x + 17, y + 12]);
    this.svg.append(shape("rect", { class: "north-ground", x: x - 15, y: y - 10, width: 30, height: 20, rx: 5 }));
    this.svg.append(shape("text", { class: "north", x, y: y + 4 }, "N ↑"));
  }

  point(number) {
    const place = this.places[number];
    return [(place.x - this.origin[0]) * this.scale, (this.origin[1] - place.y) * this.scale];
  }

  here(number) {
    return this.places[number].floor === this.floor;
  }

  line(from, to, kind, cut = [0, 0]) {
    const [[ax, ay], [bx, by]] = [from, to];
    const length = Math.hypot(bx - ax, by - ay) || 1;
    const [ux, uy] = [(bx - ax) / length, (by - ay) / length];
    const ends = { x1: ax + ux * cut[0], y1: ay + uy * cut[0], x2: bx - ux * cut[1], y2: by - uy * cut[1] };
    for (const name in ends) ends[name] = ends[name].toFixed(1);
    this.svg.append(shape("line", { class: kind, ...ends }));
  }

  /** An edge of the graph; one that leaves the floor ends half way in an arrow up or down. */
  edge(a, b, kind, cut) {
    if (this.here(a) && this.here(b)) {
      this.line(this.point(a), this.point(b), kind, cut);
    } else if (this.here(a) || this.here(b)) {
      const [inside, outside] = this.here(a) ? [a, b] : [b, a];
      const [from, to] = [this.point(inside), this.point(outside)];
      const half = [(from[0] + to[0]) / 2, (from[1] + to[1]) / 2];
      this.line(from, half, kind);
      this.text(half, this.places[outside].floor > this.floor ? "▲" : "▼", "stairs");
    }
  }

  text([x, y], words, kind, shift = [0, 0]) {
    this.svg.append(shape("text", { class: kind, x: (x + shift[0]).toFixed(1), y: (y + shift[1]).toFixed(1) }, words));
  }

  drawBuilding() {
    const { rooms, doorways } = this.data.scenery;
    const onFloor = (item) => item.floor === this.floor;
    const spot = (x, y) => [(x - this.origin[0]) * this.scale, (this.origin[1] - y) * this.scale];
    for (const room of rooms.filter((item) => onFloor(item) && item.rect)) {
      const [[x, y], [right, bottom]] = [spot(room.rect[0], room.rect[3]), spot(room.rect[2], room.rect[1])];
      this.svg.append(shape("rect", { class: "room", x, y, width: right - x, height: bottom - y }));
      const corners = [[x, y], [right, y], [right, bottom], [x, bottom], [x, y]];
      corners.slice(1).forEach((corner, i) => this.labels.avoid(corners[i], corner));
    }
    for (const door of doorways.filter(onFloor)) this.line(spot(...door.ends.slice(0, 2)), spot(...door.ends.slice(2)), "door");
    for (const [a, b] of this.data.scene.edges) if (this.here(a) && this.here(b)) this.line(this.point(a), this.point(b), "unseen-edge");
    this.places.forEach((place, number) => {
      if (this.here(number)) this.dot(number, "unseen", 2.2);
    });
  }

  dot(number, kind, radius) {
    const [cx, cy] = this.point(number).map((value) => value.toFixed(1));
    this.svg.append(shape("circle", { class: kind, cx, cy, r: radius }));
  }

  drawReference() {
    const { reference } = this.data.task;
    reference.slice(1).forEach((place, i) => {
      if (this.here(place) || this.here(reference[i])) this.edge(reference[i], place, "reference");
    });
  }

  drawMemory({ memory }) {
    if (!memory) return;
    for (const [a, b] of memory.edges) this.edge(memory.nodes[a], memory.nodes[b], "known");
    for (const way of memory.ways) this.edge(memory.nodes[way.node], way.place, "seen-way");
  }

  drawWalk(frame) {
    const back = new Set(frame.returns.flatMap((way) => way.slice(1).map((place, i) => `${way[i]} ${place}`)));
    frame.path.slice(1).forEach((place, i) => {
      const from = frame.path[i];
      if (!back.has(`${from} ${place}`)) this.edge(from, place, "walked");
    });
    for (const way of frame.returns) {
      way.slice(1).forEach((place, i) => {
        if (this.here(way[i]) && this.here(place)) this.line(...this.aside(way[i], place), "jumped");
      });
    }
  }

  /** The ends of a line a little to the right of an edge, so that going back does not hide having come. */
  aside(a, b) {
    const [[ax, ay], [bx, by]] = [this.point(a), this.point(b)];
    const length = Math.hypot(bx - ax, by - ay) || 1;
    const [dx, dy] = [(-(by - ay) / length) * 6, ((bx - ax) / length) * 6];
    return [[ax + dx, ay + dy], [bx + dx, by + dy]];
  }

  drawPlaces(frame) {
    const { memory, numbers, letters } = frame;
    const taken = frame.action ? frame.action.options[frame.action.choice].place : null;
    const ways = new Set([...(memory ? memory.ways.map((way) => way.place) : []), ...letters.keys()]);
    for (const place of ways) if (this.here(place)) drawWay(this.svg, this.point(place), this.radius, letters.get(place), place === taken);
    const open = new Set(memory ? memory.nodes.filter((_, i) => memory.frontier[i]) : []);
    for (const [place, number] of numbers) if (this.here(place)) drawNode(this.svg, this.point(place), this.radius, number, open.has(place));
  }

  /** Chances and names of rooms, each where there is space for it; a name without space is left out. */
  drawNames(frame) {
    for (const place of [...frame.numbers.keys(), ...(frame.memory ? frame.memory.ways.map((way) => way.place) : []), ...frame.letters.keys()]) {
      if (this.here(place)) this.labels.block(this.point(place), this.radius + 2);
    }
    this.keepClear(frame);
    for (const [place, { share, kind }] of chancesOf(frame)) {
      if (this.here(place)) this.name(this.point(place), percent(share), `chance ${kind}`, true);
    }
    for (const room of this.data.scenery.rooms.filter((item) => item.floor === this.floor)) {
      const x = (room.x - this.origin[0]) * this.scale;
      const y = (this.origin[1] - room.y) * this.scale;
      this.name([x, y], room.name, "room-name", false);
    }
  }

  /** Keep words off the goal, and off the ways walked, described and chosen. */
  keepClear({ path, move }) {
    const { goal, reference } = this.data.task;
    for (const way of [path, reference, move ? move.walk : []]) {
      way.slice(1).forEach((place, i) => {
        if (this.here(place) && this.here(way[i])) this.labels.avoid(this.point(way[i]), this.point(place));
      });
    }
    if (typeof goal === "number" && this.here(goal)) {
      const [x, y] = this.point(goal);
      this.labels.block([x, y], this.radius * 2);
      this.labels.block([x, y + this.radius * 2.1 + 5], 10);
    }
  }

  name(spot, words, kind, needed) {
    const found = this.labels.place(spot, words, this.radius + 6, needed);
    if (found) this.text(found, words, kind);
  }

  /** A star, or a ring with a small star on it when another sign has the place. */
  drawGoal({ numbers, letters, memory }) {
    const { goal } = this.data.task;
    if (goal === null || goal === undefined || !this.here(goal)) return;
    const [[cx, cy], r] = [this.point(goal), this.radius * 2.1];
    const taken = numbers.has(goal) || letters.has(goal) || (memory ? memory.ways.some((way) => way.place === goal) : false);
    if (taken) this.svg.append(shape("circle", { class: "goal-ring", cx, cy, r }));
    drawStar(this.svg, taken ? [cx + 0.75 * r, cy - 0.75 * r] : [cx, cy], taken ? this.radius : r);
    this.text([cx, cy], "goal", "goal-name", [0, r + (taken ? 14 : 9)]);
  }

  /** Where this move leads: first back, perhaps, then to the next place. */
  drawChoice({ move, back }) {
    if (!move) return;
    const walk = move.walk;
    walk.slice(1).forEach((place, i) => {
      const returning = back !== null && i < walk.indexOf(back);
      const kind = returning ? "next back" : "next";
      if (!this.here(walk[i]) || !this.here(place)) {
        this.edge(walk[i], place, kind);
        return;
      }
      const [from, to] = returning ? this.aside(walk[i], place) : [this.point(walk[i]), this.point(place)];
      this.line(from, to, kind, [this.radius, this.radius + 8]);
      drawHead(this.svg, from, to, this.radius + (returning ? 0 : 4), returning ? "head back" : "head");
    });
  }

  drawAgent(frame) {
    this.me = shape("g", { class: "agent-mark" });
    if (frame.heading !== null) this.me.append(shape("path", { class: "cone", d: conePath(frame.heading, this.radius * 3.2) }));
    this.me.append(shape("circle", { class: "me", r: this.radius + 6.5 }));
    this.moveAgent(this.point(frame.here));
    this.me.style.display = this.here(frame.here) ? "" : "none";
    this.svg.append(this.me);
  }

  moveAgent([x, y]) {
    this.me.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  }
}

function drawNode(svg, [cx, cy], radius, number, open) {
  if (open) svg.append(shape("circle", { class: "ring", cx, cy, r: radius + 3.2 }));
  svg.append(shape("circle", { class: "node", cx, cy, r: radius }),
    shape("text", { class: "number", x: cx, y: cy, "font-size": radius * 1.25 }, String(number)));
}

function drawWay(svg, [x, y], radius, letter, taken) {
  const r = letter ? radius + 2 : radius - 2;
  svg.append(shape("path", { class: taken ? "way taken" : "way", d: `M${x} ${y - r}L${x + r} ${y}L${x} ${y + r}L${x - r} ${y}Z` }));
  if (letter) svg.append(shape("text", { class: "letter", x, y, "font-size": radius * 1.2 }, letter));
}

function drawStar(svg, [x, y], radius) {
  const points = Array.from({ length: 10 }, (_, i) => {
    const [angle, r] = [(i * Math.PI) / 5, i % 2 ? radius * 0.45 : radius];
    return `${(x + r * Math.sin(angle)).toFixed(1)},${(y - r * Math.cos(angle)).toFixed(1)}`;
  });
  svg.append(shape("polygon", { class: "star", points: points.join(" ") }));
}

function drawHead(svg, [ax, ay], [bx, by], cut, kind) {
  const length = Math.hypot(bx - ax, by - ay) || 1;
  const [ux, uy] = [(bx - ax) / length, (by - ay) / length];
  const tip = [bx - ux * cut, by - uy * cut];
  const wing = (side) => [tip[0] - ux * 10 - uy * 5 * side, tip[1] - uy * 10 + ux * 5 * side];
  const points = [tip, wing(1), wing(-1)].map((point) => point.map((value) => value.toFixed(1)).join(",")).join(" ");
  svg.append(shape("polygon", { class: kind, points }));
}

function conePath(heading, reach) {
  const edge = (turn) => `${(reach * Math.sin(heading + turn)).toFixed(1)} ${(-reach * Math.cos(heading + turn)).toFixed(1)}`;
  return `M0 0L${edge(-0.5)}A${reach} ${reach} 0 0 1 ${edge(0.5)}Z`;
}
