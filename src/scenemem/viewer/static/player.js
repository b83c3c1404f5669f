// The page itself: one panel per agent, one player for all of them.

const PAUSE = 2600; // milliseconds a move is shown while playing
const WALK = 900; // of which the agent walks
const SMALL = 700; // pixels of a screen that cannot show a map and all that stands above it
const MOST_TURNS = 3; // that have a button of their own

class AgentPanel {
  constructor(data, agent, alone) {
    this.data = data;
    this.agent = agent;
    this.root = document.getElementById("agent").content.cloneNode(true).querySelector("article");
    const find = (name) => this.root.querySelector(name);
    this.caption = find(".caption");
    this.looks = find(".looks");
    this.remembered = find(".remembered");
    this.tables = find(".tables");
    this.svg = find(".map > svg");
    this.floors = find(".floors");
    this.left = find(".left");
    this.holds = find(".holds");
    this.story = find(".story");
    this.choices = find(".choices");
    this.key = find(".key");
    this.chances = find(".chances");
    this.map = new FloorMap(this.svg, data);
    this.floor = 0;
    this.alone = alone;
    const name = find(".name");
    name.append(agent.name);
    if (alone) name.className = "hidden"; // how it ended is in the title, which can be hidden
    else name.append(element("small", {}, ` — ${agent.headline.toLowerCase()}`));
    this.root.setAttribute("aria-label", `Agent ${agent.name}`);
    this.caption.setAttribute("aria-live", "polite");
    this.words = buildWords(find(".words"), data.task);
    this.describe();
    this.buildChoices();
  }

  /** Say what depends on what the agent has done so far. */
  describe() {
    const { agent, data } = this;
    const attends = agent.moves.some((move) => move.decisions.some((decision) => decision.attention));
    this.key.replaceChildren();
    this.none = decides(agent) ? buildKey(this.key, attends, data.task.words.some((word) => !word.known)) : null;
    this.root.querySelector(".decision").hidden = !decides(agent);
    this.root.querySelector(".map .title").textContent = titleOf(agent);
    this.floors.replaceChildren();
    this.buildFloors();
  }

  /** Two buttons for a move that turns back: each of its decisions has words of its own. */
  buildChoices() {
    this.choices.append("for the decision ", ...["which place", "which way"].map((name, i) => {
      const button = element("button", { type: "button" }, `${i + 1}. ${name}`);
      button.addEventListener("click", () => this.tellDecision(i));
      return button;
    }));
  }

  /** Mark the words of one decision of the move, and the sentence that quotes them. */
  tellDecision(told) {
    const { move, index } = this.frame;
    const marks = move ? this.agent.marks[index] : [];
    markWords(this.words, this.none, marks[told], move?.decisions[told]?.attention);
    this.choices.hidden = this.frame.back === null || marks.filter(Boolean).length < 2;
    this.choices.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(i === told)));
    const parts = this.caption.children;
    [...parts].forEach((part, i) => part.classList.toggle("told", parts.length > 1 && i === told));
  }

  /** Say what happens in all, with a way to every move in which the agent turns back. */
  tell(onMove) {
    const turns = this.agent.moves.map((move, i) => [move, i]).filter(([move]) => backTo(move) !== null);
    this.story.replaceChildren(this.agent.story, ...turns.slice(0, MOST_TURNS).flatMap(([, i]) => {
      const button = element("button", { type: "button" }, `Show move ${i + 1}: it turns back`);
      button.addEventListener("click", () => onMove(i));
      return [" ", button];
    }));
  }

  buildFloors() {
    this.visible = touchedFloors(this.data);
    if (this.visible.length < 2) return;
    for (const floor of this.visible) {
      const button = element("button", { type: "button", "data-floor": floor }, `Floor ${floor + 1}`);
      button.addEventListener("click", () => this.showFloor(floor));
      this.floors.append(button);
    }
  }

  /** Show frame `index`; agents that ended earlier stay at their end. */
  show(index, walking) {
    const before = this.frame;
    this.frame = frameOf(this.data, this.agent, index);
    const { frame, agent } = this;
    const number = Math.min(index, agent.moves.length);
    const [text, ...more] = (agent.captions[number] ?? "").replaceAll(" %", "\u00a0%").split("\n"); // a line for each decision
    const colon = text.indexOf(":") + 1;
    this.caption.replaceChildren(element("span", {}, element("b", {}, text.slice(0, colon)), text.slice(colon)),
      ...more.flatMap((part) => [" ", element("span", {}, part)]));
    const arrived = agent.ending && agent.ending.scores ? agent.ending.scores.sr > 0 : null;
    const state = frame.ended ? { true: "good", false: "bad" }[arrived] : frame.back !== null ? "back" : "";
    this.caption.className = `caption ${state ?? ""}`.trim();
    this.tellDecision(frame.told);
    buildDecisions(this.tables, this.data, frame);
    this.showLooks();
    const left = this.data.scene.places[frame.here].to_goal;
    this.holds.textContent = heldBy(frame);
    this.left.textContent = typeof left === "number" ? `${left.toFixed(1)} m to the goal` : "";
    this.showFloor(this.data.scene.places[frame.here].floor);
    if (walking && before && before.move) this.animate(before.move.walk);
  }

  showFloor(floor) {
    this.floor = floor;
    for (const button of this.floors.children) button.setAttribute("aria-pressed", String(Number(button.dataset.floor) === floor));
    this.redraw();
  }

  nextFloor() {
    if (this.visible.length > 1) this.showFloor(this.visible[(this.visible.indexOf(this.floor) + 1) % this.visible.length]);
  }

  redraw() {
    if (!this.frame) return;
    const width = this.svg.parentElement.clientWidth;
    const share = this.alone || window.innerWidth < SMALL ? 0.42 : 0.26; // beside another agent the decision needs space, too
    this.map.draw(this.frame, this.floor, width, Math.max(this.alone ? 300 : 230, Math.min(600, window.innerHeight * share)));
    const kinds = new Set([...chancesOf(this.frame)].filter(([place]) => this.map.here(place)).map(([, { kind }]) => kind));
    this.chances.replaceChildren(...(kinds.size < 2 ? [] : ["Chances ", element("b", { class: "to-place" }, "beside circles"),
      ": which place; ", element("b", { class: "to-way" }, "beside diamonds"), ": which way."]));
    this.svg.setAttribute("aria-label", this.described());
  }

  described() {
    const { numbers, memory, here } = this.frame;
    const open = memory ? ` ${memory.frontier.filter(Boolean).length} of them have unvisited places next to them; ${memory.ways.length} ways are open.` : "";
    return `Map of floor ${this.floor + 1}: ${numbers.size} places visited, the agent stands at place ${numbers.get(here)}.${open}`;
  }

  showLooks() {
    const { frame, data } = this;
    const names = (decision) => (decision ? decision.options : [])
      .map((option, i) => ({ option, taken: i === decision.choice }))
      .filter(({ option }) => !option.stop && typeof option.heading === "number" && (option.node ?? null) === nodeOf(option))
      .map(({ option, taken }) => ({ heading: option.heading, taken, name: shortName(option, frame) }));
    const nodeOf = (option) => (frame.memory ? frame.memory.nodes.indexOf(frame.back ?? frame.here) : option.node ?? null);
    const ways = names(frame.action);
    const here = `Around it now, at place ${frame.numbers.get(frame.here)}${roomOf(data, frame.here)}`;
    const said = frame.action ? buildWays(data, frame, this.attended(-1)) : null;
    const figures = [buildLook(here, data, frame.here, frame.heading, frame.back === null ? ways : [], frame.back === null ? said : null)];
    if (frame.back !== null) {
      const walk = frame.move.walk;
      const spot = walk.indexOf(frame.back);
      const before = spot < 1 ? frame.here : walk[spot - 1]; // it may be cut off before it gets there
      const facing = headingOf(data.scene.places[before], data.scene.places[frame.back]);
      const there = `What it remembers of place ${frame.numbers.get(frame.back)}${roomOf(data, frame.back)}`;
      figures.push(buildLook(there, data, frame.back, facing, ways, said));
    }
    this.looks.replaceChildren(...figures);
    this.remembered.replaceChildren(...(frame.frontier?.kind === "frontier" ? buildRemembered(data, frame, this.attended(0)) : []));
  }

  /** The words that one decision of the move attends to, counted from the first (0) or from the last (-1). */
  attended(number) {
    return attendedWords(this.data.task.words, this.agent.marks[this.frame.index]?.at(number));
  }

  /** Let the agent's mark walk where it has just been drawn. */
  animate(walk) {
    const begin = performance.now();
    const frame = this.frame;
    const points = walk.filter((place) => this.map.here(place)).map((place) => this.map.point(place));
    if (points.length < 2) return;
    const step = (now) => {
      if (this.frame !== frame || !this.map.me.isConnected) return;
      const along = Math.max(0, Math.min(1, (now - begin) / WALK)) * (points.length - 1); // frames may be older than the call
      const i = Math.min(points.length - 2, Math.floor(along));
      this.map.moveAgent(points[i].map((value, axis) => value + (points[i + 1][axis] - value) * (along - i)));
      if (along < points.length - 1) requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }
}

function titleOf(agent) {
  return agent.moves.some((move) => move.memory) ? "Its memory so far" : "Its path so far";
}

/** What the map holds, in words. */
function heldBy({ numbers, memory }) {
  const visited = `${numbers.size} ${numbers.size === 1 ? "place" : "places"} visited`;
  return memory ? `${numbers.size} visited, ${new Set(memory.ways.map((way) => way.place)).size} only seen` : visited;
}

function shortName(option, frame) {
  return String(frame.letters.get(option.place) ?? frame.numbers.get(option.place));
}

function roomOf(data, place) {
  const room = data.scenery.room_of[place];
  return room ? ` (${room})` : "";
}

class Player {
  constructor(data) {
    this.panels = data.agents.map((agent) => new AgentPanel({ ...data, task: agent.task }, agent, data.agents.length === 1));
    this.frames = Math.max(...data.agents.map((agent) => agent.moves.length + (agent.ending ? 1 : 0)));
    this.panels.forEach((panel) => panel.tell((move) => this.leap(move)));
    this.index = 0;
    this.timer = null;
    this.controls = Object.fromEntries(["first", "back", "play", "next", "last", "scrub", "count"]
      .map((name) => [name, document.getElementById(name)]));
    this.listen();
  }

  listen() {
    const { first, back, play, next, last, scrub } = this.controls;
    first.addEventListener("click", () => this.leap(0));
    back.addEventListener("click", () => this.leap(this.index - 1));
    next.addEventListener("click", () => this.leap(this.index + 1));
    last.addEventListener("click", () => this.leap(this.frames - 1));
    play.addEventListener("click", () => this.toggle());
    scrub.max = this.frames - 1;
    scrub.addEventListener("input", () => this.leap(Number(scrub.value)));
    document.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.panels.forEach((panel) => panel.redraw())).observe(document.body);
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const onButton = event.target.closest("button, summary, a");
    const onSlider = event.target === this.controls.scrub;
    const keys = {
      ArrowLeft: () => this.leap(this.index - 1), ArrowRight: () => this.leap(this.index + 1),
      Home: () => this.leap(0), End: () => this.leap(this.frames - 1),
      f: () => this.panels.forEach((panel) => panel.nextFloor()), " ": () => this.toggle(),
    };
    const key = event.key === "F" ? "f" : event.key;
    if (!(key in keys) || (key === " " && onButton) || (onSlider && key !== " " && key !== "f")) return;
    event.preventDefault();
    keys[key]();
  }

  /** Go somewhere by hand, which ends playing. */
  leap(index) {
    this.pause();
    this.show(index);
    this.reveal();
  }

  /** On a small screen, bring what has changed into view: the caption, and the map below it. */
  reveal() {
    if (window.innerWidth >= SMALL || !this.panels.length) return;
    const { caption, svg } = this.panels[0];
    const bottom = document.querySelector(".player").getBoundingClientRect().top;
    const seen = caption.getBoundingClientRect().top >= 0 && svg.getBoundingClientRect().bottom <= bottom;
    if (!seen) caption.scrollIntoView({ block: "start" });
  }

  show(index) {
    const wanted = Math.max(0, Math.min(this.frames - 1, index));
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const walking = !still && wanted === this.index + 1;
    this.index = wanted;
    this.panels.forEach((panel) => panel.show(wanted, walking));
    const { first, back, next, last, scrub, count } = this.controls;
    const name = wanted === this.frames - 1 ? "The end" : `Move ${wanted + 1} of ${this.frames - 1}`;
    document.getElementById("floor-key").hidden = this.panels.every((panel) => panel.visible.length < 2);
    scrub.value = wanted;
    scrub.setAttribute("aria-valuetext", name);
    count.textContent = name;
    first.disabled = back.disabled = wanted === 0;
    next.disabled = last.disabled = wanted === this.frames - 1;
    document.dispatchEvent(new CustomEvent("shown", { detail: { last: wanted === this.frames - 1 } }));
  }

  toggle() {
    if (this.timer !== null) {
      this.pause();
      return;
    }
    if (this.index === this.frames - 1) this.show(0);
    this.reveal();
    this.timer = setInterval(() => {
      this.show(this.index + 1);
      if (this.index === this.frames - 1) this.pause();
    }, PAUSE);
    this.showPlaying(true);
  }

  pause() {
    if (this.timer !== null) clearInterval(this.timer);
    this.timer = null;
    this.showPlaying(false);
  }

  showPlaying(playing) {
    this.controls.play.setAttribute("aria-label", playing ? "Pause" : "Play");
    this.controls.play.querySelector("span").textContent = playing ? "Pause" : "Play";
    this.controls.play.querySelector("path").setAttribute("d", playing ? "M3 2h4v12H3zM9 2h4v12H9z" : "M3 1v14l11-7z");
  }
}
