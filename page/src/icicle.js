// Bytes by module, function, line and value, the widest first.

import { hierarchy, partition } from "d3-hierarchy";
import { select } from "d3-selection";
import { bytes, liveAt, own, percent, style, where } from "./data.js";
import { add, clear, el } from "./dom.js";

const ROW = 26;
const LEAST = 0.5; // narrower parts are added up

export function icicle(state) {
  const { doc } = state;
  const svg = select(document.createElementNS("http://www.w3.org/2000/svg", "svg")).attr("class", "icicle").attr("role", "img");
  const crumbs = el("p", { class: "crumbs" });
  const told = el("p", { class: "told", "aria-live": "polite" });
  const choice = el("div", { class: "buttons", role: "group", "aria-label": "What is counted" });
  const view = el("section", { class: "view" }, choice, crumbs, el("div", { class: "plot" }, svg.node()), told);
  let focus = null;

  function modes() {
    const found = [];
    if (doc.programs.length) found.push(["live", "live at the chosen moment"]);
    if (doc.residuals && state.program === 0) found.push(["kept", "kept for the backward pass"]);
    return found;
  }

  function values() {
    if (mode() === "kept") return { values: doc.residuals, rest: 0 };
    const program = doc.programs[state.program];
    return liveAt(program, Math.min(state.at ?? program.at, program.points.length - 1));
  }

  function mode() {
    const known = modes().map(([name]) => name);
    return known.includes(state.count) ? state.count : known[0];
  }

  function tree() {
    const root = { name: "program", children: new Map() };
    const live = values();
    for (const value of live.values) {
      const line = own(value);
      const path = [
        ...(value.scope ? value.scope.split("/") : [line ? "no module" : style(value.kind).word]),
        ...(line ? [`${line.function}()`, `${where(line)}  ${line.code.trim()}`] : []),
        `${value.path || value.primitive || style(value.kind).word}  ${value.aval}`,
      ];
      let node = root;
      for (const name of path) {
        if (!node.children.has(name)) node.children.set(name, { name, children: new Map(), nbytes: 0 });
        node = node.children.get(name);
      }
      node.nbytes += value.nbytes;
    }
    if (live.rest > 0) root.children.set("smaller values", { name: "smaller values", children: new Map(), nbytes: live.rest });
    return hierarchy(root, (node) => [...node.children.values()])
      .sum((node) => node.nbytes ?? 0)
      .sort((a, b) => b.value - a.value);
  }

  function draw() {
    const root = tree();
    focus ??= root;
    if (!root.descendants().includes(focus)) focus = find(root, names(focus)) ?? root;
    const width = Math.max(320, svg.node().parentNode.clientWidth || 900);
    const shown = focus.copy();
    partition().size([width, (shown.height + 1) * ROW])(shown);
    svg.attr("width", width).attr("height", (shown.height + 1) * ROW).selectAll("*").remove();
    svg.attr("aria-label", `Icicle: ${bytes(root.value)} ${modes().find(([name]) => name === mode())[1]}`);
    const nodes = shown.descendants().filter((node) => node.x1 - node.x0 >= LEAST);
    const groups = svg
      .selectAll("g")
      .data(nodes)
      .join("g")
      .attr("transform", (node) => `translate(${node.x0},${node.y0})`)
      .attr("tabindex", "0")
      .attr("role", "button")
      .attr("data-nbytes", (node) => node.value)
      .attr("data-depth", (node) => node.depth)
      .attr("aria-label", (node) => `${node.data.name}: ${bytes(node.value)}, ${percent(node.value, root.value)}`)
      .on("click", (event, node) => enter(node))
      .on("keydown", (event, node) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          enter(node);
        } else if (event.key === "Escape" && focus.parent) enter(null);
      })
      .on("pointerenter focus", (event, node) => tell(node, root));
    groups
      .append("rect")
      .attr("width", (node) => Math.max(0.5, node.x1 - node.x0 - 1))
      .attr("height", ROW - 2)
      .attr("class", (node) => `level${(node.depth + focus.depth) % 4}`);
    groups
      .filter((node) => node.x1 - node.x0 > 34)
      .append("text")
      .attr("x", 4)
      .attr("y", ROW / 2 + 3)
      .text((node) => fitted(`${node.data.name}  ${bytes(node.value)}`, node.x1 - node.x0 - 8));
    groups.append("title").text((node) => `${names(origin(node)).join(" › ")}\n${bytes(node.value)}`);
    clear(crumbs);
    const above = focus.ancestors().reverse();
    add(
      crumbs,
      above.flatMap((node, i) => [
        i ? " › " : "",
        el("button", { type: "button", class: "link", onclick: () => enter(null, node) }, i ? node.data.name : "everything"),
      ]),
    );
    tell(shown, root);
    clear(choice);
    add(
      choice,
      modes().map(([name, word]) =>
        el(
          "button",
          {
            type: "button",
            "aria-pressed": String(name === mode()),
            onclick: () => {
              focus = null;
              state.set({ count: name }, { quiet: true });
              draw();
            },
          },
          word,
        ),
      ),
    );
  }

  // The node of the whole tree that one of the shown part is.
  function origin(node) {
    return find(focus, names(node).slice(1)) ?? focus;
  }

  function enter(node, target = null) {
    focus = target ?? (node === null ? focus.parent : origin(node).children ? origin(node) : origin(node).parent ?? focus);
    draw();
  }

  function tell(node, root) {
    clear(told);
    add(told, [`${names(origin(node)).slice(1).join(" › ") || "everything"}: `, el("strong", {}, bytes(node.value)), ` (${percent(node.value, root.value)})`]);
  }

  return { view, show: draw };
}

function names(node) {
  return node
    .ancestors()
    .reverse()
    .map((each) => each.data.name);
}

function find(root, path) {
  let node = root;
  for (const name of path[0] === root.data.name ? path.slice(1) : path) {
    node = node.children?.find((child) => child.data.name === name);
    if (!node) return null;
  }
  return node;
}

function fitted(text, room) {
  const most = Math.floor(room / 6.4);
  return text.length <= most ? text : most > 3 ? `${text.slice(0, most - 1)}…` : "";
}
