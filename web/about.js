// Description of a run: model, data, method, hardware, duration; in a report also text sampled from its model.
class AboutPanel {
  constructor() {
    this.body = h("div");
    this.element = card("About this run", [], this.body);
  }
  show(brief, detail, sample) {
    const keys = keysOf(detail.run_toml), summary = detail.summary || {}, row = brief.row || {};
    const key = (name) => (keys.get(name) || "").replace(/^(["'])(.*)\1$/, "$2"), machine = summary.hardware;
    const numbers = [["layers", "layers"], ["dim", "dimensions"], ["heads", "heads"], ["seq_len", "tokens of context"]].filter(([name]) => Number(key(`model.${name}`)))
      .map(([name, word]) => `${key(`model.${name}`)} ${word}`);
    const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`, ranks = (detail.ranks || []).length || summary.world || 1;
    const facts = [
      ["Model", [key("model.preset") || key("model.arch"), summary.parameters && `${count(summary.parameters)} parameters`, ...numbers]],
      ["Data", [key("data.train").replace(/[[\]"']/g, "").trim(), key("data.tokenizer") && `tokenizer ${key("data.tokenizer")}`, key("train.global_batch") && `batches of ${key("train.global_batch")} sequences`]],
      ["Method", [row.method, row.compressor && row.compressor !== "none" && `compressor ${row.compressor}`, row.layout, key("train.optimizer"), key("train.precision")]],
      ["Hardware", machine ? [machine.name, `${plural(ranks, "rank")} on ${plural(machine.hosts, "host")}`, `${plural(machine.threads_per_rank, "thread")} per rank`,
        machine.peak_flops && `peak ${scaled(machine.peak_flops, ["", "k", "M", "G", "T", "P"], 1000)}FLOP/s`] : [plural(ranks, "rank"), key("run.device")]],
      ["Duration", [summary.wall_s && seconds(summary.wall_s), `${(row.steps ?? brief.step).toLocaleString("en")} steps`, brief.state]],
    ];
    this.body.replaceChildren(h("dl", { class: "facts" }, facts.map(([name, parts]) => [h("dt", {}, name), h("dd", {}, parts.filter(Boolean).join(", ") || "-")])),
      ...sample ? [h("h3", {}, "What it writes"), sample.text !== undefined ? [h("pre", { class: "sample" }, sample.text),
        h("p", { class: "quiet" }, `Sampled from the checkpoint of step ${sample.step}: temperature ${sample.temperature}, seed ${sample.seed}.`)]
        : h("p", { class: "quiet" }, `No sample: ${sample.none}.`)].flat() : []);
  }
}
