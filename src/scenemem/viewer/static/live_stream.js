// Talking to the server: plain requests, and the moves of a walk as they happen.

/** What the server answers, or an error that says why not. */
async function ask(address, wish, signal) {
  const options = wish === undefined ? { signal }
    : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(wish), signal };
  const answer = await fetch(address, options);
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new Error(problem.detail ?? `the server answered ${answer.status}`);
}

async function askJson(address, wish, signal) {
  return (await ask(address, wish, signal)).json();
}

/** The events of a stream, decoded. */
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (waiting + value).split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}

function addressOf(...parts) {
  return `/api/${parts.map(encodeURIComponent).join("/")}`;
}
