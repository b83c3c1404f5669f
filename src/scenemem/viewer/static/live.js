// The page: what is chosen, what is asked, and what comes back.

const COMPASS = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"];
const fields = Object.fromEntries(["setup", "house", "start", "goal", "floors", "plan", "heading", "wind", "preview", "example",
  "instruction", "walk", "stop", "describe", "speaker", "status", "legend"].map((name) => [name, document.getElementById(name)]));

class LivePage {
  constructor(session) {
    this.session = session;
    this.choice = { start: 0, goal: null, heading: 0, route: [] };
    this.floor = 0;
    this.walking = null;
    this.player = new LivePlayer((place) => this.loadLook(place));
    this.map = new PlanMap(fields.plan, (place) => this.picked(place), (heading) => this.turned(heading));
    fields.keep = element("button", { type: "button", id: "keep", disabled: "", title: "One file that plays anywhere, without this server" },
      "Save walk");
    document.querySelector(".player .keys").before(fields.keep);
    document.getElementById("where").textContent = `SceneMem live · ${session.agents.join(" and ")}`;
    fields.describe.disabled = session.speaker.name === null;
    fields.speaker.textContent = session.speaker.name === null ? `Routes cannot be described: ${session.speaker.off_because}.`
      : `${session.speaker.name} describes the shortest route from start to goal.`;
    fields.house.append(...housesBySplit(session.houses));
    this.listen();
  }

  listen() {
    fields.house.addEventListener("change", () => this.enter(fields.house.value));
    fields.start.addEventListener("change", () => this.choose({ start: Number(fields.start.value), route: [] }));
    fields.goal.addEventListener("change", () => this.choose({ goal: fields.goal.value === "" ? null : Number(fields.goal.value), route: [] }));
    fields.heading.addEventListener("input", () => this.choose({ heading: (Number(fields.heading.value) / 360) * TURN }));
    fields.example.addEventListener("change", () => this.take(this.house.examples[Number(fields.example.value)]));
    fields.setup.addEventListener("keydown", (event) => event.stopPropagation()); // keys of the player are letters here
    fields.setup.addEventListener("submit", (event) => {
      event.preventDefault();
      this.walk();
    });
    fields.stop.addEventListener("click", () => this.walking?.abort());
    fields.describe.addEventListener("click", () => this.describe());
    fields.keep.addEventListener("click", () => this.keep());
    new ResizeObserver(() => this.draw()).observe(fields.plan.parentElement);
  }

  async enter(name) {
    this.say(`opening ${name} …`);
    this.opening = name;
    const chosen = [fields.example, fields.start, fields.goal]; // what is chosen now would be lost
    for (const field of chosen) field.disabled = true;
    let house;
    try {
      house = await askJson(addressOf("houses", name));
    } catch (error) {
      if (this.opening !== name) return;
      this.say(error.message, true);
      for (const field of chosen) field.disabled = !this.house;
      return;
    }
    if (this.opening !== name) return; // another house was asked for meanwhile
    this.house = house;
    this.say("");
    for (const field of chosen) field.disabled = false;
    const { scene, scenery, examples } = this.house;
    const named = scene.places.map((_, number) => {
      const room = scenery.room_of[number];
      return element("option", { value: number }, room ? `${number + 1}, ${room}` : `${number + 1}`);
    });
    fields.start.replaceChildren(...named);
    fields.goal.replaceChildren(element("option", { value: "" }, "none"), ...named.map((option) => option.cloneNode(true)));
    const short = (text) => (text.length > 70 ? `${text.slice(0, 68)}…` : text);
    fields.example.replaceChildren(element("option", { value: "" }, examples.length ? `${examples.length} instructions for this house` : "no examples for this house"),
      ...examples.map(({ text }, i) => element("option", { value: i }, short(text))));
    fields.example.disabled = !examples.length;
    this.buildFloors();
    this.choose({ start: 0, goal: null, heading: 0, route: [] });
  }

  buildFloors() {
    const { floors } = this.house.scene;
    fields.floors.replaceChildren(...(floors.length < 2 ? [] : floors.map((_, floor) => {
      const button = element("button", { type: "button", "data-floor": floor }, `Floor ${floor + 1}`);
      button.addEventListener("click", () => this.showFloor(floor));
      return button;
    })));
  }

  /** A written instruction. */
  take(example) {
    if (!example) return;
    fields.instruction.value = example.text;
    this.choose({ start: example.start, goal: example.goal ?? null, heading: example.heading, route: [] });
  }

  picked(place) {
    if (document.getElementById("click-goal").checked) this.choose({ goal: place, route: [] });
    else this.choose({ start: place, route: [] });
  }

  turned(heading) {
    if (document.getElementById("click-start").checked) this.choose({ heading: (heading + TURN) % TURN });
  }

  choose(change) {
    Object.assign(this.choice, change);
    const { start, goal, heading } = this.choice;
    fields.start.value = start;
    fields.goal.value = goal ?? "";
    fields.heading.value = Math.round(((heading / TURN) * 360) % 360);
    fields.wind.textContent = COMPASS[Math.round((heading / TURN) * 8) % 8];
    fields.heading.setAttribute("aria-valuetext", fields.wind.textContent);
    const moved = change.start ?? change.goal;
    this.showFloor(typeof moved === "number" ? this.house.scene.places[moved].floor : this.floor);
    this.loadLook(start);
    this.showPreview();
  }

  showFloor(floor) {
    this.floor = floor;
    for (const button of fields.floors.children) button.setAttribute("aria-pressed", String(Number(button.dataset.floor) === floor));
    this.draw();
  }

  draw() {
    if (!this.house) return;
    this.map.drawPlan(this.house, this.choice, this.floor, fields.plan.parentElement.clientWidth, Math.max(300, Math.min(520, window.innerHeight * 0.55)));
    fields.plan.setAttribute("aria-label", `Map of floor ${this.floor + 1}; places can also be chosen by number above`);
  }

  showPreview() {
    const { start, heading } = this.choice;
    const room = this.house.scenery.room_of[start];
    fields.preview.replaceChildren(buildLook(`What it sees at the start${room ? ` (${room})` : ""}`, this.house, start, heading, []));
  }

  /** Fetch what can be seen around a place; until it is there a word says so. */
  async loadLook(place) {
    const { scene, scenery } = this.house;
    if (scenery.looks[place]) return;
    scenery.looks[place] = { labels: [{ text: "loading …", heading: 0, elevation: 0 }] };
    try {
      scenery.looks[place] = await askJson(addressOf("houses", scene.scan, "looks", place));
    } catch {
      delete scenery.looks[place]; // asked again when it comes into view again
      return;
    }
    if (this.house.scenery === scenery && place === this.choice.start) this.showPreview();
    if (this.player.house?.scenery === scenery) this.player.refreshLooks();
  }

  wish() {
    const { start, goal, heading } = this.choice;
    const id = (place) => this.house.scene.places[place].id;
    return { house: this.house.scene.scan, start: id(start), heading_degrees: (heading / TURN) * 360, goal: goal === null ? null : id(goal) };
  }

  async walk() {
    this.walking?.abort();
    const walking = new AbortController();
    this.walking = walking;
    fields.stop.disabled = false;
    fields.keep.disabled = true;
    this.say("walking …");
    try {
      const answer = await ask("/api/walks", { ...this.wish(), instruction: fields.instruction.value }, walking.signal);
      this.player.open(this.house, this.session.agents.length);
      for await (const event of eventsOf(answer)) this.happened(event);
      if (!fields.status.classList.contains("bad")) this.say("The walk is complete. Play it below, or save it as a page.");
    } catch (error) {
      this.say(walking.signal.aborted ? "stopped" : error.message, !walking.signal.aborted);
    }
    if (this.walking !== walking) return;
    this.walking = null;
    fields.stop.disabled = true;
    this.player.finish();
    fields.keep.disabled = !this.player.frames;
  }

  /** Offer the walk that has just been shown as a replay, one file. */
  async keep() {
    const { data } = this.player.panels[0];
    fields.keep.disabled = true;
    try {
      const page = await pageOf(data, (place) => askJson(addressOf("houses", data.scene.scan, "looks", place)));
      download(page, `walk-${data.scene.scan}.html`);
    } catch (error) {
      this.say(error.message, true);
    }
    fields.keep.disabled = this.walking !== null;
  }

  happened(event) {
    if (event.type === "failed") this.say(`${this.session.agents[event.agent]}: ${event.detail}`, true);
    else this.player[event.type](event);
    if (event.type === "opened" && event.task.words.length && !event.task.words.some((word) => word.known)) {
      this.say(`${event.name} knows no word of this instruction, so it walks without guidance. Try one of the examples.`, true);
    }
    if (event.type !== "move" || event.number) return;
    const list = fields.legend.querySelector("ul");
    list.replaceChildren();
    buildLegend(list, this.player.panels[0].data);
    fields.legend.hidden = false;
    if (this.session.agents.length === 1) {
      fields.legend.firstElementChild.open = window.innerWidth >= SMALL;
      this.player.panels[0].root.querySelector(".side").append(fields.legend);
    }
    if (event.agent === 0) document.getElementById("agents").scrollIntoView({ behavior: "smooth", block: "start" });
  }

  async describe() {
    if (this.choice.goal === null) {
      this.say("choose a goal first: the place where the route ends", true);
      return;
    }
    this.say("describing the route …");
    try {
      const { text, path, metres } = await askJson("/api/descriptions", this.wish());
      fields.instruction.value = text;
      this.choose({ route: path });
      this.say(`The route is ${metres.toFixed(1)} m long; its description is in the box.`);
    } catch (error) {
      this.say(error.message, true);
    }
  }

  say(text, bad = false) {
    fields.status.textContent = text;
    fields.status.classList.toggle("bad", bad);
  }
}

const SPLITS = { val_unseen: "Not seen in training (val_unseen)", test: "Not seen in training (test)",
  val_seen: "Seen in training (val_seen)", train: "Seen in training (train)", "": "Other buildings" };

/** The houses as groups of a list: unseen ones first, and those with examples before the others. */
function housesBySplit(houses) {
  const groups = Object.entries(SPLITS).map(([split, label]) => [label, houses.filter((house) => (house.split in SPLITS ? house.split : "") === split)])
    .filter(([, members]) => members.length);
  const options = (members) => [...members].sort((a, b) => (b.examples > 0) - (a.examples > 0))
    .map(({ house, places }) => element("option", { value: house }, `${house} (${places} places)`));
  if (groups.length === 1) return options(groups[0][1]);
  return groups.map(([label, members]) => element("optgroup", { label }, ...options(members)));
}

document.body.classList.add("idle");
askJson("/api/session").then((session) => new LivePage(session).enter(fields.house.value), (error) => {
  fields.status.textContent = error.message;
});
