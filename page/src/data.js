// The document of the page, and words for its figures.

const KINDS = [
  // kind, its word, its colour (Okabe and Ito's, which the colour-blind tell apart), its pattern
  ["parameters", "parameters", "#0072b2", ""],
  ["optimizer-state", "optimizer state", "#56b4e9", "horizontal"],
  ["frozen-weights", "frozen weights", "#4a6fa5", "dots"],
  ["batch", "batch", "#009e73", ""],
  ["state", "state", "#56b4e9", "horizontal"],
  ["argument", "arguments", "#009e73", ""],
  ["constant", "constants", "#4d7a6a", "dots"],
  ["output", "outputs", "#8c8c8c", "vertical"],
  ["gradient", "gradients", "#d55e00", "dots"],
  ["residual", "residuals", "#cc79a7", "diagonal"],
  ["temporary", "temporaries", "#e69f00", ""],
  ["scratch", "scratch", "#f0e442", "dots"],
];
export const REST = { kind: "rest", word: "smaller values", colour: "#b0b0b0", pattern: "dots" };
const BY_KIND = new Map(KINDS.map(([kind, word, colour, pattern], order) => [kind, { kind, word, colour, pattern, order }]));

export function style(kind) {
  return kind === "rest" ? REST : (BY_KIND.get(kind) ?? { kind, word: kind, colour: "#999999", pattern: "", order: 99 });
}

const REASONS = {
  argument: "an argument: there from the beginning to the end",
  constant: "a constant: there from the beginning to the end",
  output: "an output: its buffer is there from the beginning to the end",
  gradient: "a gradient: it waits for the optimizer",
  residual: "a residual: it waits for the backward pass",
  temporary: "a temporary: it waits for an op of the same pass",
  scratch: "scratch: there only while the op runs that makes it",
};

export function reason(word) {
  return REASONS[word] ?? word ?? "";
}

export function bytes(n) {
  if (n === null || n === undefined) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = Math.abs(n);
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const text = unit === 0 ? String(size) : size >= 100 ? size.toFixed(0) : size.toPrecision(size >= 10 ? 4 : 3);
  return `${n < 0 ? "−" : ""}${text} ${units[unit]}`;
}

export function signed(n) {
  return n > 0 ? `+${bytes(n)}` : n < 0 ? bytes(n) : "0 B";
}

export function percent(part, whole) {
  if (!whole) return "";
  const share = (100 * part) / whole;
  return `${share >= 10 ? share.toFixed(0) : share.toFixed(1)} %`;
}

export function share(fraction) {
  return fraction === null || fraction === undefined ? "" : `${(100 * fraction).toFixed(1)} %`;
}

// Rows of columns: {a: [1, 2], b: [3, 4]} -> [{a: 1, b: 3}, {a: 2, b: 4}]
function rows(columns) {
  const names = Object.keys(columns);
  const count = names.length ? columns[names[0]].length : 0;
  return Array.from({ length: count }, (_, i) => Object.fromEntries(names.map((name) => [name, columns[name][i]])));
}

export function load(element) {
  const doc = JSON.parse(element.textContent);
  const { texts, places, avals } = doc.tables;
  const text = (i) => (i < 0 ? "" : texts[i]);
  const place = (i) => (i < 0 ? null : { file: places[i][0], line: places[i][1], function: places[i][2], code: places[i][3] });
  const known = new Map();
  const placed = (i) => {
    if (!known.has(i)) known.set(i, place(i));
    return known.get(i);
  };
  const valued = (each) => ({
    ...each,
    kind: text(each.kind ?? -1),
    aval: each.aval < 0 ? "" : avals[each.aval],
    primitive: text(each.primitive),
    path: text(each.path),
    place: placed(each.place),
    library: placed(each.library),
    scope: text(each.scope),
  });
  doc.programs = (doc.programs ?? []).map((program) => {
    const points = rows(program.points).map((point) => ({
      ...point,
      primitive: text(point.primitive),
      place: placed(point.place),
      library: placed(point.library),
      phase: text(point.phase),
    }));
    const values = rows(program.values).map((value, id) => ({
      ...valued(value),
      id,
      reason: text(value.reason),
      phase: text(value.phase),
      read: placed(value.read),
      inside: placed(value.inside),
    }));
    // From the bottom: what is there all the time, what waits longest, what comes and goes.
    const order = [...values].sort(
      (a, b) => style(a.kind).order - style(b.kind).order || a.start - b.start || b.stop - a.stop || a.id - b.id,
    );
    return { ...program, points, values, order };
  });
  if (doc.residuals) {
    doc.residuals = rows(doc.residuals).map((each) => ({ ...valued({ ...each, kind: -1 }), kind: "residual", name: text(each.name) }));
  }
  for (const each of doc.checkpoints ?? []) each.place = placed(each.place);
  for (const each of doc.compiled ?? []) {
    for (const buffer of each.buffers) {
      buffer.place = placed(buffer.place);
      buffer.scope = text(buffer.scope);
    }
  }
  for (const line of doc.lines ?? []) {
    line.before = placed(line.before);
    line.after = placed(line.after);
    line.scope = text(line.scope);
  }
  return doc;
}

export function where(place) {
  return place ? shortened(place.file) + (place.line ? `:${place.line}` : "") : "";
}

export function shortened(file) {
  const at = file.lastIndexOf("/site-packages/");
  return at < 0 ? file : file.slice(at + "/site-packages/".length);
}

// The line of a value's own code, else that of the library.
export function own(value) {
  return value.place ?? value.library;
}

// What is live at a point, the biggest first, and the bytes of the smaller values that are not listed.
export function liveAt(program, at) {
  const values = program.order.filter((value) => value.start <= at && at < value.stop);
  const listed = values.reduce((sum, value) => sum + value.nbytes, 0);
  return { values: [...values].sort((a, b) => b.nbytes - a.nbytes), rest: program.points[at].nbytes - listed };
}

export function byKind(live) {
  const sums = new Map();
  for (const value of live.values) sums.set(value.kind, (sums.get(value.kind) ?? 0) + value.nbytes);
  const found = [...sums].map(([kind, nbytes]) => ({ kind, nbytes }));
  if (live.rest > 0) found.push({ kind: "rest", nbytes: live.rest });
  return found.sort((a, b) => b.nbytes - a.nbytes);
}
