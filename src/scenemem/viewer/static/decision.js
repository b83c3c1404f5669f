// How it decided: every option with its chance and what its score is made of.

const MOST = 7; // options shown; a whole map can offer dozens
const CUES = ["View", "Direction", "Hints"];
const WAY_CUES = ["View", "Direction", "Memory"]; // what the memory says about stopping here

function buildDecisions(box, data, frame) {
  box.replaceChildren();
  if (!frame.move) {
    box.append(element("p", { class: "note" }, frame.ended ? "The walk is over." : "Not decided yet."));
    return;
  }
  const several = frame.move.decisions.length > 1;
  frame.move.decisions.forEach((decision, i) => {
    box.append(element("div", {}, element("h4", {}, `${several ? `${i + 1}. ` : ""}${questionOf(decision, frame)}`),
      decisionTable(decision, data, frame), ...numbersNote(decision)));
  });
  if (frame.move.decisions.some(cuesOf)) {
    box.append(element("p", { class: several ? "note whole" : "note" },
      "Chance: the probability the agent gives an option; it takes the likeliest. The score behind it adds up from: "
      + "View, how well what is seen there matches the words about things, shaded where they stand out. Direction, how well where "
      + "it lies matches the words about ways, underlined where they stand out. "
      + "Hints, how far away it is, how long ago it was found and how well it scored then. Memory, how well what it remembers of this "
      + "place and its surroundings matches stopping here. Bars to the right count for an option, "
      + "hatched bars to the left against it, compared with the average option."));
  }
}

function numbersNote(decision) {
  const numbers = Object.entries(decision.numbers ?? {});
  if (!numbers.length) return [];
  return [element("p", { class: "note" }, numbers.map(([name, value]) => `${name} ${value.toFixed(2)}`).join(" · "))];
}

function questionOf(decision, frame) {
  if (decision.kind === "frontier") return "Which place on the map to go on from?";
  if (decision.kind === FINAL) return "No decisions are left: at which place to stop?";
  if (decision.kind === GLOBAL) return "Which way of the whole map?";
  if (decision.kind === "gate") return "Explore a way before deciding?";
  if (decision.kind === "explore") return "Exploring: which way, or back?";
  return frame.back === null ? "Which way from here?" : `Which way from place ${frame.numbers.get(frame.back)}?`;
}

function decisionTable(decision, data, frame) {
  const cues = cuesOf(decision);
  const shown = [0, 1, 2].filter((i) => cues && cues.some((row) => Math.abs(row[i]) > 0.01));
  const largest = Math.max(0.5, ...(cues ?? []).flat().map(Math.abs));
  const order = ranked(decision);
  const rows = order.slice(0, MOST).map((i) => {
    const option = decision.options[i];
    return element("tr", { class: i === decision.choice ? "taken" : null },
      element("th", { scope: "row" }, `${i === decision.choice ? "✓ " : ""}${longName(option, data, frame)}`),
      ...shown.map((cue) => element("td", {}, twoSidedBar(cues[i][cue], largest))),
      element("td", {}, shareBar(option.probability)));
  });
  const head = element("tr", {}, element("th", { scope: "col" }, "Option"),
    ...shown.map((cue) => element("th", { scope: "col" }, (decision.kind === "action" ? WAY_CUES : CUES)[cue])), element("th", { scope: "col" }, "Chance"));
  const columns = element("colgroup", {}, element("col", { class: "option" }), ...shown.map(() => element("col")),
    element("col", { class: "chance-column" }));
  const table = element("table", {}, columns, element("thead", {}, head), element("tbody", {}, ...rows));
  const others = order.slice(MOST);
  if (!others.length) return table;
  const left = others.reduce((sum, i) => sum + decision.options[i].probability, 0);
  return element("div", {}, table, element("p", { class: "note" }, `and ${others.length} more, ${percent(left)} in all`));
}

function longName(option, data, frame) {
  const facts = [];
  if (option.place === frame.here && !option.stop) facts.push("here");
  const room = data.scenery.room_of[option.place];
  if (room && !option.stop) facts.push(room);
  return optionName(option, frame) + (facts.length ? ` (${facts.join(", ")})` : "");
}

function twoSidedBar(value, largest) {
  const bar = element("i", { class: value >= 0 ? "for" : "against" });
  const size = (50 * Math.abs(value)) / largest;
  bar.style.width = `${size}%`;
  bar.style.left = value >= 0 ? "50%" : `${50 - size}%`;
  const sign = value >= 0 ? "+" : "−";
  return element("span", {}, element("span", { class: "bar two" }, bar),
    element("span", { class: "figure" }, `${sign}${Math.abs(value).toFixed(1)}`));
}

function shareBar(share) {
  const bar = element("i", { class: "share" });
  bar.style.width = `${100 * share}%`;
  return element("span", {}, element("span", { class: "bar" }, bar), element("span", { class: "figure" }, percent(share)));
}
