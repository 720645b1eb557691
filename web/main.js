// The page: list of runs, sections, and the timer that updates them.
const kMostRuns = 8, kEvery = 1000;

class RunsPage {
  constructor() {
    this.list = h("ul", { class: "runs" });
    this.filter = h("input", { type: "search", "aria-label": "Filter runs by name, method or layout", placeholder: "filter", oninput: () => this.drawList() });
    this.found = h("p", { class: "quiet found", role: "status" });
    this.focusChoice = h("select", { "aria-label": "Run shown in detail", onchange: () => { this.focus = this.focusChoice.value; this.refresh(true); } });
    this.overview = new Overview();
    this.about = new AboutPanel();
    this.comparison = new ComparisonPanel();
    this.curves = new Curves();
    const load = (from, to, buckets) => source.timeline(this.focus, from, to, buckets);
    load.live = source.live;
    this.timeline = new Timeline("Timeline", load);
    this.shares = h("div");
    this.timeline.below.before(this.shares);
    this.timeline.onShares = (ranks, kinds, span) => this.drawShares(ranks, kinds, span);
    this.memory = new MemoryPanel();
    this.traffic = new TrafficPanel();
    this.slowest = new SlowestPanel((from, to) => this.curves.zoom(from, to));
    this.incidents = new IncidentsPanel();
    this.details = new Map();
    this.diff = new DiffPanel((name) => this.detailOf(name));
    this.content = h("div", {}, h("div", { class: "focus" }, h("h2", {}, "Run in detail"), this.focusChoice), this.about.element, this.overview.element, this.comparison.element, this.curves.element,
      this.timeline.element, h("div", { class: "two" }, this.memory.element, this.slowest.element), this.traffic.element, h("div", { class: "two" }, this.incidents.element, this.diff.element));
    this.focusCard = this.content.firstChild;
    this.side = h("aside", { class: "side card", "aria-label": "Runs" }, h("div", { class: "head" }, h("h2", {}, "Runs"), this.filter), this.found, this.list);
    this.element = h("div", { class: "layout" }, this.side, this.content);
    this.chosen = null;
  }

  drawShares(ranks, kinds, span) {
    if (ranks.length < 2) return void this.shares.replaceChildren();
    const classes = [...kinds.map((kind) => kind.i), 8], titles = [...kinds.map((kind) => kind.name), "idle"];
    const bars = ranks.map((one) => ({ name: `rank ${one.rank}`, titles: [0, 1, 2, 3, 4, 5, 6, 7, 8].map((i) => titles[classes.indexOf(i)] || ""), parts: [...[0, 1, 2, 3, 4, 5, 6, 7].map((i) => one.times[i] || 0), one.idle], note: `${percent(one.idle / span, 0)} idle` }));
    const key = JSON.stringify(bars.map((bar) => bar.parts.map(Math.round)));
    if (key === this.sharesKey) return;
    this.sharesKey = key;
    this.shares.replaceChildren(h("h3", {}, "Where each rank's time went in this window"), stackedBars(bars, "k", span, (us) => seconds(us / 1e6), "Time of each rank by kind"));
  }

  async detailOf(name) {
    const brief = this.runs.find((run) => run.name === name), held = this.details.get(name);
    if (held && held.version === `${brief?.version_log} ${brief?.version_rest}`) return held.detail;
    const detail = await source.run(name);
    this.details.set(name, { version: `${brief?.version_log} ${brief?.version_rest}`, detail });
    return detail;
  }

  styleOf(name) { return this.chosen.indexOf(name) % 8; }

  // Every word of the filter must occur in the run's name, state, method, compressor or layout.
  filtered() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    return this.runs.filter((run) => {
      const text = [run.name, run.state, run.row.method, run.row.compressor, run.row.layout].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  drawList() {
    const shown = this.filtered(), now = JSON.stringify([shown, this.runs.length, this.chosen]);
    if (now === this.listed) return;
    this.listed = now;
    this.found.textContent = shown.length < this.runs.length ? `${shown.length} of ${this.runs.length} runs` : "";
    const at = document.activeElement?.dataset?.run;
    this.list.replaceChildren(...shown.map((run, i) => {
      const on = this.chosen.includes(run.name), id = `run-${i}`;
      const box = h("input", { type: "checkbox", id, "data-run": run.name, onchange: () => this.choose(run.name, box.checked) });
      box.checked = on;
      box.disabled = run.state === "unreadable";
      return h("li", {}, box, h("i", { class: `swatch ${on ? "f" + this.styleOf(run.name) : "k8"}` }), h("label", { for: id }, run.name),
        h("span", { class: "of" }, h("span", { class: `pill ${run.state.split(" ")[0]}` }, run.state), ` step ${run.step.toLocaleString("en")}${run.loss !== null ? `, loss ${number(run.loss, 3)}` : ""}`,
          run.row.error ? h("span", { class: "bad" }, run.row.error) : null));
    }));
    if (at) for (const box of this.list.querySelectorAll("input")) if (box.dataset.run === at) box.focus();
    this.side.hidden = this.runs.length < 2;
    this.element.classList.toggle("layout", this.runs.length > 1);
    this.focusCard.hidden = this.chosen.length < 2;
    this.focusChoice.replaceChildren(...this.chosen.map((name) => h("option", { value: name }, name)));
    this.focusChoice.value = this.focus;
  }

  choose(name, on) {
    this.chosen = on ? [...this.chosen, name].slice(-kMostRuns) : this.chosen.filter((one) => one !== name);
    if (!this.chosen.includes(this.focus)) this.focus = this.chosen[0];
    this.refresh(true);
  }

  async tick() {
    const { runs } = await source.runs();
    this.runs = runs.sort((a, b) => b.changed_s - a.changed_s || (a.name < b.name ? -1 : 1));
    const readable = this.runs.filter((run) => run.state !== "unreadable").map((run) => run.name);
    // Default selection: the runs that changed last.
    if (!this.chosen) this.chosen = readable.slice(0, source.live ? 3 : kMostRuns);
    this.chosen = this.chosen.filter((name) => readable.includes(name));
    if (!this.chosen.includes(this.focus)) this.focus = this.chosen[0];
    await this.refresh(false);
  }

  async refresh(force) {
    this.drawList();
    if (!this.chosen.length) return;
    const of = (name) => this.runs.find((run) => run.name === name), chosen = this.chosen.map((name) => ({ name, style: this.styleOf(name) }));
    const version = JSON.stringify([chosen, this.curves.range, this.chosen.map((name) => [of(name)?.version_log, of(name)?.version_rest])]);
    const changed = version !== this.version || force;
    if (!changed) return;
    this.version = version;
    const seen = of(this.focus), trace = `${this.focus} ${seen?.trace} ${seen?.version_trace}`;
    if (seen?.trace && trace !== this.trace) this.timeline.begin();
    const [data, detail] = await Promise.all([this.curves.load(chosen), this.detailOf(this.focus)]);
    const brief = of(this.focus);
    this.comparison.show(chosen.map((run) => ({ brief: of(run.name), style: run.style })).filter((run) => run.brief));
    document.title = `${brief.state === "running" ? "● " : ""}${this.focus} · Espalier`;
    this.curves.marks = (detail.incidents || []).map((one) => one.step).filter((step) => step > 0);
    this.about.show(brief, detail, source.sample(this.focus));
    this.overview.show(brief, detail, data.get(this.focus));
    this.slowest.show(detail, chosen, data, this.curves.range);
    const rest = `${this.focus} ${brief.version_rest}`;
    if (rest !== this.rest || force) {
      this.rest = rest;
      this.memory.show(detail);
      this.traffic.show(detail);
      this.incidents.show(detail);
      this.diff.show(this.runs.map((run) => run.name).filter((name) => source.live || this.runs.length), this.focus);
    }
    if (trace !== this.trace) {
      const grown = this.traced === this.focus;
      this.trace = trace;
      this.traced = this.focus;
      await this.timeline.show(pipelineOf(detail), grown);
    }
  }
}

// Ideal bubble of the pipeline schedule, if all stages take equal time and messages take none (Narayanan et al. 2021).
function pipelineOf(detail) {
  const layout = detail.summary?.layout || {}, keys = keysOf(detail.run_toml);
  const stages = layout.pp || Number(keys.get("parallel.pp")) || 1, schedule = (layout.schedule || keys.get("parallel.schedule") || "").replace(/["']/g, "");
  if (stages < 2) return { pipeline: false };
  const micro = Number(keys.get("train.global_batch")) / (Number(keys.get("train.micro_batch")) || 1) / (layout.dp || 1), chunks = layout.interleave || 1;
  const ideal = { gpipe: (stages - 1) / micro, "1f1b": (stages - 1) / micro, interleaved: (stages - 1) / micro / chunks }[schedule];
  return { pipeline: true, ideal: `${schedule}, ${stages} stages, ${micro} micro-batches${ideal ? `: ${percent(ideal)} in theory` : ""}` };
}

const pages = { runs: new RunsPage(), planner: new Planner() };
const link = document.getElementById("link"), main = document.getElementById("main");

function show(name) {
  if (!pages[name]) name = "runs";
  for (const item of document.querySelectorAll("#pages a")) {
    if (item.dataset.page === name) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  main.replaceChildren(pages[name].element);
  if (name === "planner") pages.planner.open().catch((error) => main.replaceChildren(h("p", { class: "bad" }, error.message)));
}

async function live() {
  for (;;) {
    try {
      if (!document.hidden) {
        await pages.runs.tick();
        link.textContent = source.live ? "live" : "";
        link.classList.remove("bad");
      }
    } catch (error) {
      link.textContent = `no answer: ${error.message}`;
      link.classList.add("bad");
    }
    await new Promise((done) => setTimeout(done, kEvery));
  }
}

async function start() {
  const first = await source.runs();
  if (!first.runs.length) {
    main.replaceChildren(card("No runs yet", [], h("p", {}, "This folder contains no run. Start one with ", h("code", {}, "espalier train RUN.toml --run-dir …"), "; this page finds it by itself.")));
    while (source.live && !(await source.runs()).runs.length) await new Promise((done) => setTimeout(done, kEvery));
  }
  if (source.live && first.planner) {
    document.getElementById("pages").replaceChildren(h("a", { href: "#runs", "data-page": "runs" }, "Runs"), h("a", { href: "#planner", "data-page": "planner" }, "Planner"));
    addEventListener("hashchange", () => show(location.hash.slice(1)));
  } else {
    link.textContent = "report";
  }
  show(location.hash.slice(1) || "runs");
  if (source.live) await live();
  else await pages.runs.tick();
}
start().catch((error) => main.replaceChildren(h("p", { class: "bad" }, error.message)));
