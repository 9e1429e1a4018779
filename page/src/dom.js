// Elements, made without HTML: text is text.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  add(node, children);
  return node;
}

export function add(node, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function clear(node) {
  node.replaceChildren();
  return node;
}

// Columns: [heading, cell of a row, "number"?]
export function table(caption, columns, rows, attributes = () => ({})) {
  const head = el("tr", {}, ...columns.map(([name, , kind]) => el("th", { scope: "col", class: kind }, name)));
  const body = rows.map((row) => el("tr", attributes(row), ...columns.map(([, cell, kind]) => el("td", { class: kind }, cell(row)))));
  return el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": caption }, el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...body)));
}

export function swatch(style) {
  return el("span", { class: `swatch ${style.pattern}`, "data-kind": style.kind, "aria-hidden": "true" });
}
