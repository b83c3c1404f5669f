// The map one chooses places on: a whole floor, its rooms and every place.

const NEAR = 40; // pixels from a place that still mean it
const DRAG = 14; // pixels that make a turn of a click

class PlanMap extends FloorMap {
  constructor(svg, onPlace, onHeading) {
    super(svg, { scene: { places: [] } });
    let held = null;
    svg.addEventListener("pointerdown", (event) => {
      held = this.nearest(event);
      if (held !== null) onPlace(held);
    });
    svg.addEventListener("pointermove", (event) => {
      if (held === null || !event.buttons || event.pointerType === "touch") return;
      const [[x, y], [px, py]] = [this.point(held), this.spotOf(event)];
      if (Math.hypot(px - x, py - y) > DRAG) onHeading(Math.atan2(px - x, y - py));
    });
    window.addEventListener("pointerup", () => {
      held = null;
    });
  }

  /** Draw a floor of a house; `choice` holds start, goal, heading and the route between them. */
  drawPlan(house, choice, floor, width, height) {
    const task = { start: choice.start, goal: choice.goal, reference: [...house.scene.places.keys()] }; // all of it is in view
    Object.assign(this, { data: { ...house, agents: [], task }, places: house.scene.places, floor });
    const bounds = mapBounds(this.data, floor, width, height);
    Object.assign(this, { scale: bounds.scale, origin: [bounds.west, bounds.north], radius: 7.5, labels: new Labels(width, bounds.height) });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${bounds.height}`);
    this.svg.replaceChildren();
    this.drawBuilding();
    choice.route.slice(1).forEach((place, i) => this.edge(choice.route[i], place, "reference"));
    this.places.forEach((_, number) => {
      if (!this.here(number)) return;
      const [x, y] = this.point(number);
      this.dot(number, "place", 8);
      this.svg.append(shape("text", { class: "place-number", x: x.toFixed(1), y: (y + 3).toFixed(1) }, String(number + 1)));
      this.labels.block([x, y], 9);
    });
    if (choice.goal !== null && this.here(choice.goal)) {
      drawStar(this.svg, this.point(choice.goal), 15);
      this.text(this.point(choice.goal), "goal", "goal-name", [0, 26]);
    }
    this.drawAgent({ here: choice.start, heading: choice.heading });
    if (this.here(choice.start)) this.text(this.point(choice.start), "start", "start-name", [0, 28]);
    const nothing = { path: [], move: null, numbers: new Map([[choice.start, 1]]), letters: new Map(), memory: null, frontier: null, action: null };
    this.drawNorth(width, bounds.height);
    this.drawNames(nothing);
  }

  /** Where a pointer is, in the units of the drawing. */
  spotOf(event) {
    const box = this.svg.getBoundingClientRect();
    const unit = this.svg.viewBox.baseVal.width / box.width;
    return [(event.clientX - box.left) * unit, (event.clientY - box.top) * unit];
  }

  nearest(event) {
    const [x, y] = this.spotOf(event);
    let best = null;
    let least = NEAR;
    this.places.forEach((_, number) => {
      const [px, py] = this.point(number);
      const distance = Math.hypot(px - x, py - y);
      if (this.here(number) && distance < least) [best, least] = [number, distance];
    });
    return best;
  }
}
