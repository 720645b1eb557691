// DOM helpers. Text is always set as text, never parsed as HTML, so run names cannot inject markup.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, to] of Object.entries(value)) element.style.setProperty(key, to);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function say(text) {  // announces text to screen readers
  document.getElementById("said").textContent = text;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function card(title, tools, ...children) {
  const id = "card-" + title.toLowerCase().replace(/[^a-z]+/g, "-");
  return h("section", { class: "card", "aria-labelledby": id },
    h("div", { class: "head" }, h("h2", { id }, title), h("div", { class: "tools" }, tools || [])), ...children);
}

// Table with a caption for screen readers. Also shows the data of a chart as text.
function table(head, rows, caption) {
  const cell = (tag, value, i) => h(tag, { class: value instanceof Node ? "text" : typeof value === "string" && i > 0 && !/^[\d−+.<–-]/.test(value) ? "text" : null,
    scope: tag === "th" ? "col" : null }, value instanceof Node ? value : String(value));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden-text" }, caption),
      h("thead", {}, h("tr", {}, head.map((value, i) => cell("th", value, i)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value, i) => cell("td", value, i)))))));
}
function asTable(head, rows, caption) {
  return h("details", {}, h("summary", {}, "As a table"), table(head, rows, caption));
}

function onResize(element, draw) {
  let width = 0;
  new ResizeObserver((entries) => {
    const now = Math.round(entries[0].contentRect.width);
    if (now !== width && now > 0) { width = now; draw(now); }
  }).observe(element);
}
const darkness = matchMedia("(prefers-color-scheme: dark)");
