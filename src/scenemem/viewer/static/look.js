// What can be seen all around a place: a picture or the names of things, and where the ways lead.

const WINDS = ["N", "NE", "E", "SE", "S", "SW", "W", "NW"];
const SIDES = [["behind", -0.5, "first"], ["left", -0.25, ""], ["ahead", 0, ""], ["right", 0.25, ""], ["behind", 0.5, "final"]];

/** A strip of what is around a place, and below it what a captioner says about the ways, if that is known. */
function buildLook(title, data, place, facing, ways, said = null) {
  const look = data.scenery.looks[place];
  const strip = element("div", { class: look?.picture ? "strip" : "strip things", role: "img" });
  if (look?.picture) showPicture(strip, look.picture, facing);
  else showThings(strip, look?.labels ?? [], facing);
  for (const [name, offset, end] of SIDES) strip.append(at(element("span", { class: `side-name ${end}` }, name), offset));
  WINDS.forEach((wind, i) => strip.append(at(element("span", { class: "wind" }, wind), turned((i * TURN) / 8, facing))));
  for (const way of ways) {
    const flag = element("span", { class: way.taken ? "flag taken" : "flag" }, way.name);
    strip.append(at(flag, turned(way.heading, facing)));
  }
  strip.setAttribute("aria-label", described(title, look, ways, facing));
  return element("figure", { class: "look" }, element("figcaption", {}, element("span", { class: "title" }, title)), strip, said);
}

/** How far around, in turns from -1/2 to 1/2, with 0 straight ahead. */
function turned(heading, facing) {
  const turn = (heading - facing) / TURN;
  return turn - Math.round(turn);
}

/** Put something on the strip, but not over its edge. */
function at(node, offset) {
  node.style.left = `clamp(1.1rem, ${50 + 100 * offset}%, calc(100% - 1.1rem))`;
  return node;
}

function showPicture(strip, picture, facing) {
  strip.style.backgroundImage = `url("${picture}")`; // north is in its middle
  // a share of the strip's own width, because percentages of a background of full width move nothing
  const place = () => {
    strip.style.backgroundPositionX = `${(-facing / TURN) * strip.clientWidth}px`;
  };
  new ResizeObserver(place).observe(strip);
}

/** Names where the things are; the plainest first, and none on top of another. */
function showThings(strip, labels, facing) {
  const taken = [];
  for (const label of labels) {
    const half = (label.text.length * 3.6 + 8) / 400; // of the strip on a small screen
    const x = Math.max(half - 0.49, Math.min(0.49 - half, turned(label.heading, facing)));
    const y = Math.min(0.54, Math.max(0.22, 0.4 - label.elevation * 0.4));
    const row = [0, -0.13, 0.13, -0.26, 0.26].map((shift) => y + shift)
      .find((spot) => spot > 0.22 && spot < 0.56 && !taken.some((box) => Math.abs(box.y - spot) < 0.12 && Math.abs(box.x - x) < box.half + half));
    if (row === undefined) continue;
    taken.push({ x, y: row, half });
    const name = at(element("span", { class: label.room ? "thing room-ahead" : "thing" }, label.text), x);
    name.style.top = `${100 * row}%`;
    strip.append(name);
  }
  if (!labels.length) strip.append(element("p", { class: "nothing" }, "no labelled objects in view"));
}

function described(title, look, ways, facing) {
  const side = (heading) => ["ahead", "to the right", "behind", "to the left"][Math.round(turned(heading, facing) * 4 + 4) % 4];
  const things = (look?.labels ?? []).map((label) => `${label.text} ${side(label.heading)}`).join(", ");
  const names = ways.map((way) => `${way.name} ${side(way.heading)}${way.taken ? ", taken" : ""}`).join("; ");
  return `${title}.${things ? ` In view: ${things}.` : ""}${names ? ` Ways: ${names}.` : ""}`;
}
