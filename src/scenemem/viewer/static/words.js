// The instruction, its words marked by what the agent listens to.

function buildWords(box, task) {
  const spans = [];
  let read = "";
  let group = box; // words without a space between them stay on one line
  for (const word of task.words) {
    const span = element("span", { class: word.known ? "word" : "word unknown" }, word.text);
    if (word.before || group === box) {
      group = element("span", { class: "group" });
      box.append(word.before, group);
    }
    group.append(span);
    spans.push(span);
    read += word.before + word.text;
  }
  const rest = task.text.startsWith(read) ? task.text.slice(read.length) : "";
  if (rest.trim()) box.append(element("span", { class: "unread", title: "too long: not read by the agent" }, rest));
  return spans;
}

function buildKey(box, hasAttention, unknown) {
  if (!hasAttention) {
    box.textContent = "This agent does not tell words about things from words about directions.";
    return null;
  }
  const looks = element("span", { class: "word", "data-looks": 3 }, "shaded");
  const moves = element("span", { class: "word", "data-moves": 3 }, "underlined");
  const none = element("span", { class: "word none" }, "no word in particular");
  box.append(looks, " words tell it what to look for, ", moves, " words how to move; the strongest are quoted below. Or it follows ", none, ".");
  if (unknown) box.append(" Words in italics it has never learnt.");
  return none;
}

/** Mark the words a decision listened to; `none` is marked when that was no word in particular. */
function markWords(spans, none, marks, attention) {
  const show = (span, looks, moves) => {
    span.dataset.looks = looks;
    span.dataset.moves = moves;
  };
  spans.forEach((span, i) => {
    show(span, marks?.looks[i] ?? 0, marks?.moves[i] ?? 0);
    if (attention) span.title = `look for: ${percent(attention.perception[i])}, move by: ${percent(attention.action[i])}`;
    else span.removeAttribute("title");
  });
  const unheard = (levels) => (levels && !levels.some(Boolean) ? 3 : 0);
  if (none) show(none, unheard(marks?.looks), unheard(marks?.moves));
}
