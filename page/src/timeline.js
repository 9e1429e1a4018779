// Live bytes over the program: each value is a band as wide as its life and as high as its bytes.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear } from "d3-scale";
import { pointer, select } from "d3-selection";
import { zoom, zoomIdentity } from "d3-zoom";
import { byKind, bytes, liveAt, own, percent, reason, REST, signed, style, where } from "./data.js";
import { add, clear, el, swatch, table } from "./dom.js";

const MARGIN = { top: 18, right: 12, bottom: 44, left: 74 };
const HEIGHT = 400;
const LISTED = 100;

export function timeline(state) {
  const { doc } = state;
  const canvas = el("canvas", { role: "img", tabindex: "0", class: "chart" });
  const overlay = select(document.createElementNS("http://www.w3.org/2000/svg", "svg")).attr("class", "overlay").attr("aria-hidden", "true");
  const tip = el("div", { class: "tip", hidden: true });
  const moment = el("div", { class: "moment", "aria-live": "polite" });
  const legend = el("ul", { class: "legend" });
  const box = el("div", { class: "plot" }, canvas, overlay.node(), tip);
  const buttons = el(
    "div",
    { class: "buttons" },
    el("button", { type: "button", onclick: () => scaled(2), title: "Zoom in" }, "+ zoom in"),
    el("button", { type: "button", onclick: () => scaled(0.5), title: "Zoom out" }, "− zoom out"),
    el("button", { type: "button", onclick: () => reset() }, "whole program"),
    el("button", { type: "button", onclick: () => choose(program().at) }, "go to the peak"),
    el("span", { class: "hint" }, "Scroll or drag to zoom and move; click, or ← → Home End P, to choose a moment."),
  );
  const view = el("section", { class: "view" }, legend, box, buttons, moment);
  const program = () => doc.programs[state.program];
  let width = 0;
  let x = scaleLinear();
  let whole = scaleLinear();
  let y = scaleLinear();
  let bands = [];

  const zooming = zoom()
    .scaleExtent([1, 400])
    .on("zoom", (event) => {
      x = event.transform.rescaleX(whole);
      state.set({ from: round(x.domain()[0]), to: round(x.domain()[1]) }, { quiet: true });
      draw();
    });

  function round(n) {
    return Math.round(n * 100) / 100;
  }

  function scaled(k) {
    select(canvas).call(zooming.scaleBy, k);
  }

  function reset() {
    select(canvas).call(zooming.transform, zoomIdentity);
  }

  function choose(at) {
    state.set({ at: Math.max(0, Math.min(program().points.length - 1, at)) }, { quiet: true });
    draw();
    describe();
  }

  function layout() {
    width = Math.max(320, box.clientWidth || 900);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = HEIGHT * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${HEIGHT}px`;
    overlay.attr("width", width).attr("height", HEIGHT);
    const limit = bounds();
    const most = Math.max(...doc.programs.map((each) => each.nbytes), program().nbytes);
    const seen = limit.filter((each) => each.nbytes <= 1.6 * most).map((each) => each.nbytes);
    whole = scaleLinear([0, program().points.length], [MARGIN.left, width - MARGIN.right]);
    y = scaleLinear([0, Math.max(most, ...seen) * 1.04], [HEIGHT - MARGIN.bottom, MARGIN.top]);
    zooming.extent([[MARGIN.left, 0], [width - MARGIN.right, HEIGHT]]).translateExtent([[MARGIN.left, 0], [width - MARGIN.right, HEIGHT]]);
    x = whole;
    const [from, to] = [state.from ?? 0, state.to ?? program().points.length];
    const k = program().points.length / Math.max(1e-3, to - from);
    const transform = zoomIdentity.translate(MARGIN.left, 0).scale(k).translate(-whole(from), 0);
    select(canvas).call(zooming).on("dblclick.zoom", null).call(zooming.transform, k > 1.0001 ? transform : zoomIdentity);
  }

  function bounds() {
    const found = [];
    if (doc.budget) found.push({ nbytes: doc.budget, name: "budget" });
    for (const on of doc.on) if (on.memory) found.push({ nbytes: on.memory, name: on.name });
    return found;
  }

  // The points to draw: one for each pixel at most, of more the one with most bytes.
  function columns() {
    const points = program().points;
    const [from, to] = x.domain();
    const first = Math.max(0, Math.floor(from));
    const last = Math.min(points.length, Math.ceil(to));
    const left = MARGIN.left;
    const right = width - MARGIN.right;
    const found = [];
    let i = first;
    while (i < last) {
      const x0 = Math.max(left, x(i));
      let j = i + 1;
      while (j < last && x(j + 1) - x0 <= 1) j += 1;
      let best = i;
      for (let k = i; k < j; k += 1) if (points[k].nbytes > points[best].nbytes) best = k;
      found.push({ index: best, x0, x1: Math.min(right, x(j)) });
      i = j;
    }
    return found;
  }

  function draw() {
    const context = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    const colours = getComputedStyle(document.documentElement);
    const ink = colours.getPropertyValue("--ink").trim();
    const paper = colours.getPropertyValue("--paper").trim();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    const cells = columns();
    const fills = new Map();
    const fill = (kind) => {
      if (!fills.has(kind)) fills.set(kind, pattern(context, style(kind), ink));
      return fills.get(kind);
    };
    bands = [];
    const open = new Map();
    const flush = (band) => {
      context.fillStyle = fill(band.kind);
      context.fillRect(band.x0, band.y1, band.x1 - band.x0, band.y0 - band.y1);
      if (band.y0 - band.y1 > 3) {
        context.fillStyle = paper;
        context.fillRect(band.x0, band.y1, band.x1 - band.x0, 0.7);
      }
      bands.push(band);
    };
    const points = program().points;
    for (const cell of cells) {
      let sum = 0;
      const seen = [];
      let small = null;
      for (const value of program().order) {
        if (value.start > cell.index || cell.index >= value.stop) continue;
        const y0 = y(sum);
        sum += value.nbytes;
        const y1 = y(sum);
        if (y0 - y1 < 0.35) {
          // Thinner than a pixel: joined with its neighbours of the same kind.
          if (small && small.kind === value.kind && small.y1 === y0) {
            small.y1 = y1;
            continue;
          }
          small = { key: `small ${value.kind} ${value.id}`, kind: value.kind, value: null, y0, y1 };
          seen.push(small);
        } else seen.push({ key: value.id, kind: value.kind, value, y0, y1 });
      }
      if (points[cell.index].nbytes - sum > 0) {
        seen.push({ key: "rest", kind: "rest", value: null, y0: y(sum), y1: y(points[cell.index].nbytes) });
      }
      const keys = new Set(seen.map((each) => each.key));
      for (const [key, band] of open) {
        if (!keys.has(key)) {
          flush(band);
          open.delete(key);
        }
      }
      for (const each of seen) {
        const band = open.get(each.key);
        if (band && band.y0 === each.y0 && band.y1 === each.y1 && Math.abs(band.x1 - cell.x0) < 0.01) band.x1 = cell.x1;
        else {
          if (band) flush(band);
          open.set(each.key, { ...each, x0: cell.x0, x1: cell.x1 });
        }
      }
    }
    for (const band of open.values()) flush(band);
    labels(context, ink, paper);
    lines(context, ink);
    axes();
  }

  // The name of what is big enough to hold it.
  function labels(context, ink, paper) {
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const named = new Map();
    for (const band of bands) {
      if (!band.value || band.y0 - band.y1 < 13 || band.x1 - band.x0 < 46) continue;
      const area = (band.y0 - band.y1) * (band.x1 - band.x0);
      if (area > (named.get(band.value.id)?.area ?? 0)) named.set(band.value.id, { band, area });
    }
    for (const { band } of named.values()) {
      const line = own(band.value);
      const text = band.value.path || (line ? where(line).split("/").pop() : band.value.primitive) || style(band.kind).word;
      const room = band.x1 - band.x0 - 8;
      const shown = fitted(context, text, room);
      if (!shown) continue;
      const w = context.measureText(shown).width;
      const middle = (band.y0 + band.y1) / 2;
      context.globalAlpha = 0.82;
      context.fillStyle = paper;
      context.fillRect(band.x0 + 3, middle - 7, w + 4, 14);
      context.globalAlpha = 1;
      context.fillStyle = ink;
      context.fillText(shown, band.x0 + 5, middle);
    }
  }

  function fitted(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    const keep = Math.floor((text.length * room) / context.measureText(text).width) - 1;
    return keep < 4 ? "" : `…${text.slice(text.length - keep)}`;
  }

  // Bounds, the program as it is where another one is shown, and the chosen moment.
  function lines(context, ink) {
    context.save();
    context.beginPath();
    context.rect(MARGIN.left, 0, width - MARGIN.left - MARGIN.right, HEIGHT);
    context.clip();
    context.strokeStyle = ink;
    context.fillStyle = ink;
    if (state.program !== 0) {
      const first = doc.programs[0];
      const scale = program().points.length / first.points.length;
      context.setLineDash([5, 3]);
      context.lineWidth = 1.3;
      context.beginPath();
      first.points.forEach((point, i) => {
        context.lineTo(x(i * scale), y(point.nbytes));
        context.lineTo(x((i + 1) * scale), y(point.nbytes));
      });
      context.stroke();
    }
    context.setLineDash([2, 3]);
    context.lineWidth = 1.5;
    for (const each of bounds()) {
      if (y(each.nbytes) < MARGIN.top - 8) continue;
      context.beginPath();
      context.moveTo(MARGIN.left, y(each.nbytes));
      context.lineTo(width - MARGIN.right, y(each.nbytes));
      context.stroke();
      context.textBaseline = "bottom";
      context.fillText(`${each.name}: ${bytes(each.nbytes)}`, MARGIN.left + 4, y(each.nbytes) - 2);
    }
    context.setLineDash([]);
    // Above what is live and below the axis, so that it hides nothing.
    const at = Math.min(state.at ?? program().at, program().points.length - 1);
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x(at + 0.5), MARGIN.top - 4);
    context.lineTo(x(at + 0.5), y(program().points[at].nbytes) - 1);
    context.moveTo(x(at + 0.5), HEIGHT - MARGIN.bottom + 1);
    context.lineTo(x(at + 0.5), HEIGHT - MARGIN.bottom + 7);
    context.stroke();
    const peak = program().at;
    context.textBaseline = "top";
    const label = `▼ peak ${bytes(program().nbytes)}`;
    const left = Math.min(x(peak + 0.5) - 4, width - MARGIN.right - context.measureText(label).width);
    context.fillText(label, left, 2);
    context.restore();
  }

  function axes() {
    const ops = (i) => (program().op ? program().op[Math.min(program().op.length - 1, Math.round(i))] : Math.round(i));
    const horizontal = axisBottom(x).ticks(Math.min(10, width / 90)).tickFormat((i) => (Number.isInteger(i) ? ops(i) : ""));
    const top = y.domain()[1];
    const unit = 1024 ** Math.floor(Math.log(Math.max(top, 1)) / Math.log(1024));
    const inUnits = scaleLinear([0, top / unit], y.range());
    const vertical = axisLeft(inUnits).ticks(6).tickFormat((n) => bytes(n * unit));
    overlay.selectAll("*").remove();
    overlay.append("g").attr("transform", `translate(0,${HEIGHT - MARGIN.bottom})`).call(horizontal);
    overlay.append("g").attr("transform", `translate(${MARGIN.left},0)`).call(vertical);
    overlay.append("text").attr("x", width - MARGIN.right).attr("y", HEIGHT - 4).attr("text-anchor", "end").text(`op, in program order (of ${program().ops})`);
    phases();
  }

  function phases() {
    const points = program().points;
    if (!points.some(pass)) return;
    let start = 0;
    for (let i = 1; i <= points.length; i += 1) {
      if (i < points.length && passOf(points[i]) === passOf(points[start])) continue;
      const x0 = Math.max(MARGIN.left, x(start));
      const x1 = Math.min(width - MARGIN.right, x(i));
      if (x1 - x0 > 3) {
        const row = overlay.append("g").attr("class", "phase");
        row.append("rect").attr("x", x0).attr("y", HEIGHT - 22).attr("width", x1 - x0 - 1).attr("height", 4).attr("class", passOf(points[start]));
        if (x1 - x0 > 58) row.append("text").attr("x", x0).attr("y", HEIGHT - 6).text(passOf(points[start]));
      }
      start = i;
    }
  }

  // A program without a gradient is one pass, which has no name of its own.
  function pass(point) {
    return point.phase === "program" ? "" : point.phase;
  }

  function passOf(point) {
    return point.phase === "recompute" ? "backward" : point.phase;
  }

  function describe() {
    const found = program();
    const at = Math.min(state.at ?? found.at, found.points.length - 1);
    const point = found.points[at];
    const live = liveAt(found, at);
    const kinds = byKind(live);
    const line = point.place ?? point.library;
    const shown = live.values.slice(0, state.all ? live.values.length : LISTED);
    clear(moment);
    const total = point.nbytes;
    const first = doc.programs[0];
    const versus = state.program === 0 ? "" : ` · peak ${bytes(first.nbytes)} → ${bytes(found.nbytes)} (${signed(found.nbytes - first.nbytes)})`;
    add(moment, [
      el(
        "h2",
        {},
        `${at === found.at ? "At the peak" : "At"} op ${found.op ? found.op[at] : at} of ${found.ops}: ${bytes(total)} live`,
      ),
      el("p", {}, [point.primitive, line && where(line), pass(point)].filter(Boolean).join(" · "), versus),
      line?.code && el("pre", { class: "code" }, line.code),
      el("div", { class: "beside" },
      table(
        "What it is made of",
        [
          ["kind", (each) => [swatch(style(each.kind)), " ", style(each.kind).word]],
          ["bytes", (each) => bytes(each.nbytes), "number"],
          ["share", (each) => percent(each.nbytes, total), "number"],
        ],
        kinds,
        (each) => ({ "data-kind": each.kind, "data-nbytes": each.nbytes }),
      ),
      table(
        "Lines of code with most of it",
        [
          ["bytes", (each) => bytes(each.nbytes), "number"],
          ["share", (each) => percent(each.nbytes, total), "number"],
          ["line", (each) => where(each.place)],
          ["code", (each) => el("code", {}, each.place.code)],
        ],
        byLine(live).slice(0, 7),
      )),
      table(
        `What is live there (${live.values.length})`,
        [
          ["kind", (each) => [swatch(style(each.kind)), " ", style(each.kind).word]],
          ["bytes", (each) => bytes(each.nbytes), "number"],
          ["share", (each) => percent(each.nbytes, total), "number"],
          ["value", (each) => each.path || each.primitive || (each.count > 1 ? `${each.count} small ones` : "")],
          ["shape", (each) => each.aval],
          ["line", (each) => el("span", { title: own(each)?.code ?? "" }, where(own(each)))],
          ["module", (each) => each.scope],
          ["until", (each) => until(found, each)],
        ],
        shown,
        (each) => ({ "data-nbytes": each.nbytes }),
      ),
      live.values.length > shown.length &&
        el("button", { type: "button", onclick: () => state.set({ all: true }, { quiet: true }) ?? describe() }, `show all ${live.values.length}`),
      live.rest > 0 && el("p", {}, `Smaller values that the page does not list: ${bytes(live.rest)}.`),
    ]);
    canvas.setAttribute(
      "aria-label",
      `Live bytes over the program: peak ${bytes(found.nbytes)} at op ${found.op ? found.op[found.at] : found.at}. ` +
        `Chosen: op ${at}, ${bytes(total)}: ${kinds.map((each) => `${style(each.kind).word} ${bytes(each.nbytes)}`).join(", ")}.`,
    );
    clear(legend);
    const present = [...new Set(found.values.map((value) => value.kind))].sort((a, b) => style(a).order - style(b).order);
    add(legend, [
      ...present.map((kind) => el("li", {}, swatch(style(kind)), " ", style(kind).word)),
      live.rest > 0 && el("li", {}, swatch(REST), " ", REST.word),
      state.program !== 0 && el("li", {}, "┄ the program as it is"),
    ]);
  }

  function byLine(live) {
    const sums = new Map();
    for (const value of live.values) {
      const line = own(value);
      if (!line) continue;
      const key = where(line);
      if (!sums.has(key)) sums.set(key, { place: line, nbytes: 0 });
      sums.get(key).nbytes += value.nbytes;
    }
    return [...sums.values()].sort((a, b) => b.nbytes - a.nbytes);
  }

  function until(found, value) {
    if (value.stop >= found.points.length) return "the end";
    const point = found.points[value.stop - 1];
    return value.read ? `${where(value.read)} reads it` : `op ${found.op ? found.op[value.stop - 1] : value.stop - 1} (${point.primitive})`;
  }

  function hover(event) {
    const [px, py] = pointer(event, canvas);
    const index = Math.floor(x.invert(px));
    if (px < MARGIN.left || px > width - MARGIN.right || index < 0 || index >= program().points.length) {
      tip.hidden = true;
      return;
    }
    const band = bands.find((each) => each.x0 <= px && px < each.x1 && each.y1 <= py && py < each.y0);
    const point = program().points[index];
    clear(tip);
    if (band?.value) {
      const value = band.value;
      const line = own(value);
      add(tip, [
        el("strong", {}, `${bytes(value.nbytes)} ${style(value.kind).word}`),
        el("div", {}, [value.aval, value.path || value.primitive, value.count > 1 ? `×${value.count}` : ""].filter(Boolean).join("  ")),
        line && el("div", {}, `${where(line)} in ${line.function}`),
        line && el("code", {}, line.code),
        value.scope && el("div", {}, `module ${value.scope}`),
        el("div", {}, reason(value.reason)),
        el("div", {}, `live from op ${program().op ? program().op[value.start] : value.start} until ${until(program(), value)}`),
        value.inside && el("div", {}, `anew in each trip of the loop at ${where(value.inside)}`),
      ]);
    } else {
      add(tip, [
        el("strong", {}, band ? `small ${style(band.kind).word}` : `${bytes(point.nbytes)} live`),
        el("div", {}, [point.primitive, where(point.place ?? point.library), pass(point)].filter(Boolean).join(" · ")),
      ]);
    }
    tip.hidden = false;
    const left = px + 16 + tip.offsetWidth > width ? px - 16 - tip.offsetWidth : px + 16;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${Math.min(py + 12, HEIGHT - 20)}px`;
  }

  canvas.addEventListener("pointermove", hover);
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
  });
  canvas.addEventListener("click", (event) => {
    const [px] = pointer(event, canvas);
    choose(Math.floor(x.invert(px)));
  });
  canvas.addEventListener("keydown", (event) => {
    const at = state.at ?? program().at;
    const step = event.shiftKey ? 10 : 1;
    const moves = { ArrowLeft: at - step, ArrowRight: at + step, Home: 0, End: program().points.length - 1, p: program().at, P: program().at };
    if (event.key in moves) {
      event.preventDefault();
      choose(moves[event.key]);
    } else if (event.key === "+" || event.key === "=") scaled(2);
    else if (event.key === "-") scaled(0.5);
    else if (event.key === "Escape" || event.key === "0") reset();
  });

  return {
    view,
    show() {
      layout();
      describe();
    },
  };
}

function pattern(context, { colour, pattern: name }, ink) {
  if (!name) return colour;
  const tile = document.createElement("canvas");
  tile.width = 8;
  tile.height = 8;
  const paint = tile.getContext("2d");
  paint.fillStyle = colour;
  paint.fillRect(0, 0, 8, 8);
  paint.globalAlpha = 0.28;
  paint.strokeStyle = ink;
  paint.fillStyle = ink;
  paint.beginPath();
  if (name === "diagonal") {
    for (const shift of [-8, 0, 8]) {
      paint.moveTo(shift, 8);
      paint.lineTo(shift + 8, 0);
    }
  } else if (name === "horizontal") {
    paint.moveTo(0, 4);
    paint.lineTo(8, 4);
  } else if (name === "vertical") {
    paint.moveTo(4, 0);
    paint.lineTo(4, 8);
  } else {
    paint.fillRect(2, 2, 1.5, 1.5);
    paint.fillRect(6, 6, 1.5, 1.5);
  }
  paint.stroke();
  return context.createPattern(tile, "repeat");
}
