// What changed between two versions: figures, and lines by what they keep more.

import { bytes, percent, share, signed, style, where } from "./data.js";
import { add, clear, el, table } from "./dom.js";

export function difference(state) {
  const { doc } = state;
  const view = el("section", { class: "view" });

  function draw() {
    clear(view);
    const [before, after] = doc.sides;
    const kinds = [...new Set([...before.breakdown, ...after.breakdown].map(([kind]) => kind))];
    const part = (side, kind) => side.breakdown.find(([name]) => name === kind)?.[1] ?? 0;
    const figures = [
      ["peak", before.peak, after.peak, bytes],
      ["kept for the backward pass", before.kept, after.kept, bytes],
      ...kinds.map((kind) => [`  ${style(kind).word} at the peak`, part(before, kind), part(after, kind), bytes]),
      ["recompute", before.recompute, after.recompute, share],
    ];
    const most = Math.max(1, ...doc.lines.map((line) => Math.max(...line.kept, ...line.peak)));
    add(view, [
      table(
        "Figures",
        [
          ["", (each) => each[0]],
          [before.label, (each) => each[3](each[1]), "number"],
          [after.label, (each) => each[3](each[2]), "number"],
          ["change", (each) => (each[1] === null || each[2] === null || each[3] !== bytes ? "" : each[2] === each[1] ? "same" : `${signed(each[2] - each[1])} (${percent(Math.abs(each[2] - each[1]), each[1])})`), "number"],
        ],
        figures,
      ),
      table(
        `Lines that differ; ${doc.same} keep the same`,
        [
          ["kept", (each) => signed(each.kept[1] - each.kept[0]), "number"],
          ["before → after", (each) => pair(each.kept, most), "number"],
          ["at the peak", (each) => signed(each.peak[1] - each.peak[0]), "number"],
          ["line", (each) => [where(each.after ?? each.before), each.after ? "" : " (gone)"]],
          ["code", (each) => el("code", {}, (each.after ?? each.before)?.code ?? "")],
          ["module", (each) => each.scope],
        ],
        doc.lines,
        (each) => ({ "data-growth": each.kept[1] - each.kept[0], class: each.kept[1] > each.kept[0] ? "grows" : null }),
      ),
    ]);
  }

  function pair([before, after], most) {
    const bar = (nbytes, name) => {
      const meter = el("span", { class: `meter ${name}` });
      meter.style.width = `${Math.max(nbytes ? 1 : 0, (90 * nbytes) / most)}px`;
      return meter;
    };
    return [`${bytes(before)} → ${bytes(after)}`, bar(before, "before"), bar(after, "after")];
  }

  return { view, show: draw };
}
