// Opening a replay: what the page is about, and the player on its first round.

const INTRODUCTION = "An agent that has never been in this building is asked to follow an instruction. ";
const WITH_MEMORY = "It keeps a map of every place it has seen: its memory. Each round it may go on from any place on that map, "
  + "so when things stop fitting the words it can turn back.";
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
  legend.firstElementChild.open = window.innerWidth >= 700;
  if (alone) player.panels[0].root.querySelector(".map").append(legend);
  player.show(0);
}

begin(JSON.parse(document.getElementById("data").textContent));
