// The page: its heading, the program that is looked at, and one view at a time.

import { bytes, load, signed } from "./data.js";
import { compiled } from "./compiled.js";
import { difference } from "./difference.js";
import { add, clear, el } from "./dom.js";
import { icicle } from "./icicle.js";
import { pareto } from "./pareto.js";
import { source } from "./source.js";
import { timeline } from "./timeline.js";
import { checkpoints, policies } from "./variants.js";

const doc = load(document.getElementById("data"));

const state = {
  doc,
  tab: null,
  program: 0,
  at: null, // the chosen point; null: the peak
  from: null,
  to: null,
  count: null,
  file: null,
  all: false,
  set(changes, { quiet = false } = {}) {
    const before = { tab: state.tab, program: state.program };
    Object.assign(state, changes);
    remember();
    if (!quiet || before.tab !== state.tab || before.program !== state.program) show();
  },
};

const VIEWS = [
  ["timeline", "Timeline", timeline, () => doc.programs.length],
  ["icicle", "Icicle", icicle, () => doc.programs.length || doc.residuals?.nbytes],
  ["source", "Source", source, () => doc.programs.length],
  ["checkpoints", "Checkpoints", checkpoints, () => doc.checkpoints?.length],
  ["policies", doc.kind === "plan" ? "Plans" : "Policies", policies, () => doc.rows?.length],
  ["pareto", "Pareto", pareto, () => doc.rows?.length > 1],
  ["diff", "Changes", difference, () => doc.lines],
  ["xla", "XLA", compiled, () => doc.compiled?.length],
  ["text", "Text", text, () => true],
].filter(([, , , has]) => has());

const built = new Map();

function text() {
  return { view: el("section", { class: "view" }, el("pre", { class: "text", tabindex: "0" }, doc.text)), show() {} };
}

const KEYS = { tab: String, program: Number, at: Number, from: Number, to: Number, count: String, file: String };

function remember() {
  const found = new URLSearchParams();
  for (const key of Object.keys(KEYS)) {
    const value = state[key];
    if (value !== null && value !== undefined && !(key === "program" && value === 0)) found.set(key, value);
  }
  history.replaceState(null, "", `#${found}`);
}

function recall() {
  const found = new URLSearchParams(location.hash.slice(1));
  for (const [key, read] of Object.entries(KEYS)) {
    if (!found.has(key)) state[key] = key === "program" ? 0 : null;
    else {
      const value = read(found.get(key));
      state[key] = Number.isNaN(value) ? null : value;
    }
  }
  if (!doc.programs[state.program]) state.program = 0;
  const program = doc.programs[state.program];
  if (program && state.at !== null && !(state.at >= 0 && state.at < program.points.length)) state.at = null;
  if (!VIEWS.some(([name]) => name === state.tab)) state.tab = VIEWS[0][0];
}

const tabs = el("div", { role: "tablist", "aria-label": "Views", class: "tabs" });
const panel = el("div", { role: "tabpanel", id: "panel", "aria-labelledby": "" });
const chooser = el("p", { class: "program" });

function heading() {
  const lines = doc.text.split("\n").map((line) => line.trimEnd());
  const end = lines.indexOf("");
  const first = lines.slice(0, end < 0 ? 3 : Math.min(end, 12)).filter(Boolean);
  const on = doc.on.map((each) => `${each.name}${each.memory ? ` (${bytes(each.memory)})` : ""}`).join(", ");
  const theme = el("button", { type: "button", onclick: toggle, title: "Light or dark" }, "◐ theme");
  return el(
    "header",
    {},
    el("div", { class: "title" }, el("h1", {}, doc.target), el("span", {}, `jaxresid ${doc.kind} · ${on}`), theme),
    el("div", { class: "lead" }, ...first.slice(first[0]?.includes(doc.target) ? 1 : 0).map((line) => el("p", {}, line.trim()))),
    chooser,
  );
}

function toggle() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  show();
}

function choose() {
  clear(chooser);
  if (doc.programs.length < 2) return;
  const label = (program, i) => program.name || (i === 0 ? "the program as it is" : doc.rows?.[i]?.name ?? `program ${i}`);
  const first = doc.programs[0];
  const select = el(
    "select",
    { id: "program", onchange: (event) => state.set({ program: Number(event.target.value), at: null, from: null, to: null }) },
    ...doc.programs.map((program, i) => el("option", { value: i, selected: i === state.program }, `${label(program, i)}: ${bytes(program.nbytes)}`)),
  );
  const now = doc.programs[state.program];
  add(chooser, [
    el("label", { for: "program" }, "Program: "),
    select,
    state.program !== 0 && ` peak ${bytes(first.nbytes)} → ${bytes(now.nbytes)} (${signed(now.nbytes - first.nbytes)}) `,
  ]);
}

function show() {
  clear(tabs);
  for (const [name, word] of VIEWS) {
    const isOn = name === state.tab;
    tabs.append(
      el(
        "button",
        {
          role: "tab",
          id: `tab-${name}`,
          type: "button",
          "aria-selected": String(isOn),
          "aria-controls": "panel",
          tabindex: isOn ? "0" : "-1",
          onclick: () => state.set({ tab: name }),
          onkeydown: moved,
        },
        word,
      ),
    );
  }
  panel.setAttribute("aria-labelledby", `tab-${state.tab}`);
  choose();
  if (!built.has(state.tab)) built.set(state.tab, VIEWS.find(([name]) => name === state.tab)[2](state));
  const view = built.get(state.tab);
  clear(panel).append(view.view);
  view.show();
}

function moved(event) {
  const at = VIEWS.findIndex(([name]) => name === state.tab);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: VIEWS.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  state.set({ tab: VIEWS[(next + VIEWS.length) % VIEWS.length][0] });
  document.getElementById(`tab-${state.tab}`).focus();
}

recall();
document.body.append(el("main", {}, heading(), tabs, panel));
show();
document.documentElement.dataset.ready = "yes";
let waiting = null;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(show, 120);
});
addEventListener("hashchange", () => {
  recall();
  show();
});
addEventListener("beforeprint", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
