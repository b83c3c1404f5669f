// Why: every option with what speaks for it and how likely it was.

const MOST = 7; // options shown; a whole map can offer dozens
const CUES = ["Sight", "Heading", "Facts"];
const WAY_CUES = ["Sight", "Heading", "Memory"]; // what the memory says about stopping here

function buildDecisions(box, data, frame) {
  box.replaceChildren();
  if (!frame.round) {
    box.append(element("p", { class: "note" }, frame.ended ? "No more decisions: this is the end." : "Not decided yet."));
    return;
  }
  const several = frame.round.decisions.length > 1;
  frame.round.decisions.forEach((decision, i) => {
    box.append(element("div", {}, element("h4", {}, `${several ? `${i + 1}. ` : ""}${questionOf(decision, frame)}`),
      decisionTable(decision, data, frame)));
  });
  if (frame.round.decisions.some(cuesOf)) {
    box.append(element("p", { class: several ? "note whole" : "note" },
      "Chance: how likely the agent thinks each option is right; it takes the likeliest. What speaks for an option: "
      + "Sight, how well what is seen there fits the shaded words. Heading, how well where it lies fits the underlined words. "
      + "Facts, how far it is, how long ago it was found and how good it looked. Memory, how well what it remembers of this "
      + "place and those around it fits stopping here. Bars to the right speak for an option, "
      + "hatched bars to the left against it, compared with the average option."));
  }
}

function questionOf(decision, frame) {
  if (decision.kind === "frontier") return "From which place on the map to go on?";
  if (decision.kind === "final") return "Its decisions are used up: at which place to stop?";
  if (decision.kind === "global") return "Which way of the whole map?";
  return frame.back === null ? "Which way from here?" : `Which way from place ${frame.numbers.get(frame.back)}?`;
}

function decisionTable(decision, data, frame) {
  const cues = cuesOf(decision);
  const shown = [0, 1, 2].filter((i) => cues && cues.some((row) => Math.abs(row[i]) > 0.01));
  const largest = Math.max(0.5, ...(cues ?? []).flat().map(Math.abs));
  const order = decision.options.map((_, i) => i)
    .sort((a, b) => (b === decision.choice) - (a === decision.choice) || decision.options[b].probability - decision.options[a].probability);
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
  return element("div", {}, table, element("p", { class: "note" }, `and ${others.length} others, ${percent(left)} in all`));
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
