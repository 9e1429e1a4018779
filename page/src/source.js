// Code with bytes in the margin.

import { bytes, liveAt, percent, shortened, style } from "./data.js";
import { add, clear, el, swatch, table } from "./dom.js";

export function source(state) {
  const { doc } = state;
  const choice = el("select", { id: "file", onchange: (event) => pick(event.target.value) });
  const listing = el("div", { class: "listing" });
  const detail = el("div", { class: "detail", "aria-live": "polite" });
  const view = el("section", { class: "view" }, el("p", {}, el("label", { for: "file" }, "File: "), choice), listing, detail);

  function program() {
    return doc.programs[state.program];
  }

  // file -> line -> {kept, live, values}
  function figures() {
    const files = new Map();
    const count = (place, name, value) => {
      if (!place) return;
      if (!files.has(place.file)) files.set(place.file, new Map());
      const lines = files.get(place.file);
      if (!lines.has(place.line)) lines.set(place.line, { line: place.line, kept: 0, live: 0, values: [], code: place.code, function: place.function });
      const found = lines.get(place.line);
      found[name] += value.nbytes;
      if (name === "live") found.values.push(value);
    };
    const each = (name, values) => {
      for (const value of values) {
        count(value.place, name, value);
        if (value.library && value.library.file !== value.place?.file) count(value.library, name, value);
      }
    };
    if (doc.residuals && state.program === 0) each("kept", doc.residuals);
    if (program()) each("live", liveAt(program(), Math.min(state.at ?? program().at, program().points.length - 1)).values);
    return files;
  }

  function pick(file) {
    state.set({ file }, { quiet: true });
    draw();
  }

  function draw() {
    const files = figures();
    const sums = [...files].map(([file, lines]) => ({ file, live: total(lines, "live"), kept: total(lines, "kept") }));
    const isOwn = (file) => !file.startsWith("/") && !file.includes("site-packages");
    sums.sort((a, b) => isOwn(b.file) - isOwn(a.file) || b.live + b.kept - a.live - a.kept);
    const file = files.has(state.file) ? state.file : sums[0]?.file;
    clear(choice);
    add(choice, sums.map((each) => el("option", { value: each.file, selected: each.file === file }, `${shortened(each.file)}  (${bytes(each.live)} live, ${bytes(each.kept)} kept)`)));
    clear(listing);
    clear(detail);
    if (!file) {
      add(listing, [el("p", {}, "No line of source is known.")]);
      return;
    }
    const lines = files.get(file);
    const most = Math.max(1, ...[...lines.values()].map((each) => Math.max(each.live, each.kept)));
    const hasKept = doc.residuals && state.program === 0;
    const body = [];
    let before = null;
    const known = doc.code[file] ?? {};
    const numbers = [...new Set([...Object.keys(known).map(Number), ...lines.keys()])].sort((a, b) => a - b);
    for (const number of numbers) {
      if (before !== null && number > before + 1) body.push(el("tr", { class: "gap" }, el("td", { colspan: "4" }, "⋯")));
      before = number;
      const found = lines.get(number);
      body.push(
        el(
          "tr",
          found ? { class: "has", tabindex: "0", "data-live": found.live, "data-kept": found.kept, onclick: () => tell(found), onkeydown: (event) => event.key === "Enter" && tell(found) } : {},
          el("td", { class: "number bar" }, found && hasKept ? bar(found.kept, most) : null),
          el("td", { class: "number bar" }, found ? bar(found.live, most) : null),
          el("td", { class: "number" }, String(number)),
          el("td", { class: "code" }, el("code", {}, known[number] ?? found?.code ?? "")),
        ),
      );
    }
    add(listing, [
      el(
        "table",
        { class: "source" },
        el("caption", {}, shortened(file)),
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, hasKept ? "kept" : ""), el("th", { scope: "col" }, "live"), el("th", { scope: "col" }, "line"), el("th", { scope: "col" }, "code"))),
        el("tbody", {}, ...body),
      ),
    ]);
    add(detail, [el("p", {}, "kept: for the backward pass. live: at the moment chosen in the timeline, the peak unless another one is chosen. Choose a line to list its values.")]);
  }

  function bar(nbytes, most) {
    if (!nbytes) return null;
    const meter = el("span", { class: "meter" });
    meter.style.width = `${Math.max(1, (60 * nbytes) / most)}px`;
    return [el("span", {}, bytes(nbytes)), meter];
  }

  function tell(found) {
    clear(detail);
    const sum = found.live;
    add(detail, [
      table(
        `Live values of line ${found.line}: ${bytes(found.live)}${found.kept ? `; kept: ${bytes(found.kept)}` : ""}`,
        [
          ["kind", (each) => [swatch(style(each.kind)), " ", style(each.kind).word]],
          ["bytes", (each) => bytes(each.nbytes), "number"],
          ["share", (each) => percent(each.nbytes, sum), "number"],
          ["value", (each) => each.path || each.primitive],
          ["shape", (each) => each.aval],
          ["module", (each) => each.scope],
        ],
        found.values.slice(0, 200),
      ),
    ]);
  }

  return { view, show: draw };
}

function total(lines, name) {
  return [...lines.values()].reduce((sum, each) => sum + each[name], 0);
}
