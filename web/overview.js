// Overview: key figures, slowest ranks, incidents.
class Overview {
  constructor() { this.element = h("dl", { class: "tiles" }); }
  show(brief, detail, series) {
    const summary = detail.summary || {}, last = (key) => { const d = series?.[key]; return d?.mean?.length ? d.mean[d.mean.length - 1] : null; };
    const tile = (name, value, small, more) => h("div", { class: "tile" + (more ? " " + more : "") }, h("dt", {}, name), h("dd", {}, value, small ? h("small", {}, small) : null));
    const done = detail.steps ? Math.min(1, brief.step / detail.steps) : 0, step_ms = last("step_ms");
    const left = detail.steps && brief.state === "running" && step_ms ? `about ${seconds((detail.steps - brief.step) * step_ms / 1e3)} left` : brief.state;
    const progress = tile("Step", `${brief.step.toLocaleString("en")}${detail.steps ? ` / ${detail.steps.toLocaleString("en")}` : ""}`, left, "progress");
    if (detail.steps) {
      const bar = h("i");
      bar.style.setProperty("width", `${100 * done}%`);
      progress.lastChild.append(h("div", { class: "bar", role: "progressbar", "aria-valuenow": Math.round(100 * done), "aria-label": "Steps done" }, bar));
    }
    const peak = Math.max(0, ...(detail.ranks || []).map((rank) => rank.peak_bytes || 0));
    this.element.replaceChildren(progress, tile("Loss", number(last("loss")), last("val_loss") !== null ? `validation ${number(last("val_loss"))}` : null),
      tile("Tokens per second", count(last("tokens_per_s")), summary.tokens_per_s ? `${count(summary.tokens_per_s)} over the run` : null),
      tile("MFU", percent(last("mfu")), null), tile("Ranks", String((detail.ranks || []).length || summary.world || 1), brief.row.layout),
      tile("Method", brief.row.method || "-", brief.row.compressor && brief.row.compressor !== "none" ? brief.row.compressor : null),
      tile("Sent per step and rank", bytes(brief.row.bytes_sent_per_step), summary.max_bytes_sent_per_step ? `${bytes(summary.max_bytes_sent_per_step)} at most` : null),
      tile("Peak memory of a rank", bytes(peak || summary.peak_bytes), summary.parameters ? `${count(summary.parameters)} parameters` : null),
      tile("Restarts", String(summary.restarts ?? (detail.incidents || []).filter((one) => one.event === "recovered").length), summary.wall_s ? `${seconds(summary.wall_s)} in all` : null));
  }
}

class SlowestPanel {
  constructor(onZoom) {
    this.charts = [new Chart({ title: "Exposed communication per step", unit: (v) => seconds(v / 1e3), fromZero: true, onZoom, height: 140 }),
      new Chart({ title: "Wait for the slowest rank per step", unit: (v) => seconds(v / 1e3), fromZero: true, onZoom, height: 140 })];
    this.ranking = h("div");
    this.element = card("Slowest rank and exposed communication", [], h("div", { class: "grid" }, this.charts.map((one) => one.element)), this.ranking);
  }
  show(detail, chosen, data, range) {
    ["exposed_ms", "waited_ms"].forEach((key, i) => this.charts[i].set(chosen.filter((run) => data.get(run.name)).map((run) => ({ name: run.name, style: run.style, data: data.get(run.name)[key] })), range));
    const slowest = detail.slowest || [], all = slowest.reduce((sum, one) => sum + one.steps, 0), ranks = detail.ranks || [];
    if (ranks.length < 2 && slowest.length < 2) return void this.ranking.replaceChildren(h("p", { class: "quiet" }, "Only one rank: no waiting."));
    const ids = [...new Set([...ranks.map((rank) => rank.rank), ...slowest.map((one) => one.rank)])].sort((a, b) => a - b);
    const rows = ids.map((id) => {
      const times = slowest.find((one) => one.rank === id), rank = ranks.find((one) => one.rank === id);
      return [`rank ${id}`, times ? percent(times.steps / all) : "0 %", times ? seconds(times.waited_ms / 1e3) : "–", rank ? seconds((rank.exposed_ms_per_step || 0) / 1e3) : "–"];
    }).sort((a, b) => parseFloat(b[1]) - parseFloat(a[1]));
    const worst = slowest.slice().sort((a, b) => b.steps - a.steps)[0];
    this.ranking.replaceChildren(h("p", {}, worst && ids.length > 1 ? `Rank ${worst.rank} was the slowest in ${percent(worst.steps / all, 0)} of the logged steps${worst.steps / all > 1.8 / ids.length ? ", more than its share. Check its machine." : "."}` : ""),
      table(["rank", "slowest in", "mean wait of the others", "exposed communication per step"], rows, "How often each rank was the slowest"));
  }
}

class IncidentsPanel {
  constructor() { this.body = h("div"); this.element = card("Restarts and faults", [], this.body); }
  show(detail) {
    const incidents = detail.incidents || [];
    if (!incidents.length) return void this.body.replaceChildren(h("p", { class: "quiet" }, "None recorded."));
    const rest = (one) => Object.entries(one).filter(([key]) => !["event", "step", "wall_s", "mono_s", "seconds"].includes(key)).map(([key, value]) => `${key}: ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
    this.body.replaceChildren(table(["event", "step", "time", "duration", "details"], incidents.map((one) => [String(one.event || "event"), one.step ?? "–", clock(one.wall_s), one.seconds ? seconds(one.seconds) : "–", rest(one)]), "Restarts and faults"));
  }
}
