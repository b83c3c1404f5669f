// Keeping a walk: the very page a replay is, filled with what has just been shown.

/** A replay of a walk as one page; `lookAround` fetches what can be seen at a place. */
async function pageOf({ task, scene, scenery, agents }, lookAround) {
  const shown = new Set(agents.flatMap(({ moves }) => moves.flatMap((move) => [move.walk[0], move.walk.at(-1), backTo(move) ?? move.walk[0]])));
  const looks = {};
  for (const place of shown) looks[place] = await lookAround(place);
  const frame = await (await ask("/static/replay.html")).text();
  return frame.replace("{{data}}", () => embedded({ task, scene, scenery: { ...scenery, looks }, agents }));
}

/** JSON that can stand inside a script element, whatever text it holds. */
function embedded(value) {
  const code = (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return JSON.stringify(value).replace(/[<>&\u2028\u2029]/g, code);
}

function download(text, name) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/html" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // long after the browser has read it
}
