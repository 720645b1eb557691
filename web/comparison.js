// Table of the selected runs, with the columns of `espalier compare`.
const kComparison = [["run", "run", String], ["method", "method", String], ["compressor", "compressor", String], ["layout", "layout", String],
  ["steps", "steps", (v) => v.toLocaleString("en")], ["val_loss", "val loss", (v) => v.toFixed(4)], ["tokens_per_s", "tokens/s", count],
  ["bytes_sent_per_step", "sent/step/rank", bytes], ["peak_bytes", "peak memory", bytes], ["wall_s", "wall time", seconds]];

class ComparisonPanel {
  constructor() {
    this.body = h("div", { class: "comparison" });
    this.element = card("Runs compared", [], this.body);
  }
  show(runs) {  // [{brief, style}]
    this.element.hidden = runs.length < 2;
    const key = JSON.stringify(runs.map((run) => [run.brief.row, run.style]));
    if (key === this.key) return;
    this.key = key;
    const cell = (row, [name, , text]) => row[name] === null || row[name] === undefined ? "-" : text(row[name]);
    const rows = runs.map(({ brief, style }) => kComparison.map((column, i) => i > 0 ? cell(brief.row, column)
      : h("span", { class: "named" }, h("i", { class: `swatch f${style}` }), cell(brief.row, column))));
    this.body.replaceChildren(table(kComparison.map((column) => column[1]), rows, "Runs compared"));
  }
}
