// The instruction, its words shaded by what the agent listens to.

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
  const mark = element("span", { class: "word mark" }, "end");
  box.append(" ", mark);
  return { spans, mark };
}

function buildKey(box, hasAttention, unknown) {
  if (!hasAttention) {
    box.textContent = "This agent does not tell words about things from words about directions.";
    return;
  }
  const looks = element("span", { class: "word" }, "shaded");
  looks.style.setProperty("--looks", 0.8);
  const moves = element("span", { class: "word" }, "underlined");
  moves.style.setProperty("--moves", 0.8);
  box.append(looks, " words tell it what to look for, ", moves, " words how to move: the stronger, the more it listens. ",
    element("span", { class: "word mark" }, "end"), " stands for no word in particular.");
  if (unknown) box.append(" Words in italics it has never learnt.");
}

function shadeWords({ spans, mark }, attention) {
  mark.hidden = !attention;
  const shares = (list) => (list ? [...list, Math.max(0, 1 - list.reduce((sum, share) => sum + share, 0))] : []);
  const looks = shares(attention?.perception);
  const moves = shares(attention?.action);
  const loudest = [Math.max(...looks, 0.01), Math.max(...moves, 0.01)];
  [...spans, mark].forEach((span, i) => {
    span.style.setProperty("--looks", attention ? (looks[i] / loudest[0]).toFixed(3) : 0);
    span.style.setProperty("--moves", attention ? (moves[i] / loudest[1]).toFixed(3) : 0);
    if (attention) span.title = `look for: ${percent(looks[i])}, move by: ${percent(moves[i])}`;
    else span.removeAttribute("title");
  });
}
