// Showing a walk while it goes on: moves come when the agent has decided, and are shown at a pace one can follow.

const PACE = 1700; // milliseconds between two moves

class LivePlayer extends Player {
  /** `onPlace` is told of every place that comes into view. */
  constructor(onPlace) {
    super({ agents: [] });
    Object.assign(this, { onPlace, done: false });
  }

  /** Begin another walk in a house. */
  open(house, count) {
    this.pause();
    Object.assign(this, { house, agents: [], panels: [], frames: 0, index: 0, done: false, count, seats: new Map() });
    document.body.className = count === 1 ? "one" : "two";
    document.getElementById("agents").replaceChildren();
  }

  opened({ agent, name, task, to_goal: left, origin }) {
    const walk = { name, task, origin, headline: "Walking", story: "", captions: [], letters: [], marks: [], moves: [], ending: null };
    this.seats.set(agent, this.agents.length);
    this.agents.push(walk);
    const places = this.house.scene.places.map((place, i) => ({ ...place, to_goal: left[i] }));
    const data = { scene: { ...this.house.scene, places }, scenery: this.house.scenery, agents: this.agents, task };
    const panel = new AgentPanel(data, walk, this.count === 1);
    this.panels.push(panel);
    document.getElementById("agents").append(panel.root);
    panel.show(this.index, false);
  }

  move({ agent, move, caption, letters, marks }) {
    const panel = this.panels[this.seats.get(agent)];
    const walk = panel.agent;
    walk.moves.push(move);
    walk.captions.push(caption);
    walk.letters.push(letters);
    walk.marks.push(marks);
    this.onPlace(move.walk[move.walk.length - 1]);
    this.grown(panel);
  }

  ended({ agent, ending, caption, headline, story }) {
    const panel = this.panels[this.seats.get(agent)];
    Object.assign(panel.agent, { ending, headline, story });
    panel.agent.captions.push(caption);
    const told = panel.root.querySelector("h2 small"); // not there when it walks alone
    if (told) told.textContent = ` — ${headline.toLowerCase()}`;
    this.grown(panel);
  }

  /** An agent has got further. */
  grown(panel) {
    const first = this.frames === 0;
    this.frames = Math.max(...this.agents.map((walk) => walk.moves.length + (walk.ending ? 1 : 0)));
    this.controls.scrub.max = this.frames - 1;
    this.describe(panel);
    const shown = this.index >= panel.agent.moves.length - 1; // what this agent just did is what is being looked at
    if (first || shown) this.show(this.index);
    else this.label();
    if (first) this.play();
  }

  /** What can only be said of an agent once it has decided something. */
  describe(panel) {
    panel.describe();
    panel.tell((move) => this.leap(move));
  }

  finish() {
    this.done = true;
    if (this.frames) this.label();
  }

  show(index) {
    super.show(index);
    for (const { frame } of this.panels) {
      this.onPlace(frame.here);
      if (frame.back !== null) this.onPlace(frame.back);
    }
    this.label();
  }

  /** Say where in the walk one is; its length is not known before it ends. */
  label() {
    const { next, last, count, scrub } = this.controls;
    const end = this.index === this.frames - 1;
    next.disabled = last.disabled = end;
    const name = this.done && end ? "The end" : `Move ${this.index + 1}${this.done ? ` of ${this.frames - 1}` : ""}`;
    count.textContent = name;
    scrub.setAttribute("aria-valuetext", name);
  }

  toggle() {
    if (this.timer !== null) {
      this.pause();
      return;
    }
    if (this.done && this.index === this.frames - 1) this.show(0);
    this.play();
  }

  play() {
    this.timer = setInterval(() => {
      if (this.index < this.frames - 1) this.show(this.index + 1);
      else if (this.done) this.pause();
    }, PACE);
    this.showPlaying(true);
  }

  /** Pictures have come. */
  refreshLooks() {
    for (const panel of this.panels) panel.showLooks();
  }
}
