// Compares two run files key by key.
function keysOf(text) {
  const keys = new Map();
  let section = "";
  for (const line of (text || "").split("\n")) {
    const head = /^\s*\[(.+)\]\s*$/.exec(line), pair = /^\s*([^=#\s]+)\s*=\s*(.*?)\s*$/.exec(line);
    if (head) section = head[1];
    else if (pair) keys.set(`${section}.${pair[1]}`, pair[2]);
  }
  return keys;
}

class DiffPanel {
  constructor(load) {
    this.load = load;
    this.left = h("select", { "aria-label": "First run", onchange: () => this.draw() });
    this.right = h("select", { "aria-label": "Second run", onchange: () => this.draw() });
    this.every = h("input", { type: "checkbox", onchange: () => this.draw() });
    this.body = h("div", { class: "diff" });
    this.element = card("Run files compared", [this.left, " with ", this.right, h("label", {}, this.every, "all keys")], this.body);
  }
  show(names, focus) {
    for (const [select, wish] of [[this.left, focus], [this.right, names.find((name) => name !== focus) || focus]]) {
      const before = select.value;
      select.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
      select.value = names.includes(before) ? before : wish;
    }
    this.draw();
  }
  async draw() {
    if (!this.left.value) return;
    const [a, b] = await Promise.all([this.load(this.left.value), this.load(this.right.value)]);
    const one = keysOf(a.run_toml), two = keysOf(b.run_toml), rows = [];
    for (const key of [...new Set([...one.keys(), ...two.keys()])].sort()) {
      const same = one.get(key) === two.get(key);
      if (same && !this.every.checked) continue;
      const mark = (value) => same ? value ?? "–" : h("ins", {}, value ?? "–");
      rows.push([key, h("span", {}, mark(one.get(key))), h("span", {}, mark(two.get(key)))]);
    }
    this.body.replaceChildren(rows.length ? table(["key", this.left.value, this.right.value], rows, "Run files compared")
      : h("p", { class: "quiet" }, this.left.value === this.right.value ? "Both sides show the same run. Select another run." : "The run files have no differences."));
  }
}
