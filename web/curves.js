// Loss, validation, throughput, MFU, gradient norm, learning rate and step time of the selected runs, side by side.
class Curves {
  constructor() {
    this.range = null;
    this.data = new Map();  // run → series
    const chart = (title, key, unit, more) => {
      const made = new Chart({ title, unit, onZoom: (from, to) => this.zoom(from, to), ...more });
      made.of = key;
      return made;
    };
    this.charts = [
      chart("Loss (dashed: validation)", "loss", (v) => number(v), { wide: true, height: 270 }),
      chart("Tokens per second", "tokens_per_s", (v) => count(v), { fromZero: true }),
      chart("MFU", "mfu", (v) => percent(v), { fromZero: true }),
      chart("Gradient norm", "grad_norm", (v) => number(v, 3)),
      chart("Learning rate", "lr", (v) => number(v, 3), { fromZero: true }),
      chart("Peak memory of a rank", "memory_bytes", (v) => bytes(v), { fromZero: true, bytes: true }),
      chart("Bytes sent per step and rank", "bytes_sent_per_step", (v) => bytes(v), { fromZero: true, bytes: true }),
      chart("Step time", "step_ms", (v) => seconds(v / 1e3), { fromZero: true }),
    ];
    const log = h("input", { type: "checkbox", onchange: () => { this.charts[0].log = log.checked; this.charts[0].draw(); } });
    this.all = h("button", { type: "button", onclick: () => this.zoom(null, null), hidden: true }, "All steps");
    this.element = card("Curves", [h("label", {}, log, "log scale"), this.all], h("div", { class: "grid" }, this.charts.map((one) => one.element)));
  }

  keys() { return ["loss", "val_loss", "tokens_per_s", "mfu", "grad_norm", "lr", "step_ms", "memory_bytes", "bytes_sent_per_step", "exposed_ms", "waited_ms"]; }
  buckets() { return Math.max(200, Math.min(1200, Math.round(this.element.clientWidth || 800))); }

  zoom(from, to) {
    this.range = from === null ? null : [from, to];
    this.all.hidden = !this.range;
    say(this.range ? `steps ${Math.round(from)} to ${Math.round(to)}` : "all steps");
    this.draw();
    if (source.live) this.load(this.chosen);
  }

  async load(chosen) {  // [{name, style}]
    this.chosen = chosen;
    const got = await Promise.all(chosen.map((run) => source.series(run.name, this.keys(), this.range?.[0], this.range?.[1], this.buckets())));
    this.data = new Map(chosen.map((run, i) => [run.name, got[i].keys]));
    this.draw();
    return this.data;
  }

  draw() {
    for (const chart of this.charts) {
      const lines = [];
      for (const run of this.chosen || []) {
        const keys = this.data.get(run.name);
        if (!keys) continue;
        lines.push({ name: run.name, style: run.style, data: keys[chart.of] });
        if (chart.of === "loss" && keys.val_loss?.x.length) lines.push({ name: `${run.name} validation`, style: run.style, dashed: true, dots: true, data: keys.val_loss });
      }
      chart.set(lines, this.range, this.marks);
    }
  }
}
