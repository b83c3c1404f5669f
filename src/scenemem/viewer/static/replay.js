// Opening a replay: what the page is about, and the player on its first move.

const WITH_MEMORY = "The map is its memory: numbered circles are places it has been to, diamonds are places it has only seen. "
  + "At every move it rates all of them, so it can turn back to one it passed earlier.";
const ROUTE = "The route is that of a result file, which says where the agent went and not why.";
const WITHOUT_MEMORY = "It has no map: at every move it only chooses among the ways from where it stands.";

function begin(data) {
  const { task, scene, agents } = data;
  const alone = agents.length === 1;
  const names = agents.map((agent) => agent.name).join(" and ");
  const unseen = /unseen|test/.test(task.split) ? " it has not seen in training" : "";
  const headlines = agents.map((agent) => element("span", {}, `${agent.name}: ${agent.headline.toLowerCase()}`));
  const remembers = agents.some((agent) => agent.moves.some((move) => move.memory));
  const say = (id, ...text) => document.getElementById(id).replaceChildren(...text);
  say("where", `SceneMem replay: ${alone ? "one walk" : "two walks"}, move by move `,
    element("small", {}, `${names} · ${scene.scan} · ${sourceOf(task)}`));
  say("headline", ...(alone ? [agents[0].headline] : headlines));
  const about = remembers ? WITH_MEMORY : agents.some(decides) ? WITHOUT_MEMORY : ROUTE;
  say("lead", `An agent follows an instruction through a building${agents.some(decides) ? unseen : ""}. ${about}`);
  document.body.className = alone ? "one" : "two";
  const player = new Player(data);
  document.getElementById("agents").replaceChildren(...player.panels.map((panel) => panel.root));
  const legend = document.getElementById("legend");
  buildLegend(legend.querySelector("ul"), data);
  legend.firstElementChild.open = window.innerWidth >= SMALL;
  if (alone) player.panels[0].root.querySelector(".drawn").append(legend);
  document.addEventListener("shown", ({ detail }) => document.body.classList.toggle("at-end", detail.last));
  hideEnding(window.location.hash === "#hide", document.title);
  player.show(0);
}

/** Where an instruction is from; one that was typed is of no split. */
function sourceOf(task) {
  if (task.split === "live") return "an instruction typed on the live page";
  return task.split === "instruction" ? `instruction ${task.instruction_id}` : `${task.split}, instruction ${task.instruction_id}`;
}

/** Offer to keep the outcome secret until the last move; an address that ends in #hide begins so. */
function hideEnding(hidden, title) {
  const button = document.getElementById("ending");
  const set = (hide) => {
    document.body.classList.toggle("hide-ending", hide);
    button.setAttribute("aria-pressed", String(hide));
    button.textContent = hide ? "Show the ending" : "Hide the ending";
    document.title = hide ? "SceneMem replay" : title;
  };
  button.addEventListener("click", () => set(button.getAttribute("aria-pressed") !== "true"));
  set(hidden);
}

begin(JSON.parse(document.getElementById("data").textContent));
