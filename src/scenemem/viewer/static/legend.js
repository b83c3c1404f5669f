// What the signs on the map mean, drawn by the same hand as the map.

function buildLegend(list, data) {
  const remembers = data.agents.some((agent) => agent.moves.some((move) => move.memory));
  const choices = data.agents.some(decides);
  const rows = [
    ["A place it has visited, numbered in order", (svg) => drawNode(svg, [23, 13], 9, 3, false)],
    remembers && ["A frontier: visited, with unvisited neighbours", (svg) => drawNode(svg, [23, 13], 9, 3, true)],
    choices && ["Seen but not visited; letters are the choices now", (svg) => drawWay(svg, [23, 13], 9, "A", false)],
    remembers && ["Leads to a place it has only seen", (svg) => svg.append(legendLine("seen-way"))],
    ["Where it stands and looks", (svg) => svg.append(
      shape("g", { transform: "translate(18 13)" }, shape("path", { class: "cone", d: conePath(Math.PI / 2, 24) }),
        shape("circle", { class: "me", r: 9 })))],
    ["The path it has walked", (svg) => svg.append(legendLine("walked"))],
    remembers && ["Going back over places it remembers", (svg) => svg.append(legendLine("jumped"))],
    [choices ? "What it does next; numbers are chances" : "What it does next", (svg) => {
      svg.append(shape("line", { class: "next", x1: 4, y1: 13, x2: 36, y2: 13 }));
      drawHead(svg, [4, 13], [44, 13], 2, "head");
    }],
    data.task.reference.length && [`The described path${choices ? " (the agent cannot see it)" : ""}`, (svg) => svg.append(legendLine("reference"))],
    data.task.reference.length && [`The goal${choices ? " (the agent cannot see it)" : ""}`, (svg) => drawStar(svg, [23, 13], 10)],
    [choices ? "Places it knows nothing about" : "Places it has not been to", (svg) => svg.append(
      shape("line", { class: "unseen-edge", x1: 6, y1: 13, x2: 40, y2: 13 }),
      ...[6, 23, 40].map((cx) => shape("circle", { class: "unseen", cx, cy: 13, r: 2.5 })))],
    touchedFloors(data).length > 1 && ["Leads to the floor above or below", (svg) => svg.append(
      shape("text", { class: "stairs", x: 23, y: 18 }, "▲ ▼"))],
  ];
  for (const row of rows.filter(Boolean)) {
    const svg = shape("svg", { viewBox: "0 0 46 26", "aria-hidden": "true" });
    row[1](svg);
    list.append(element("li", {}, svg, row[0]));
  }
}

function legendLine(kind) {
  return shape("line", { class: kind, x1: 4, y1: 13, x2: 42, y2: 13 });
}
