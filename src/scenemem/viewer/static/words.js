// The instruction, its words marked by the attention of the agent.

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
    box.textContent = "This agent does not separate words for what to look for from words for where to go.";
    return null;
  }
  const view = element("span", { class: "word", "data-view": 3 }, "shaded");
  const direction = element("span", { class: "word", "data-direction": 3 }, "underlined");
  const none = element("span", { class: "word none" }, "Now no word stands out.");
  box.append(view, " words tell it what to look for, ", direction, " words where to go; the strongest are quoted below. ", none);
  if (unknown) none.before("Words in italics are not in its vocabulary. ");
  return none;
}

/** Mark the words a decision attended to; `none` is shown and marked when no word stands out. */
function markWords(spans, none, marks, attention) {
  const show = (span, view, direction) => {
    span.dataset.view = view;
    span.dataset.direction = direction;
  };
  spans.forEach((span, i) => {
    show(span, marks?.view[i] ?? 0, marks?.direction[i] ?? 0);
    if (attention) span.title = `view: ${percent(attention.perception[i])}, direction: ${percent(attention.action[i])}`;
    else span.removeAttribute("title");
  });
  const absent = (levels) => (levels && !levels.some(Boolean) ? 3 : 0);
  if (none) show(none, absent(marks?.view), absent(marks?.direction));
}
