// Line chart in SVG, redrawn when its data or width change. Drag to zoom, double-click or Escape to reset the zoom; arrow
// keys move the cursor.
class Chart {
  // options: title, unit(value) → text, height, onZoom(from, to)
  constructor(options) {
    this.options = options;
    this.lines = [];  // {name, style, dashed, dots, data: {x, mean, min, max}}
    this.marks = [];  // steps with an annotation
    this.log = false;
    this.range = null;
    this.said = h("p", { class: "said", "aria-hidden": "true" });
    this.legend = h("ul", { class: "legend" });
    this.svg = s("svg", { role: "img", tabindex: "0", "aria-label": options.title });
    this.tableHolder = h("div");
    this.element = h("div", { class: "chart" + (options.wide ? " wide" : "") }, h("h3", {}, options.title), this.legend, this.said, this.svg, this.tableHolder);
    this.width = 0;
    onResize(this.element, (width) => { this.width = width; this.draw(); });
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerleave", () => { if (!this.drag) this.point(null); });
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointerup", (event) => this.release(event));
    this.svg.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
    this.svg.addEventListener("dblclick", () => options.onZoom(null, null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.point(null));
  }

  set(lines, range, marks) {
    this.lines = lines.filter((line) => line.data && line.data.x.length);
    this.range = range;
    this.marks = marks || [];
    this.drawLegend();
    this.draw();
  }

  // Legend: one swatch per line.
  drawLegend() {
    const key = JSON.stringify(this.lines.map((line) => [line.name, line.style, !!line.dashed]));
    if (key === this.legendKey) return;
    this.legendKey = key;
    this.legend.replaceChildren(...this.lines.map((line) => h("li", {}, h("i", { class: `swatch f${line.style}${line.dashed ? " dashed" : ""}` }), line.name)));
  }

  bounds() {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { data } of this.lines) {
      x0 = Math.min(x0, data.x[0]); x1 = Math.max(x1, data.x[data.x.length - 1]);
      const low = data.min || data.mean, high = data.max || data.mean;
      for (let i = 0; i < data.x.length; ++i) {
        if (this.range && (data.x[i] < this.range[0] || data.x[i] > this.range[1])) continue;
        if (low[i] !== null && (!this.log || low[i] > 0)) y0 = Math.min(y0, low[i]);
        if (high[i] !== null) y1 = Math.max(y1, high[i]);
      }
    }
    if (this.range) [x0, x1] = this.range;
    if (!(x1 > x0)) { x0 -= 0.5; x1 += 0.5; }
    if (!Number.isFinite(y0) || !Number.isFinite(y1)) { y0 = 0; y1 = 1; }
    if (this.options.fromZero && !this.log) y0 = Math.min(0, y0);
    if (y1 <= y0) { const pad = Math.abs(y0) * 0.05 || 0.5; y0 -= this.options.fromZero ? 0 : pad; y1 += pad; }
    if (!this.log) { const pad = (y1 - y0) * 0.05; y1 += pad; if (!this.options.fromZero) y0 -= pad; }
    return { x0, x1, y0, y1 };
  }

  draw() {
    if (!this.width) return;
    const { width, log } = this, height = this.options.height || 170;
    const left = 54, right = 12, top = 8, bottom = 22;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    const b = this.bounds(), value = (y) => log ? Math.log(Math.max(y, 1e-300)) : y;
    const x = (at) => left + (at - b.x0) / (b.x1 - b.x0) * (width - left - right);
    const y = (at) => top + (1 - (value(at) - value(b.y0)) / (value(b.y1) - value(b.y0))) * (height - top - bottom);
    this.scale = { ...b, left, right, width, x, y, top, bottom, height };
    const clip = `clip${Chart.count = (Chart.count || 0) + 1}`;
    const parts = [s("clipPath", { id: clip }, s("rect", { x: left, y: 0, width: Math.max(1, width - left - right), height: height - bottom + 2 }))];
    for (const at of log ? logTicks(b.y0, b.y1) : (this.options.bytes ? byteTicks : ticks)(b.y0, b.y1, 4))
      parts.push(s("line", { class: "gridline", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
        s("text", { x: left - 7, y: y(at) + 4, "text-anchor": "end" }, this.options.unit(at)));
    // The first step is labelled; round labels that would overlap it are omitted.
    const first = Math.ceil(b.x0), round = ticks(b.x0, b.x1, Math.max(2, Math.floor(width / 90))).filter((at) => Number.isInteger(at) && x(at) - x(first) > 34);
    for (const at of first <= b.x1 ? [first, ...round] : round)
      parts.push(s("text", { x: x(at), y: height - 6, "text-anchor": "middle" }, at >= 1e4 ? count(at) : at));
    const inside = s("g", { "clip-path": `url(#${clip})` });
    for (const mark of this.marks) inside.append(s("line", { class: "mark-line", x1: x(mark), x2: x(mark), y1: top, y2: height - bottom }));
    for (const line of this.lines) this.drawLine(inside, line, x, y);
    this.overlay = s("g");
    this.svg.replaceChildren(...parts, inside, this.overlay);
    this.describe();
  }

  drawLine(inside, { data, style, dashed, dots }, x, y) {
    const ok = (at) => at !== null && (!this.log || at > 0);
    if (data.min) {
      const up = [], down = [];
      data.x.forEach((at, i) => {
        if (!ok(data.min[i])) return;
        up.push(`${x(at).toFixed(1)},${y(data.max[i]).toFixed(1)}`);
        down.push(`${x(at).toFixed(1)},${y(data.min[i]).toFixed(1)}`);
      });
      inside.append(s("polygon", { class: `band f${style}`, points: up.concat(down.reverse()).join(" ") }));
    }
    const points = [];
    data.x.forEach((at, i) => { if (ok(data.mean[i])) points.push([x(at), y(data.mean[i])]); });
    inside.append(s("polyline", { class: `curve s${style}`, "stroke-dasharray": dashed ? "5 4" : null, points: points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ") }));
    if ((dots && points.length < 60) || points.length === 1)
      for (const [a, b] of points) inside.append(s("circle", { class: `f${style}`, cx: a, cy: b, r: 2.6 }));
  }

  describe() {
    const parts = this.lines.map((line) => `${line.name} ${this.options.unit(line.data.mean[line.data.mean.length - 1])}`);
    this.svg.setAttribute("aria-label", `${this.options.title}: ${parts.join(", ") || "no data yet"}. Arrow keys read values, plus and minus zoom.`);
    const rows = [];
    for (const line of this.lines) {
      const every = Math.max(1, Math.ceil(line.data.x.length / 12));
      line.data.x.forEach((at, i) => { if (i % every === 0 || i + 1 === line.data.x.length) rows.push([line.name, number(at, 6), this.options.unit(line.data.mean[i])]); });
    }
    const open = this.tableHolder.querySelector("details")?.open;
    this.tableHolder.replaceChildren(asTable(["run", "step", this.options.title], rows, this.options.title));
    if (open) this.tableHolder.querySelector("details").open = true;
    if (this.at === undefined || this.at === null) this.point(null);
    else this.point(this.at);
  }

  stepAt(event) {
    const box = this.svg.getBoundingClientRect(), { left, right, width, x0, x1 } = this.scale;
    const at = x0 + ((event.clientX - box.left) * width / box.width - left) / (width - left - right) * (x1 - x0);
    return Math.min(x1, Math.max(x0, at));
  }

  nearest(data, at) {
    let low = 0, high = data.x.length - 1;
    while (high - low > 1) { const mid = (low + high) >> 1; if (data.x[mid] <= at) low = mid; else high = mid; }
    return Math.abs(data.x[high] - at) < Math.abs(data.x[low] - at) ? high : low;
  }

  point(at) {
    this.at = at;
    if (!this.overlay) return;
    this.overlay.replaceChildren();
    if (at === null) {
      this.said.replaceChildren(...this.lines.map((line) => h("span", {}, this.lines.length > 1 ? line.name + " " : "", h("b", {}, this.options.unit(line.data.mean[line.data.mean.length - 1])))));
      return;
    }
    const { x, y, top, height, bottom } = this.scale, parts = [];
    let step = at;
    for (const line of this.lines) {
      const i = this.nearest(line.data, at);
      step = line.data.x[i];
      const band = line.data.min ? ` (${this.options.unit(line.data.min[i])} – ${this.options.unit(line.data.max[i])})` : "";
      parts.push(h("span", {}, line.name + " ", h("b", {}, this.options.unit(line.data.mean[i])), band));
      if (line.data.mean[i] !== null) this.overlay.append(s("circle", { class: `f${line.style}`, cx: x(step), cy: y(line.data.mean[i]), r: 3.4 }));
    }
    this.overlay.prepend(s("line", { class: "cursor", x1: x(step), x2: x(step), y1: top, y2: height - bottom }));
    this.said.replaceChildren(h("span", {}, `step ${number(Math.round(step), 7)}`), ...parts);
  }

  move(event) {
    if (!this.scale) return;
    const at = this.stepAt(event);
    this.point(at);
    if (this.drag !== null && this.drag !== undefined) {
      const a = this.scale.x(this.drag), b = this.scale.x(at);
      this.overlay.append(s("rect", { class: "select", x: Math.min(a, b), y: this.scale.top, width: Math.abs(b - a), height: this.scale.height - this.scale.top - this.scale.bottom }));
    }
  }
  press(event) {
    if (event.pointerType === "touch" || event.button !== 0) return;  // touch scrolls the page
    this.drag = this.stepAt(event);
    this.svg.setPointerCapture(event.pointerId);
  }
  release(event) {
    if (this.drag === null || this.drag === undefined) return;
    const from = this.drag, to = this.stepAt(event);
    this.drag = null;
    if (Math.abs(this.scale.x(to) - this.scale.x(from)) > 6) this.options.onZoom(Math.min(from, to), Math.max(from, to));
    else this.point(to);
  }

  key(event) {
    if (!this.scale || !this.lines.length) return;
    const { x0, x1 } = this.scale, middle = this.at ?? (x0 + x1) / 2;
    const zoom = (by) => this.options.onZoom(middle - (middle - x0) * by, middle + (x1 - middle) * by);
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const data = this.lines[0].data, i = this.nearest(data, this.at ?? x0) + (this.at === null ? 0 : event.key === "ArrowRight" ? 1 : -1);
      this.point(data.x[Math.min(data.x.length - 1, Math.max(0, i))]);
      say(this.said.textContent);
    } else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "Escape" || event.key === "0") this.options.onZoom(null, null);
    else return;
    event.preventDefault();
  }
}
