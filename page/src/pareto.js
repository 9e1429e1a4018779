// Peak against recomputation: estimates with their intervals, and what a compiler confirmed.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { bytes, share } from "./data.js";
import { el } from "./dom.js";
import { fits } from "./variants.js";

const MARGIN = { top: 20, right: 24, bottom: 46, left: 78 };
const HEIGHT = 420;

export function pareto(state) {
  const { doc } = state;
  const svg = select(document.createElementNS("http://www.w3.org/2000/svg", "svg")).attr("class", "pareto").attr("role", "img");
  const told = el("p", { class: "told", "aria-live": "polite" });
  const view = el("section", { class: "view" }, el("ul", { class: "legend" }, el("li", {}, "○ estimate with its interval"), el("li", {}, "■ confirmed by XLA"), el("li", {}, "◆ knee"), el("li", {}, doc.kind === "plan" ? "▶ the plan" : "▶ the one to take"), el("li", {}, "— frontier")), el("div", { class: "plot" }, svg.node()), told);

  function draw() {
    const rows = doc.rows.filter((each) => each.peak !== null && each.recompute !== null);
    const width = Math.max(320, svg.node().parentNode.clientWidth || 900);
    svg.attr("width", width).attr("height", HEIGHT).selectAll("*").remove();
    const limit = doc.budget ?? doc.on[0]?.memory;
    const peak = (row) => row.xla ?? row.peak;
    const most = Math.max(...rows.map((row) => Math.max(peak(row), row.high ?? 0)), 1);
    const shown = limit && limit < 2 * most ? Math.max(most, limit) : most;
    const widest = Math.max(...rows.map((row) => 100 * row.recompute), 1);
    const x = scaleLinear([0, widest * 1.08], [MARGIN.left, width - MARGIN.right]).nice();
    const y = scaleLinear([0, shown * 1.06], [HEIGHT - MARGIN.bottom, MARGIN.top]);
    const unit = 1024 ** Math.floor(Math.log(shown) / Math.log(1024));
    svg.append("g").attr("transform", `translate(0,${HEIGHT - MARGIN.bottom})`).call(axisBottom(x).ticks(8).tickFormat((n) => `${n} %`));
    svg.append("g").attr("transform", `translate(${MARGIN.left},0)`).call(axisLeft(scaleLinear([0, y.domain()[1] / unit], y.range())).ticks(6).tickFormat((n) => bytes(n * unit)));
    svg.append("text").attr("x", width - MARGIN.right).attr("y", HEIGHT - 8).attr("text-anchor", "end").text("recomputed FLOPs, as a share of all others");
    svg.append("text").attr("x", 6).attr("y", 12).text("peak");
    if (limit && limit <= y.domain()[1]) {
      svg.append("line").attr("class", "limit").attr("x1", MARGIN.left).attr("x2", width - MARGIN.right).attr("y1", y(limit)).attr("y2", y(limit));
      svg.append("text").attr("x", width - MARGIN.right).attr("y", y(limit) - 4).attr("text-anchor", "end").text(`${doc.budget ? "budget" : doc.on[0].name}: ${bytes(limit)}`);
    }
    const frontier = rows.filter((row) => row.pareto).sort((a, b) => a.recompute - b.recompute);
    svg.append("path").attr("class", "frontier").attr("d", frontier.map((row, i) => `${i ? "L" : "M"}${x(100 * row.recompute)},${y(peak(row))}`).join(""));
    const groups = svg
      .selectAll("g.row")
      .data(rows)
      .join("g")
      .attr("class", (row) => `row${row.pareto ? " best" : ""}`)
      .attr("tabindex", "0")
      .attr("role", "button")
      .attr("data-peak", peak)
      .attr("data-confirmed", (row) => row.xla !== null)
      .attr("transform", (row) => `translate(${x(100 * row.recompute)},${y(peak(row))})`)
      .attr("aria-label", (row) => words(row, limit))
      .on("pointerenter focus", (event, row) => {
        told.textContent = words(row, limit);
      })
      .on("click", (event, row) => choose(row))
      .on("keydown", (event, row) => event.key === "Enter" && choose(row));
    groups.filter((row) => row.xla === null && row.low !== null).append("line").attr("class", "interval").attr("y1", (row) => y(row.low) - y(row.peak)).attr("y2", (row) => y(row.high) - y(row.peak));
    groups.filter((row) => row.xla === null).append("circle").attr("r", 6);
    groups.filter((row) => row.xla !== null).append("rect").attr("x", -6).attr("y", -6).attr("width", 12).attr("height", 12);
    groups.append("title").text((row) => words(row, limit));
    // Names where they do not fall on one another.
    const taken = [];
    for (const row of [...rows].sort((a, b) => b.pareto - a.pareto || (b.chosen ? 1 : 0) - (a.chosen ? 1 : 0))) {
      const name = `${row.letter} ${row.name}`.trim();
      const label = `${row.chosen ? "▶ " : row.knee ? "◆ " : ""}${name.length > 34 ? `${name.slice(0, 33)}…` : name}`;
      const w = label.length * 6.2;
      const left = x(100 * row.recompute) + 12 + w > width - MARGIN.right ? x(100 * row.recompute) - 12 - w : x(100 * row.recompute) + 12;
      const top = y(peak(row)) - 7;
      if (taken.some((each) => left < each.left + each.w && each.left < left + w && Math.abs(top - each.top) < 14)) continue;
      taken.push({ left, top, w });
      svg.append("text").attr("class", "name").attr("x", left).attr("y", top + 11).text(label);
    }
    svg.attr("aria-label", `Peak against recomputation: ${rows.map((row) => words(row, limit)).join("; ")}`);
  }

  function choose(row) {
    if (row.program !== null) state.set({ program: row.program, at: null, from: null, to: null, tab: "timeline" });
  }

  return { view, show: draw };
}

function words(row, limit) {
  const peak = row.xla !== null ? `${bytes(row.xla)} by XLA` : `${bytes(row.peak)}${row.low !== null ? ` (${bytes(row.low)} to ${bytes(row.high)})` : ""}, an estimate`;
  return [`${row.letter} ${row.name}: peak ${peak}`.trim(), `recompute ${share(row.recompute)}`, fits(row, limit)].filter(Boolean).join(", ");
}
