// Opening a replay: what the page is about, and the player on its first round.

const INTRODUCTION = "A computer program, the agent, follows an instruction through a building it has never been in. ";
const WITH_MEMORY = "The map is its memory: numbered circles are places it has been to, diamonds are places it has only seen. "
  + "In every round it weighs up all of them, so when things stop fitting the words it can turn back to one it left behind.";
const WITHOUT_MEMORY = "It has no map: each round it only chooses among the ways from where it stands.";

function begin(data) {
  const { task, scene, agents } = data;
  const alone = agents.length === 1;
  const names = agents.map((agent) => agent.name).join(" and ");
  const headlines = agents.map((agent) => element("span", {}, `${agent.name}: ${agent.headline.toLowerCase()}`));
  const remembers = agents.some((agent) => agent.rounds.some((round) => round.memory));
  const say = (id, text) => {
    document.getElementById(id).textContent = text;
  };
  say("where", `SceneMem replay · ${names} · ${task.split} · ${scene.scan} · instruction ${task.instruction_id}`);
  document.getElementById("headline").append(...(alone ? [agents[0].headline] : headlines));
  say("lead", INTRODUCTION + (remembers ? WITH_MEMORY : WITHOUT_MEMORY));
  document.body.className = alone ? "one" : "two";
  const player = new Player(data);
  document.getElementById("agents").replaceChildren(...player.panels.map((panel) => panel.root));
  const legend = document.getElementById("legend");
  buildLegend(legend.querySelector("ul"), data);
  legend.firstElementChild.open = window.innerWidth >= SMALL;
  if (alone) player.panels[0].root.querySelector(".side").append(legend);
  player.show(0);
}

begin(JSON.parse(document.getElementById("data").textContent));
