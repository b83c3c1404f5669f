// What a captioner says about the directions an agent chooses among, the words it attends to marked.

const MOST_SAID = 3; // remembered places told of at once

/** The ways of a move's decision for a way, the one taken first: what each is called, and its caption. */
function saidOfWays(data, frame) {
  const { action, memory } = frame;
  return ranked(action).map((i) => [action.options[i], i === action.choice]).filter(([option]) => !option.stop).map(([option, taken]) => {
    const from = memory && typeof option.node === "number" ? memory.nodes[option.node] : frame.here;
    return { name: optionName(option, frame), taken, captions: [["", captionOf(data, from, option.place)]] };
  }).filter(({ captions: [[, text]] }) => text);
}

/** The remembered places a move decides among, the chosen one first: captions of the open ways of each. */
function saidOfPlaces(data, { frontier, memory, ...frame }) {
  return ranked(frontier).map((i) => {
    const option = frontier.options[i];
    const winds = new Map(); // ways that look alike share a line
    for (const way of memory?.ways.filter(({ node }) => node === option.node) ?? []) {
      const text = captionOf(data, option.place, way.place);
      if (text) winds.set(text, [...(winds.get(text) ?? []), way.compass]);
    }
    const captions = [...winds].map(([text, names]) => [`${[...new Set(names)].join(", ")}: `, text]);
    return { name: optionName(option, frame), taken: i === frontier.choice, captions };
  }).filter(({ captions }) => captions.length);
}

/** What a captioner says about the view from one place to the next; undefined when that is not known. */
function captionOf(data, from, to) {
  return data.scenery.looks[from]?.captions?.[to];
}

/** What is said of the ways it could take: below the strip of the place they lead on from. */
function buildWays(data, frame, attended) {
  const ways = saidOfWays(data, frame);
  const which = frame.action.kind === GLOBAL ? "all ways it knows" : "the ways from here";
  return ways.length ? element("div", {}, ...listSaid(`What a captioner says about ${which}:`, ways, attended, MOST)) : null;
}

/** What is said of the directions it remembers: below the map, which shows where they are. */
function buildRemembered(data, frame, attended) {
  const places = saidOfPlaces(data, frame);
  if (!places.length) return [];
  return [element("h3", {}, "Directions it remembers"),
    ...listSaid("What a captioner says about the open ways of each place:", places, attended, MOST_SAID)];
}

/** A list of captions; those after the first few are shown when asked for. */
function listSaid(lead, entries, attended, most) {
  const list = (some) => element("dl", { class: "said" }, ...some.map(({ name, taken, captions }) => element("div", { class: taken ? "taken" : null },
    element("dt", {}, `${taken ? "✓ " : ""}${name}`),
    ...captions.map(([where, text]) => element("dd", {}, element("span", { class: "where" }, where), ...markedText(text, attended))))));
  const rest = entries.slice(most);
  return [element("p", { class: "note" }, lead), list(entries.slice(0, most)),
    ...(rest.length ? [element("details", {}, element("summary", {}, `and ${rest.length} more`), list(rest))] : [])];
}

/** Attended words in small letters -> how strongly each is marked; of a word that stands there twice the stronger mark. */
function attendedWords(words, marks) {
  const attended = new Map();
  words.forEach((word, i) => {
    const [view, direction] = [marks?.view[i] ?? 0, marks?.direction[i] ?? 0];
    const name = word.text.toLowerCase();
    const before = attended.get(name) ?? { view: 0, direction: 0 };
    if (view || direction) attended.set(name, { view: Math.max(view, before.view), direction: Math.max(direction, before.direction) });
  });
  return attended;
}

/** A text in pieces, the attended words in it marked, be they of one thing or of several. */
function markedText(text, attended) {
  return text.split(/([\p{L}\p{N}]+)/u).map((piece) => {
    const word = piece.toLowerCase();
    const alike = [word, `${word}s`, `${word}es`, word.replace(/s$/, ""), word.replace(/es$/, "")];
    const mark = attended.get(alike.find((name) => attended.has(name)));
    return mark ? element("span", { class: "word", "data-view": mark.view, "data-direction": mark.direction }, piece) : piece;
  });
}
