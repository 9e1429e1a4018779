// What XLA says, beside the estimate: parts, and buffers with their padding.

import { bytes, liveAt, percent, where } from "./data.js";
import { add, clear, el, table } from "./dom.js";

export function compiled(state) {
  const { doc } = state;
  const view = el("section", { class: "view" });

  function draw() {
    clear(view);
    for (const found of doc.compiled) {
      const name = `${found.on}${found.policy === "as-written" ? "" : `, ${found.policy}`}`;
      const verdict = found.fits === true ? "fits" : found.fits === false ? "does not fit" : "not known whether it fits";
      const program = doc.programs[0];
      add(view, [
        el("h2", {}, `${name}: ${found.error ? "no figures" : `${bytes(found.peak)}, ${verdict}`}`),
        found.error && el("pre", {}, found.error),
        el(
          "p",
          {},
          [
            found.capacity && `of ${bytes(found.capacity)}`,
            found.estimate !== null && `estimate ${bytes(found.estimate)}${found.low !== null ? ` (${bytes(found.low)} to ${bytes(found.high)})` : ""}`,
            found.compiler,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
        table(
          "Parts",
          [
            ["part", (each) => each[0]],
            ["bytes", (each) => bytes(each[1]), "number"],
          ],
          [
            ["arguments", found.arguments],
            ["outputs", found.outputs],
            ["temporaries", found.temporaries],
            ["aliased", found.aliased === null ? null : -found.aliased],
            ["peak by XLA", found.peak],
            ["peak, estimate", found.estimate],
          ].filter(([, n]) => n !== null),
        ),
        found.buffers.length > 0 &&
          table(
            `XLA's buffers at its peak: ${bytes(found.live)}`,
            [
              ["kind", (each) => each.kind],
              ["bytes", (each) => bytes(each.nbytes), "number"],
              ["padding", (each) => (each.dense !== null && each.nbytes > each.dense ? `${bytes(each.nbytes - each.dense)} (${percent(each.nbytes - each.dense, each.nbytes)})` : ""), "number"],
              ["count", (each) => (each.count > 1 ? `×${each.count}` : ""), "number"],
              ["shape", (each) => each.shape],
              ["value", (each) => each.residual ?? each.opcode],
              ["line", (each) => el("span", { title: each.place?.code ?? "" }, where(each.place))],
              ["module", (each) => each.scope],
            ],
            found.buffers,
            (each) => ({ "data-nbytes": each.nbytes }),
          ),
        program &&
          found.buffers.length > 0 &&
          table(
            `The estimate's values at its peak: ${bytes(program.nbytes)}`,
            [
              ["kind", (each) => each.kind],
              ["bytes", (each) => bytes(each.nbytes), "number"],
              ["shape", (each) => each.aval],
              ["value", (each) => each.path || each.primitive],
              ["line", (each) => el("span", { title: each.place?.code ?? "" }, where(each.place))],
              ["module", (each) => each.scope],
            ],
            liveAt(program, program.at).values.slice(0, 100),
          ),
      ]);
    }
  }

  return { view, show: draw };
}
