// Traffic matrix: bytes sent from rank to rank. A table for at most eight ranks, a heat map for more.
// A menu selects one link tier or all of them.
const kMostTabled = 8;
class TrafficPanel {
  constructor() {
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "Bytes sent from rank to rank" });
    this.said = h("p", { class: "quiet" });
    this.choice = h("select", { "aria-label": "Link tier", onchange: () => this.draw() });
    this.rows = h("div");
    this.few = h("div");
    this.map = h("div", {}, this.few, this.canvas, this.said);
    this.nothing = h("p", { class: "quiet" }, "Only one rank: no traffic.");
    this.body = h("div", { class: "matrix" }, this.map, this.rows);
    this.element = card("Communication", h("label", {}, "links ", this.choice), this.nothing, this.body);
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.point(Math.floor(((event.clientY - box.top) / box.height * 100 - 8) / 92 * this.n), Math.floor(((event.clientX - box.left) / box.width * 100 - 8) / 92 * this.n));
    });
    this.canvas.addEventListener("pointerleave", () => this.point(-1, -1));
    this.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!by) return;
      event.preventDefault();
      const [from, to] = this.at || [0, -1], fit = (v) => Math.min(this.n - 1, Math.max(0, v));
      this.point(fit(from + by[0]), fit(to + by[1]));
      say(this.said.textContent);
    });
    darkness.addEventListener("change", () => this.draw());
    onResize(this.map, () => this.draw());
  }

  show(detail) {
    const traffic = detail.traffic || { ranks: 0, tiers: [], rows: [] };
    this.traffic = traffic;
    if (this.n !== traffic.ranks) this.at = null;  // keeps the selected pair of ranks while the run continues
    this.n = traffic.ranks;
    const any = traffic.tiers.length > 0;
    this.nothing.hidden = any || traffic.rows.length > 0;
    this.nothing.textContent = (detail.ranks || []).length === 1 ? "Only one rank: no traffic." : "No traffic yet. The ranks write their counters (ranks/rank-K.json) every few seconds.";
    this.body.hidden = !any && !traffic.rows.length;
    this.map.hidden = !any;
    const before = this.choice.value, names = traffic.tiers.map((tier) => tier.name);
    if (JSON.stringify(names) !== this.names) {  // rebuilds the menu only if the tiers changed, so that an open menu stays open
      this.names = JSON.stringify(names);
      this.choice.replaceChildren(h("option", { value: "" }, "all"), ...names.map((name) => h("option", { value: name }, name || "unnamed")));
      if (names.includes(before)) this.choice.value = before;
    }
    this.rows.replaceChildren(table(["group", "operation", "algorithm", "links", "calls", "bytes", "time"],
      traffic.rows.filter((row) => row.bytes > 0 || row.ms > 0).slice(0, 40).map((row) => [row.group, row.op, row.algo, row.transport, count(row.calls), bytes(row.bytes), seconds(row.ms / 1e3)]), "Bytes sent, by group and operation"));
    this.draw();
  }

  sums() {
    const all = new Float64Array(this.n * this.n);
    for (const tier of this.traffic.tiers)
      if (!this.choice.value || this.choice.value === tier.name) tier.bytes.forEach((value, i) => { all[i] += value; });
    return all;
  }

  drawTable() {
    this.values = this.sums();
    const ids = [...Array(this.n).keys()];
    this.few.replaceChildren(table(["from \\ to", ...ids.map((id) => `rank ${id}`)],
      ids.map((from) => [`rank ${from}`, ...ids.map((to) => from === to && !this.values[from * this.n + to] ? "–" : bytes(this.values[from * this.n + to]))]), "Bytes sent from rank to rank"));
    this.point(-1, -1);
  }

  draw() {
    const few = this.n > 0 && this.n <= kMostTabled;
    this.canvas.hidden = few;
    this.few.hidden = !few;
    this.body.classList.toggle("few", few);
    if (!this.traffic || !this.n || this.map.hidden) return;
    if (few) return this.drawTable();
    if (!this.map.clientWidth) return;
    const size = Math.min(384, this.map.clientWidth), scale = devicePixelRatio || 1, margin = size * 0.08, cell = (size - margin) / this.n;
    this.canvas.width = this.canvas.height = size * scale;
    const c = this.canvas.getContext("2d");
    c.scale(scale, scale);
    this.values = this.sums();
    const most = Math.max(...this.values, 1), least = Math.min(...this.values.filter((value) => value > 0), most);
    const faint = colour("--faint"), accent = colour("--accent");
    c.font = "11px system-ui, sans-serif";
    for (let from = 0; from < this.n; ++from)
      for (let to = 0; to < this.n; ++to) {
        const value = this.values[from * this.n + to];
        c.globalAlpha = 1;
        c.fillStyle = faint;
        c.fillRect(margin + to * cell, margin + from * cell, cell - (cell > 4 ? 1 : 0), cell - (cell > 4 ? 1 : 0));
        if (!value) continue;
        c.globalAlpha = 1 - 0.85 * Math.log(most / value) / Math.max(Math.log(most / least), Math.log(100));
        c.fillStyle = accent;
        c.fillRect(margin + to * cell, margin + from * cell, cell - (cell > 4 ? 1 : 0), cell - (cell > 4 ? 1 : 0));
      }
    c.globalAlpha = 1;
    c.fillStyle = colour("--soft");
    const every = Math.ceil(this.n / 16);
    c.textAlign = "center";
    for (let i = 0; i < this.n; i += every) {
      c.fillText(i, margin + (i + 0.5) * cell, margin - 6);
      c.fillText(i, margin / 2, margin + (i + 0.5) * cell + 4);
    }
    const total = this.values.reduce((a, b) => a + b, 0);
    this.canvas.setAttribute("aria-label", `Bytes sent from rank to rank, ${bytes(total)} in all. Arrow keys read pairs.`);
    this.point(...(this.at || [-1, -1]));
  }

  point(from, to) {
    const inside = from >= 0 && to >= 0 && from < this.n && to < this.n;
    this.at = inside ? [from, to] : null;
    const total = (this.values || []).reduce((a, b) => a + b, 0);
    this.said.textContent = inside ? `rank ${from} to rank ${to}: ${bytes(this.values[from * this.n + to])}`
      : `Rows are senders, columns are receivers; ${bytes(total)} in all. Each rank counts the bytes that it sends; they are divided over the receivers as the collective algorithm does.`;
  }
}
