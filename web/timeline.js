// Timeline: one row per rank, with a thinner row below it for the rank's communicators. Gaps are idle time.
// Drag to move, Ctrl and wheel (or pinch, or + and −) to zoom. The strip above shows the visible part of the trace.
class Timeline {
  // load(from, to, buckets) returns a window of the trace. Static timelines (report, planner) load one window once.
  constructor(title, load) {
    this.load = load;
    this.window = null;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": title });
    this.tip = h("div", { class: "tip", "aria-hidden": "true" });
    this.frame = h("div", { class: "frame" }, this.canvas);
    this.strip = h("div", { class: "strip", "aria-hidden": "true" }, this.thumb = h("i"));
    this.note = h("p", { class: "quiet" });
    this.legend = h("ul", { class: "legend" });
    this.below = h("div");
    const button = (text, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    this.tools = h("span", { class: "tools" }, button("−", "Zoom out", () => this.zoom(2)), button("+", "Zoom in", () => this.zoom(0.5)),
      button("‹", "Previous step", () => this.toStep(-1)), button("›", "Next step", () => this.toStep(1)), button("All", "Whole trace", () => { this.touched = true; this.see(0, this.length); }));
    this.holder = h("div", { class: "timeline" }, this.legend, this.strip, this.frame, this.tip, this.note, this.below);
    this.element = card(title, this.tools, this.holder);
    onResize(this.frame, () => { this.draw(); this.refine(); });
    darkness.addEventListener("change", () => this.draw());
    this.pointers = new Map();
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, (event) => this.lift(event));
    this.canvas.addEventListener("pointerleave", () => this.tip.classList.remove("on"));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.timeAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.strip.addEventListener("pointerdown", (event) => { this.strip.setPointerCapture(event.pointerId); this.jump(event); });
    this.strip.addEventListener("pointermove", (event) => { if (event.buttons) this.jump(event); });
  }

  // Requests the whole trace early, because the server needs some time to read a long trace.
  begin() {
    this.coming = this.load(null, null, 1500);
    this.coming.catch(() => {});  // show() reports the error
  }

  // description: {pipeline: whether the run has pipeline stages, ideal: text with the schedule's ideal bubble}.
  // grown: the same run is shown again, with more steps. The view then stays where the user moved it, or follows the
  // latest steps if the user has not moved it.
  async show(description, grown) {
    this.description = description || {};
    const before = grown && this.window && { from: this.from, to: this.to, touched: this.touched };
    try {
      this.window = await (this.coming || this.load(null, null, 1500));
    } catch (error) {
      this.window = null;
      this.legend.replaceChildren();
      this.below.replaceChildren();
      this.canvas.hidden = this.strip.hidden = this.tools.hidden = true;
      this.note.textContent = error.message;
      return;
    } finally {
      this.coming = null;
    }
    this.canvas.hidden = this.strip.hidden = this.tools.hidden = false;
    this.whole = this.window;
    this.length = this.window.length_us;
    this.at = null;
    this.touched = before ? before.touched : false;
    const steps = this.window.steps;
    if (before?.touched) return this.see(before.from, before.to);
    // Initial view: two steps in the middle; for a running job the latest steps.
    const middle = grown ? Math.max(0, steps.length - 2) : Math.min(steps.length - 1, Math.max(1, Math.floor(steps.length / 2)));
    if (steps.length > 3) this.see(steps[middle][0] - (steps[middle][1] - steps[middle][0]) * 0.04, steps[Math.min(middle + 1, steps.length - 1)][1] * 1.0001);
    else this.see(0, this.length);
  }

  see(from, to) {
    const least = 5;  // µs
    let width = Math.min(this.length, Math.max(least, to - from));
    from = Math.min(Math.max(0, from), this.length - width);
    this.from = from;
    this.to = from + width;
    this.thumb.style.setProperty("left", `${100 * this.from / this.length}%`);
    this.thumb.style.setProperty("width", `${100 * width / this.length}%`);
    this.draw();
    this.summarise();
    this.refine();
  }

  // Loads a window with more detail 120 ms after the last movement of the view.
  refine() {
    clearTimeout(this.waiting);
    if (!this.window || !this.load.live) return;
    this.waiting = setTimeout(async () => {
      const from = this.from, to = this.to, margin = (to - from) * 0.5;
      const got = await this.load(Math.max(0, from - margin), Math.min(this.length, to + margin), 2 * (this.frame.clientWidth || 800)).catch(() => null);
      if (!got || from !== this.from || to !== this.to) return;
      this.window = got;
      this.draw();
      this.summarise();
    }, 120);
  }

  zoom(by, around) {
    this.touched = true;
    const middle = around ?? (this.from + this.to) / 2;
    this.see(middle - (middle - this.from) * by, middle + (this.to - middle) * by);
  }
  toStep(by) {
    this.touched = true;
    const steps = this.whole?.steps || [], middle = (this.from + this.to) / 2;
    if (!steps.length) return;
    let at = steps.findIndex((step) => step[1] >= middle);
    if (at < 0) at = steps.length - 1;
    const one = this.at === null ? at : Math.min(steps.length - 1, Math.max(0, this.at + by));
    const pad = (steps[one][1] - steps[one][0]) * 0.03;
    this.see(steps[one][0] - pad, steps[one][1] + pad);
    this.at = one;
    this.summarise();
    say(this.note.textContent);
  }

  geometry() {
    const ranks = this.window.ranks.length, row = ranks <= 8 ? 24 : ranks <= 20 ? 16 : 9, strip = ranks <= 8 ? 7 : ranks <= 20 ? 5 : 3;
    return { left: this.frame.clientWidth < 500 ? 44 : 66, top: 22, row, strip, gap: ranks <= 20 ? 7 : 2 };
  }

  draw() {
    const width = this.frame.clientWidth;
    if (!this.window || !width || this.from === undefined) return;
    const g = this.geometry(), pitch = g.row + g.strip + g.gap, height = g.top + this.window.ranks.length * pitch + 4, scale = devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.setProperty("height", `${height}px`);
    const c = this.canvas.getContext("2d");
    c.scale(scale, scale);
    const kinds = this.window.kinds.map((_, i) => colour(`--k${i}`)), soft = colour("--soft"), idle = colour("--idle"), line = colour("--line");
    const x = (us) => g.left + (us - this.from) / (this.to - this.from) * (width - g.left);
    c.font = "11px system-ui, sans-serif";
    this.hits = [];
    c.save();
    c.beginPath();
    c.rect(g.left, 0, width - g.left, height);
    c.clip();
    this.window.ranks.forEach((rank, i) => {
      const y = g.top + i * pitch;
      c.fillStyle = idle;
      c.fillRect(g.left, y, width - g.left, g.row);
      rank.lines.forEach((lines, j) => this.drawRow(c, lines.segments, j === 0 ? y : y + g.row + 1, j === 0 ? g.row : g.strip, x, width, kinds, soft, rank, lines.name));
    });
    for (const [i, step] of this.window.steps.entries()) {
      const a = x(step[0]);
      if (a < g.left - 1 || a > width) continue;
      c.fillStyle = soft;
      c.fillRect(a, 4, 1, height - 8);
      if (x(step[1]) - a > 44) c.fillText(`step ${i + 1}`, a + 4, 14);
    }
    c.restore();
    c.fillStyle = soft;
    this.window.ranks.forEach((rank, i) => {
      if (pitch < 12 && i % 4) return;
      const text = /^rank \d+$/.test(rank.name) || !rank.name ? (g.left < 60 ? `r${rank.rank}` : `rank ${rank.rank}`) : rank.name.replace(/^replica 0 /, "").replace(/^replica (\d+) stage /, "$1/");
      c.fillText(text, 2, g.top + i * pitch + Math.min(g.row, 16) / 2 + 5, g.left - 6);
    });
    c.fillStyle = line;
    c.fillRect(g.left - 1, g.top, 1, height - g.top - 4);
    const words = `Timeline of ${this.window.ranks.length} ranks, ${seconds((this.to - this.from) / 1e6)} from ${seconds(this.from / 1e6)} on. Arrow keys move, plus and minus zoom, N and P go to the next and previous step.`;
    this.canvas.setAttribute("aria-label", words);
  }

  drawRow(c, flat, y, tall, x, width, kinds, soft, rank, lineName) {
    for (let i = 0; i < flat.length; i += 5) {
      const begin = flat[i], end = begin + flat[i + 1];
      if (end < this.from || begin > this.to) continue;
      const a = Math.max(x(begin), 0), b = Math.min(x(end), width), wide = Math.max(b - a, 0.6);
      c.fillStyle = kinds[flat[i + 2]];
      c.fillRect(a, y, wide > 3 ? wide - 0.7 : wide, tall);
      if (wide > 22 && tall > 14 && flat[i + 4] === 1) {
        const text = this.window.names[flat[i + 3]];
        if (c.measureText(text).width < wide - 6) { c.fillStyle = flat[i + 2] === 5 ? soft : "#fff"; c.fillText(text, a + (wide - c.measureText(text).width) / 2, y + tall / 2 + 4); }
      }
      this.hits.push({ a, b: a + Math.max(wide, 2), y, tall, i, flat, rank, lineName });
    }
  }

  // Text summary: the visible step, its bubble, and time by kind in the window.
  summarise() {
    const whole = this.whole, inside = (step) => (step[0] + step[1]) / 2 > this.from && (step[0] + step[1]) / 2 < this.to;
    const steps = whole.steps.filter(inside);
    const bubbles = steps.map((step) => step[2]).sort((a, b) => a - b);
    const words = [`${seconds((this.to - this.from) / 1e6)} of ${seconds(this.length / 1e6)}`];
    if (steps.length === 1) words.push(`step ${whole.steps.indexOf(steps[0]) + 1} took ${seconds((steps[0][1] - steps[0][0]) / 1e6)}`);
    if (bubbles.length && whole.ranks.length > 1)
      words.push(`${this.description.pipeline ? "bubble" : "idle"} ${percent(bubbles[bubbles.length >> 1])} of the compute time${bubbles.length > 1 ? " (median step)" : ""}${this.description.ideal ? `; ${this.description.ideal}` : ""}`);
    if (whole.dropped) words.push(`${whole.dropped} spans missing (trace buffer full)`);
    this.note.textContent = words.join(" · ");
    this.shares();
  }

  shares() {
    const totals = this.whole.ranks.map((rank) => ({ rank, times: this.timesOf(rank) })), span = this.to - this.from;
    const shown = this.whole.kinds.map((name, i) => ({ name, i, sum: totals.reduce((sum, one) => sum + one.times[i], 0) })).filter((kind) => kind.sum > 0);
    const idle = (times) => Math.max(0, span - times.reduce((sum, time) => sum + time, 0));
    this.legend.replaceChildren(...shown.map((kind) => h("li", {}, h("i", { class: `swatch k${kind.i}` }), kind.name)), h("li", {}, h("i", { class: "swatch k8" }), "idle"));
    const open = this.below.querySelector("details")?.open;
    this.below.replaceChildren(asTable(["rank", ...shown.map((kind) => kind.name), "idle"],
      totals.map(({ rank, times }) => [`rank ${rank.rank}`, ...shown.map((kind) => percent(times[kind.i] / span)), percent(idle(times) / span)]), "Share of each rank's time in this window"));
    if (open) this.below.querySelector("details").open = true;
    this.onShares?.(totals.map(({ rank, times }) => ({ rank: rank.rank, times, idle: idle(times) })), shown, span);
  }
  timesOf(rank) {
    const times = this.whole.kinds.map(() => 0), held = this.window.ranks.find((one) => one.rank === rank.rank) || rank, flat = held.lines[0]?.segments || [];
    for (let i = 0; i < flat.length; i += 5) {
      const part = Math.min(this.to, flat[i] + flat[i + 1]) - Math.max(this.from, flat[i]);
      if (part > 0) times[flat[i + 2]] += part;
    }
    return times;
  }

  timeAt(event) {
    const box = this.canvas.getBoundingClientRect(), left = this.geometry().left;
    return this.from + Math.max(0, event.clientX - box.left - left) / (box.width - left) * (this.to - this.from);
  }
  press(event) {
    this.touched = true;
    this.pointers.set(event.pointerId, event.clientX);
    if (event.pointerType !== "touch" || this.pointers.size > 1) this.canvas.setPointerCapture(event.pointerId);
    this.canvas.classList.add("moving");
  }
  move(event) {
    if (!this.window) return;
    if (!this.pointers.has(event.pointerId)) return this.hover(event);
    const before = [...this.pointers.values()];
    const perPixel = (this.to - this.from) / (this.frame.clientWidth - this.geometry().left);
    const moved = event.clientX - this.pointers.get(event.pointerId);
    this.pointers.set(event.pointerId, event.clientX);
    const after = [...this.pointers.values()];
    this.tip.classList.remove("on");
    this.at = null;
    if (after.length === 1) this.see(this.from - moved * perPixel, this.to - moved * perPixel);
    else {
      const ratio = Math.abs(before[0] - before[1]) / Math.max(8, Math.abs(after[0] - after[1]));
      this.zoom(Math.min(4, Math.max(0.25, ratio)), this.timeAt({ clientX: (after[0] + after[1]) / 2 }));
    }
  }
  lift(event) {
    this.pointers.delete(event.pointerId);
    if (!this.pointers.size) this.canvas.classList.remove("moving");
  }
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;  // the page scrolls
    event.preventDefault();
    this.at = null;
    this.touched = true;
    if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.004))), this.timeAt(event));
    else { const by = event.deltaX * (this.to - this.from) / 1000; this.see(this.from + by, this.to + by); }
  }
  jump(event) {
    this.touched = true;
    const box = this.strip.getBoundingClientRect(), middle = (event.clientX - box.left) / box.width * this.length, half = (this.to - this.from) / 2;
    this.at = null;
    this.see(middle - half, middle + half);
  }
  hover(event) {
    const box = this.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const hit = this.hits?.findLast((one) => px >= one.a && px <= one.b && py >= one.y && py <= one.y + one.tall);
    this.tip.classList.toggle("on", !!hit);
    if (!hit) return;
    const { flat, i } = hit, many = flat[i + 4] > 1;
    this.tip.textContent = `${many ? `${flat[i + 4]} spans, mostly ${this.window.kinds[flat[i + 2]]}` : this.window.names[flat[i + 3]]}\n${this.window.kinds[flat[i + 2]]}, ${seconds(flat[i + 1] / 1e6)}\nrank ${hit.rank.rank}, ${hit.lineName || "row"}, at ${seconds(flat[i] / 1e6)}`;
    const around = this.holder.getBoundingClientRect(), tip = this.tip.getBoundingClientRect();
    const tx = Math.min(event.clientX - around.left + 14, around.width - tip.width - 4), ty = event.clientY - around.top + 16;
    this.tip.style.setProperty("transform", `translate(${Math.max(0, tx)}px, ${ty}px)`);
  }
  key(event) {
    if (!this.window) return;
    const by = (this.to - this.from) * 0.2;
    this.touched = true;
    if (event.key === "ArrowLeft") this.see(this.from - by, this.to - by);
    else if (event.key === "ArrowRight") this.see(this.from + by, this.to + by);
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "0" || event.key === "Escape") this.see(0, this.length);
    else if (event.key === "n" || event.key === "N") return this.toStep(1);
    else if (event.key === "p" || event.key === "P") return this.toStep(-1);
    else return;
    event.preventDefault();
    say(this.note.textContent);
  }
}
