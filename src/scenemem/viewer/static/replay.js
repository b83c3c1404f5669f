// Opening a replay: what the page is about, and the player on its first round.

const WITH_MEMORY = "The map is its memory: numbered circles are places it has been to, diamonds are places it has only seen. "
  + "In every round it weighs up all of them, so it can turn back to one it left behind.";
const WITHOUT_MEMORY = "It has no map: each round it only chooses among the ways from where it stands.";

function begin(data) {
  const { task, scene, agents } = data;
  const alone = agents.length === 1;
  const names = agents.map((agent) => agent.name).join(" and ");
  const unseen = /unseen|test/.test(task.split) ? " it has never been in" : "";
  const headlines = agents.map((agent) => element("span", {}, `${agent.name}: ${agent.headline.toLowerCase()}`));
  const remembers = agents.some((agent) => agent.rounds.some((round) => round.memory));
  const say = (id, ...text) => document.getElementById(id).replaceChildren(...text);
  say("where", "SceneMem replay: one walk, round by round ",
    element("small", {}, `${names} · ${scene.scan} · instruction ${task.instruction_id} of ${task.split}`));
  say("headline", ...(alone ? [agents[0].headline] : headlines));
  say("lead", `A computer program, the agent, follows an instruction through a building${unseen}. ${remembers ? WITH_MEMORY : WITHOUT_MEMORY}`);
  document.body.className = alone ? "one" : "two";
  const player = new Player(data);
  document.getElementById("agents").replaceChildren(...player.panels.map((panel) => panel.root));
  const legend = document.getElementById("legend");
  buildLegend(legend.querySelector("ul"), data);
  legend.firstElementChild.open = window.innerWidth >= SMALL;
  if (alone) player.panels[0].root.querySelector(".drawn").append(legend);
  player.show(0);
}

begin(JSON.parse(document.getElementById("data").textContent));
