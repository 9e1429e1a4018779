// The programs that one can look at: without a checkpoint, with a policy, with the plan.

import { bytes, share, where } from "./data.js";
import { add, clear, el, table } from "./dom.js";

export function checkpoints(state) {
  const { doc } = state;
  const view = el("section", { class: "view" });

  function draw() {
    clear(view);
    add(view, [
      el("p", {}, "What the program would be without each checkpoint. Choose a row to see its timeline."),
      table(
        "Checkpoints",
        [
          ["checkpoint", (each) => [each.function, " ", el("span", { class: "hint" }, where(each.place))]],
          ["policy", (each) => each.policy ?? "nothing saved"],
          ["verdict", (each) => el("span", { title: each.reason }, each.verdict)],
          ["peak", (each) => bytes(each.peak), "number"],
          ["peak without it", (each) => bytes(each.peak_without), "number"],
          ["it saves", (each) => (each.peak === null || each.peak_without === null ? "unknown" : bytes(each.peak_without - each.peak)), "number"],
          ["recompute", (each) => share(each.recompute), "number"],
          ["", (each) => chooser(state, each.program, `without ${each.function}`)],
        ],
        doc.checkpoints,
        (each) => ({ class: each.program === state.program ? "chosen" : null }),
      ),
      state.program !== 0 && el("p", {}, el("button", { type: "button", onclick: () => state.set({ program: 0, at: null }) }, "back to the program as it is")),
      ...doc.checkpoints.filter((each) => each.reason).map((each) => el("p", {}, el("strong", {}, `${each.function}: ${each.verdict}. `), each.reason)),
    ]);
  }

  return { view, show: draw };
}

export function policies(state) {
  const { doc } = state;
  const view = el("section", { class: "view" });

  function draw() {
    clear(view);
    const rows = [...doc.rows].sort((a, b) => (a.peak ?? Infinity) - (b.peak ?? Infinity));
    const limit = doc.budget ?? doc.on[0]?.memory;
    const hasKept = rows.some((each) => each.kept !== null);
    const hasTime = rows.some((each) => each.time !== null);
    add(view, [
      doc.diff?.length && el("div", {}, el("h2", {}, "The plan"), el("pre", { class: "code" }, doc.diff.join("\n"))),
      el("p", {}, "Choose a row to see its timeline. ● no other row has both a lower peak and less to recompute; ◆ the knee, beyond which saving memory gets expensive; ▶ ", doc.kind === "plan" ? "the plan." : "the one to take."),
      table(
        doc.kind === "plan" ? "Plans that no other beats" : "Policies",
        [
          ["", (each) => (each.chosen ? "▶" : each.knee ? "◆" : each.pareto ? "●" : "")],
          ...(rows.some((each) => each.letter) ? [["letter", (each) => each.letter]] : []),
          ["policy", (each) => each.name],
          ["at", (each) => each.at],
          ...(hasKept ? [["kept", (each) => bytes(each.kept), "number"]] : []),
          ["peak", (each) => (each.error ? each.error : each.xla !== null ? `${bytes(each.xla)} by XLA` : bytes(each.peak)), "number"],
          ["interval", (each) => (each.xla === null && each.low !== null ? `${bytes(each.low)} to ${bytes(each.high)}` : ""), "number"],
          ["fits", (each) => fits(each, limit)],
          ["recompute", (each) => share(each.recompute), "number"],
          ...(hasTime ? [["time", (each) => share(each.time), "number"]] : []),
          ["", (each) => chooser(state, each.program, each.name)],
        ],
        rows,
        (each) => ({ class: each.program !== null && each.program === state.program ? "chosen" : null, "data-peak": each.xla ?? each.peak }),
      ),
    ]);
  }

  return { view, show: draw };
}

export function fits(row, limit) {
  if (!limit || row.peak === null) return "";
  if (row.xla !== null) return row.xla <= limit ? "fits, by XLA" : "does not fit, by XLA";
  if (row.low === null) return "";
  return row.high <= limit ? "fits" : row.low > limit ? "does not fit" : "too close to tell";
}

function chooser(state, program, name) {
  if (program === null || program === undefined) return "";
  return el("button", { type: "button", "aria-label": `Timeline: ${name}`, "aria-pressed": String(program === state.program), onclick: () => state.set({ program, at: null, from: null, to: null, tab: "timeline" }) }, "timeline");
}
