// Stacked bar chart: memory by category, or time by kind. A thinner bar below each bar shows the planner's estimate.
function stackedBars(bars, classes, most, unit, title) {
  const holder = h("div"), thin = bars.some((bar) => bar.below), rowTall = bars.length > 24 ? 9 : bars.length > 10 ? 15 : 20;
  const pitch = rowTall + (thin ? Math.max(4, rowTall / 2.4) : 0) + (bars.length > 24 ? 3 : 8);
  const draw = (width) => {
    const left = Math.min(96, width * 0.24), right = 78, top = 4, height = top + bars.length * pitch + 22;
    const x = (value) => left + value / most * (width - left - right);
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, width: "100%", role: "img", "aria-label": title });
    for (const at of (unit === bytes ? byteTicks : ticks)(0, most, Math.max(2, Math.floor((width - left - right) / 90))))
      svg.append(s("line", { class: "gridline", x1: x(at), x2: x(at), y1: top, y2: height - 20 }), s("text", { x: x(at), y: height - 5, "text-anchor": "middle" }, unit(at)));
    bars.forEach((bar, i) => {
      const y = top + i * pitch;
      if (rowTall > 10 || i % 4 === 0) svg.append(s("text", { x: left - 7, y: y + rowTall / 2 + 4, "text-anchor": "end" }, bar.name));
      const stack = (parts, at, tall, more) => parts.reduce((sum, value, k) => {
        if (value > 0) svg.append(s("rect", { class: `${classes}${k}`, x: x(sum), y: at, width: Math.max(0, x(sum + value) - x(sum) - 0.4), height: tall, opacity: more }, s("title", {}, `${bar.name}: ${bar.titles[k]} ${unit(value)}`)));
        return sum + value;
      }, 0);
      const end = stack(bar.parts, y, rowTall, null);
      if (bar.below) stack(bar.below, y + rowTall + 1, Math.max(3, rowTall / 2.4), 0.55);
      if (rowTall > 10) svg.append(s("text", { x: x(Math.max(end, bar.below ? bar.below.reduce((a, b) => a + b, 0) : 0)) + 6, y: y + rowTall / 2 + 4 }, bar.note || unit(end)));
    });
    holder.replaceChildren(svg);
  };
  onResize(holder, draw);
  return holder;
}

// Memory of each rank by category, compared with the planner's estimate.
class MemoryPanel {
  constructor() {
    this.body = h("div");
    this.element = card("Memory of each rank", [], this.body);
  }
  show(detail) {
    const kinds = ["parameter", "gradient", "optimizer", "activation", "buffer", "other"], names = ["parameters", "gradients", "optimizer", "activations", "buffers", "other"];
    const ranks = (detail.ranks || []).filter((rank) => rank.memory), stages = detail.plan?.stages || [];
    if (!ranks.length) return void this.body.replaceChildren(h("p", { class: "quiet" }, "No memory figures yet. The ranks write them (ranks/rank-K.json) every few seconds and at the end of the run."));
    const planOf = (rank) => stages.find((stage) => stage.stage === (rank.coords?.pp || 0)) || (stages.length === 1 ? stages[0] : null);
    const bars = ranks.map((rank) => {
      const plan = planOf(rank);
      return { name: `rank ${rank.rank}`, titles: names, parts: kinds.map((kind) => rank.memory[kind]?.peak || 0), below: plan ? kinds.map((kind) => plan[kind] || 0) : null, note: bytes(rank.peak_bytes) };
    });
    const most = Math.max(...bars.map((bar) => Math.max(bar.parts.reduce((a, b) => a + b, 0), bar.below ? bar.below.reduce((a, b) => a + b, 0) : 0))) * 1.02;
    const rows = ranks.map((rank, i) => {
      const plan = planOf(rank), planned = plan ? kinds.reduce((sum, kind) => sum + (plan[kind] || 0), 0) : null;
      return [`rank ${rank.rank}`, ...bars[i].parts.map(bytes), bytes(rank.peak_bytes), planned ? bytes(planned) : "–", planned && rank.peak_bytes ? percent(rank.peak_bytes / planned - 1) : "–"];
    });
    this.body.replaceChildren(
      h("ul", { class: "legend" }, names.map((name, i) => h("li", {}, h("i", { class: `swatch m${i}` }), name))),
      stackedBars(bars, "m", most, bytes, "Memory of each rank by category"),
      h("p", { class: "quiet" }, stages.length ? "Each category is drawn at its own peak. The number beside the bar is the peak of the total. The thin bar is the planner's estimate at the moment of highest memory use."
        : `Each category is drawn at its own peak. The number beside the bar is the peak of the total.${detail.plan?.error ? ` No planner estimate: ${detail.plan.error}.` : ""}`),
      asTable(["rank", ...names, "peak", "planned", "difference"], rows, "Memory of each rank by category"));
  }
}
