// Planner page: searches layouts for a model, a cluster and a number of GPUs. Plots step time against memory of all
// layouts that fit.
class Planner {
  constructor() {
    this.element = h("div");
    this.out = h("div", { "aria-live": "polite" });
  }

  async open() {
    if (this.form) return;
    const choices = await source.planChoices();
    this.choices = choices;
    const option = (row, words) => h("option", { value: row.name }, words);
    const model = h("select", { name: "model", required: true }, choices.models.map((row) => option(row, `${row.name} · ${count(row.parameters)}`)));
    const cluster = h("select", { name: "cluster", required: true }, choices.clusters.map((row) => option(row, `${row.name} · ${row.processor}`)));
    const gpus = h("input", { type: "number", name: "gpus", min: 1, max: 1000000, value: 64, required: true });
    const batch = h("input", { type: "number", name: "batch", min: 1, value: 512, required: true });
    const seq = h("input", { type: "number", name: "seq", min: 1, placeholder: "model default" });
    const precision = h("select", { name: "precision" }, ["bf16", "fp16", "fp8", "fp32"].map((name) => h("option", { value: name }, name)));
    const whole = h("input", { type: "checkbox", name: "space", value: "whole" });
    const help = h("p", { class: "quiet" });
    const fit = () => {
      const row = choices.clusters.find((one) => one.name === cluster.value);
      gpus.max = row.gpus;
      if (Number(gpus.value) > row.gpus) gpus.value = row.gpus;
      help.textContent = `${row.name}: ${row.help} (${row.gpus.toLocaleString("en")} × ${row.processor}, ${bytes(row.memory_bytes)} each)`;
    };
    cluster.addEventListener("change", fit);
    const field = (name, input) => h("label", {}, name, input);
    this.form = h("form", { class: "plan", onsubmit: (event) => { event.preventDefault(); this.search(); } },
      field("Model", model), field("Cluster", cluster), field("GPUs", gpus), field("Global batch, sequences", batch), field("Sequence length", seq), field("Precision", precision),
      h("label", { class: "check" }, whole, "search every schedule and offload (slower)"), h("button", { class: "main", type: "submit" }, "Plan"));
    model.value = choices.models.some((row) => row.name === "gpt3-175b") ? "gpt3-175b" : choices.models[0].name;
    cluster.value = choices.clusters.some((row) => row.name === "selene") ? "selene" : choices.clusters[0].name;
    gpus.value = 512;
    fit();
    this.element.replaceChildren(card("Plan a run", [], this.form, help), this.out);
    this.search();
  }

  async search() {
    const asked = this.asked = {};
    const parameters = Object.fromEntries([...new FormData(this.form)].filter(([, value]) => value));
    this.out.setAttribute("aria-busy", "true");
    const button = this.form.querySelector("button");
    button.textContent = "Planning…";
    try {
      const found = await source.plan(parameters);
      if (asked === this.asked) this.show(found);
    } catch (error) {
      if (asked === this.asked) this.out.replaceChildren(card("No plan", [], h("p", { class: "bad" }, error.message)));
    } finally {
      if (asked === this.asked) { button.textContent = "Plan"; this.out.removeAttribute("aria-busy"); }
    }
  }

  show(found) {
    if (found.error) return void this.out.replaceChildren(card("Nothing fits", [], h("p", { class: "bad" }, found.error)));
    this.found = found;
    const best = found.top[0];
    this.detail = h("div");
    this.list = h("div");
    const words = h("p", {}, h("b", {}, found.describe), `: ${seconds(best.step_s)} a step, ${count(best.tokens_per_s)} tokens/s, MFU ${percent(best.mfu)}, ${gigabytes(best.memory_bytes)} of ${gigabytes(found.capacity)} on each GPU.`);
    const counts = h("p", { class: "quiet" }, `${found.considered.toLocaleString("en")} layouts considered, ${found.too_large.toLocaleString("en")} too large, ${found.evaluated.toLocaleString("en")} estimated in ${seconds(found.elapsed_s)}.${found.assumed.length ? " Assumed: " + found.assumed.join("; ") + "." : ""}`);
    const timeline = new Timeline("Simulated step", async () => { if (found.timeline.error) throw new Error(found.timeline.error); return found.timeline; });
    this.scatter = h("div", { class: "scatter" });
    const stages = found.stages.length > 32 ? found.stages.filter((_, i) => i % Math.ceil(found.stages.length / 32) === 0) : found.stages;
    this.out.replaceChildren(card("The best layout", [], words, counts),
      h("div", { class: "two" }, card("Layouts that fit: step time against memory", [], this.scatter, this.detail), card("Why this one", [], this.reasons(found.explain))),
      h("div", { class: "two" }, card("The best ten", [], this.list), card("Memory of one GPU, by stage", [], memoryKey(), memoryBars(stages, found.capacity))), timeline.element);
    timeline.show({ pipeline: true });
    this.choose(best);
    onResize(this.scatter, () => this.draw());
    say(`The best layout is ${found.describe}`);
  }

  reasons(explain) {
    const share = (one) => h("div", { class: "share" }, h("span", {}, one.what), h("div", { class: "bar" }, fill(h("i"), { style: { width: `${100 * one.part}%` } }, [])), h("span", { class: "amount" }, seconds(one.seconds)));
    return [h("h3", {}, "Where a step's time goes"), ...(explain.time || []).slice(0, 7).map(share),
      explain.binds?.length ? [h("h3", {}, "What limits it"), h("ul", { class: "plain" }, explain.binds.map((text) => h("li", {}, text)))] : [],
      explain.one_change?.length ? [h("h3", {}, "Effect of one change"), table(["axis", "to", "step"], explain.one_change.map((one) => [one.axis, `${one.from} → ${one.to}`, one.fits ? `${one.change >= 0 ? "+" : ""}${percent(one.change)}` : "does not fit"]), "Step time after one change of the layout")] : [],
      explain.warnings?.length ? h("ul", { class: "plain warn" }, explain.warnings.map((text) => h("li", {}, text))) : []];
  }

  choose(point) {
    this.chosen = point;
    this.draw();
    const known = [...this.found.top, ...this.found.front].find((one) => one.policy === point.policy);
    this.detail.replaceChildren(h("p", {}, h("b", {}, point.policy), h("br"), `${seconds(point.step_s)} a step (${point === this.found.top[0] ? "the best" : "+" + percent(point.step_s / this.found.top[0].step_s - 1)}), ${gigabytes(point.memory_bytes)}`,
      known ? `; compute ${seconds(known.compute_s)}, bubble ${seconds(known.bubble_s)}, exposed communication ${seconds(known.exposed_s)}` : ""));
    const rows = this.found.top.map((one) => [h("button", { type: "button", "aria-pressed": String(one === point), onclick: () => this.choose(one) }, one.policy), seconds(one.step_s), gigabytes(one.memory_bytes), percent(one.mfu), one.tie ? "tie" : ""]);
    this.list.replaceChildren(table(["layout", "step", "memory", "MFU", "tie"], rows, "The best ten layouts"), h("p", { class: "quiet" }, this.found.ties || ""));
  }

  draw() {
    const width = this.scatter?.clientWidth;
    if (!width) return;
    const { points, front, top, capacity } = this.found, height = Math.min(400, Math.max(260, width * 0.6)), left = 58, right = 14, upper = 14, bottom = 36;
    const best = top[0].step_s, slow = Math.min(8 * best, Math.max(...points.map((one) => one.step_s), best * 1.2));
    const x = (t) => left + Math.log(Math.min(t, slow) / best) / Math.log(slow / best) * (width - left - right - 8) + 6;
    const y = (m) => height - bottom - m / (capacity * 1.04) * (height - upper - bottom);
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${points.length} layouts: step time against memory. The table below lists the ten best layouts.` });
    for (const at of ticks(0, capacity / 1e9, 4)) svg.append(s("line", { class: "gridline", x1: left, x2: width - right, y1: y(at * 1e9), y2: y(at * 1e9) }), s("text", { x: left - 7, y: y(at * 1e9) + 4, "text-anchor": "end" }, `${at} GB`));
    for (const by of [1, 1.5, 2, 3, 4, 6, 8]) if (best * by <= slow * 1.001) svg.append(s("text", { x: x(best * by), y: height - 18, "text-anchor": "middle" }, seconds(best * by)));
    svg.append(s("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, "step time"), s("line", { class: "limit", x1: left, x2: width - right, y1: y(capacity), y2: y(capacity) }), s("text", { x: width - right, y: y(capacity) - 4, "text-anchor": "end" }, "memory of one GPU"));
    const stages = [...new Set(points.map((one) => Number(one.pp)))].sort((a, b) => a - b);
    for (const one of points) svg.append(s("circle", { class: `dim f${stages.indexOf(Number(one.pp)) % 8}`, cx: x(one.step_s).toFixed(1), cy: y(one.memory_bytes).toFixed(1), r: 3 }));
    svg.append(s("polyline", { class: "front", points: front.map((one) => `${x(one.step_s).toFixed(1)},${y(one.memory_bytes).toFixed(1)}`).join(" ") }));
    for (const one of front) svg.append(s("circle", { class: `f${stages.indexOf(Number(one.pp)) % 8}`, cx: x(one.step_s), cy: y(one.memory_bytes), r: 4.2 }));
    svg.append(s("circle", { class: `best f${stages.indexOf(Number(top[0].pp)) % 8}`, cx: x(best), cy: y(top[0].memory_bytes), r: 7 }));
    if (this.chosen && this.chosen !== top[0]) svg.append(s("circle", { class: "chosen", cx: x(this.chosen.step_s), cy: y(this.chosen.memory_bytes), r: 8 }));
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) * width / box.width, py = (event.clientY - box.top) * height / box.height;
      const away = (one) => Math.hypot(x(one.step_s) - px, y(one.memory_bytes) - py), all = [...top, ...front, ...points];
      const nearest = all.reduce((a, b) => away(b) < away(a) ? b : a);
      if (away(nearest) < 24) this.choose(nearest);
    });
    this.scatter.replaceChildren(h("ul", { class: "legend" }, stages.map((pp, i) => h("li", {}, h("i", { class: `swatch f${i % 8}` }), pp === 1 ? "no pipeline" : `${pp} stages`)), h("li", {}, "dashed line: Pareto front")), svg);
  }
}

const gigabytes = (value) => value === null || value === undefined ? "–" : `${number(value / 1e9, 3)} GB`;
const planKinds = ["parameter", "gradient", "optimizer", "activation", "buffer", "other"], planNames = ["parameters", "gradients", "optimizer", "activations", "buffers", "context and slack"];
function memoryKey() {
  return h("ul", { class: "legend" }, planNames.map((name, i) => h("li", {}, h("i", { class: `swatch m${i}` }), name)));
}
function memoryBars(stages, capacity) {
  const parts = (stage) => planKinds.map((kind) => (stage[kind] || 0) + (kind === "other" ? stage.slack || 0 : 0));
  const bars = stages.map((stage) => ({ name: `stage ${stage.stage}`, titles: planNames, parts: parts(stage) }));
  return [stackedBars(bars, "m", capacity * 1.02, gigabytes, "Memory of one GPU of each stage"),
    asTable(["stage", ...planNames], stages.map((stage) => [String(stage.stage), ...parts(stage).map(gigabytes)]), "Memory of one GPU of each stage")];
}
