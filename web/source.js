// Data source: the dashboard server, or the JSON embedded in the page if the page is a report.
const embedded = document.getElementById("data");
const report = embedded ? JSON.parse(embedded.textContent) : null;

async function ask(what, parameters) {
  const query = new URLSearchParams(parameters || {}).toString();
  const answer = await fetch(`api/${what}${query ? "?" + query : ""}`, { cache: "no-store" });
  const json = await answer.json();
  if (json.error && !json.points) throw new Error(json.error);
  return json;
}

const ofReport = (name) => report.runs.find((run) => run.brief.name === name);

const source = {
  live: !report,
  runs: async () => report ? { runs: report.runs.map((run) => run.brief), planner: false } : ask("runs"),
  run: async (name) => report ? ofReport(name).detail : ask("run", { run: name }),
  series: async (name, keys, from, to, buckets) => report
    ? ofReport(name).series
    : ask("series", { run: name, keys: keys.join(","), buckets, ...(Number.isFinite(from) ? { from, to } : {}) }),
  timeline: async (name, from, to, buckets) => {
    if (!report) return ask("timeline", { run: name, buckets, ...(Number.isFinite(from) ? { from, to } : {}) });
    const held = ofReport(name).timeline;
    if (!held) throw new Error("this run wrote no trace. Set log.trace = true in its run file");
    if (held.error) throw new Error(held.error);
    return held;
  },
  sample: (name) => report ? ofReport(name).sample : null,  // only in reports
  planChoices: () => ask("plan/choices"),
  plan: (parameters) => ask("plan/search", parameters),
};
