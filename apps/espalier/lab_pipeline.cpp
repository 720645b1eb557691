// espalier lab pipeline: pipeline schedules run by real ranks and in virtual time, with their bubbles.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/lab_output.h"
#include "apps/espalier/lab_pipeline_run.h"
#include "apps/espalier/lab_timeline.h"
#include "apps/espalier/text_table.h"
#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/parallel/pp/schedule_text.h"
#include "esp/parallel/pp/simulate.h"
#include "esp/parallel/pp/steps.h"

namespace esp::app {
namespace {

using parallel::PipelineSchedule;
using parallel::Timeline;

constexpr parallel::StageTimes kUnits{1, 1, 1};

struct PipelineLab {
  int stages = 4, micro_batches = 8, chunks = 2;
  double unit_ms = 4;
  std::vector<std::string> files;
  std::string json, out;
};

struct Drawn {
  PipelineSchedule schedule;
  double formula = 0;  // units; 0: unknown, of a user's file
  Timeline expected;   // in units
  PipelineRun run;
  bool same_gradients = false;
};

// Interleaved schedules need micro-batches in multiples of the stages.
bool left_out(const parallel::ScheduleRow& row, const PipelineLab& options) {
  return row.chunked && options.micro_batches % options.stages != 0;
}

std::vector<PipelineSchedule> schedules_of(const PipelineLab& options) {
  std::vector<PipelineSchedule> all;
  for (const parallel::ScheduleRow& row : parallel::schedules())
    if (!left_out(row, options))
      all.push_back(
          parallel::make_schedule(row.name, {options.stages, row.chunked ? options.chunks : 1, options.micro_batches}));
  for (const std::string& file : options.files)
    all.push_back(parallel::parse_schedule_text(obs::read_whole_file(file, parallel::kMaxScheduleTextBytes), file));
  return all;
}

std::vector<Drawn> draw_all(const PipelineLab& options) {
  std::vector<PipelineSchedule> all = schedules_of(options);
  int num_units = 1;  // one model for all, with a unit for every piece
  for (const PipelineSchedule& schedule : all) num_units = std::max(num_units, schedule.shape.pieces());

  std::vector<Drawn> drawn;
  for (PipelineSchedule& schedule : all) {
    Drawn one;
    const auto m = schedule.shape.micro_batches;
    const PipelineRun alone = run_pipeline(parallel::make_schedule("none", {1, 1, m}), num_units, 0);
    one.expected = parallel::simulate(schedule, parallel::equal_costs(schedule.shape, kUnits));
    one.run = run_pipeline(schedule, num_units, options.unit_ms);
    one.same_gradients = one.run.gradients == alone.gradients;
    for (const parallel::ScheduleRow& row : parallel::schedules())
      if (row.name == schedule.name) one.formula = row.makespan(schedule.shape, kUnits);
    one.schedule = std::move(schedule);
    drawn.push_back(std::move(one));
  }
  return drawn;
}

std::string percent(double ratio) {
  return fmt::format("{:.1f} %", 100 * ratio);
}

std::string table_of(const PipelineLab& options, const std::vector<Drawn>& all) {
  std::vector<Cells> rows;
  for (const Drawn& one : all)
    rows.push_back({one.schedule.name, one.formula > 0 ? fmt::format("{:g}", one.formula) : "–",
                    fmt::format("{:g}", one.expected.makespan),
                    fmt::format("{:.1f}", one.run.timeline.makespan / options.unit_ms),
                    percent(one.expected.bubble_of_ideal()), percent(one.run.timeline.bubble_of_ideal()),
                    percent(one.expected.bubble_of_total()), percent(one.run.timeline.bubble_of_total()),
                    fmt::format("{}", fmt::join(one.run.peak_live, " ")),
                    fmt::format("{}", one.run.boundary_bytes / one.run.message_bytes),
                    one.same_gradients ? "same bits" : "DIFFERENT"});
  return text_table({"", "formula", "virtual", "executed", "bubble/ideal", "executed", "bubble/total", "executed",
                     "live by stage", "messages", "gradients"},
                    rows);
}

std::vector<TimelinePicture> pictures_of(const PipelineLab& options, const Drawn& one) {
  const int chunks = one.schedule.shape.chunks;
  const std::string name =
      chunks > 1 ? fmt::format("{}, {} chunks a stage", one.schedule.name, chunks) : one.schedule.name;
  return {{fmt::format("{}, virtual time: {:g} units, bubble {} of the ideal", name, one.expected.makespan,
                       percent(one.expected.bubble_of_ideal())),
           one.expected, chunks, 1},
          {fmt::format("{}, executed: {:.1f} ms, bubble {}", name, one.run.timeline.makespan,
                       percent(one.run.timeline.bubble_of_ideal())),
           one.run.timeline, chunks, options.unit_ms}};
}

Json json_of(const Timeline& timeline, int chunks) {
  Json stages = Json::array();
  for (const parallel::StageTimeline& stage : timeline.stages) {
    Json actions = Json::array();
    for (const parallel::TimedAction& timed : stage.actions)
      actions.push_back({parallel::name_of(timed.action, chunks), timed.begin, timed.end});
    stages.push_back({{"busy", stage.busy}, {"idle", stage.idle}, {"actions", std::move(actions)}});
  }
  return {{"makespan", timeline.makespan},
          {"bubble_of_ideal", timeline.bubble_of_ideal()},
          {"bubble_of_total", timeline.bubble_of_total()},
          {"stages", std::move(stages)}};
}

Json report_of(const PipelineLab& options, const std::vector<Drawn>& all) {
  Json rows = Json::array();
  for (const Drawn& one : all) {
    const parallel::ScheduleShape& shape = one.schedule.shape;
    Json expected_live = Json::array();
    for (int stage = 0; stage < shape.stages; ++stage) expected_live.push_back(peak_live(one.schedule, stage));
    Json row = {{"schedule", one.schedule.name},
                {"stages", shape.stages},
                {"chunks", shape.chunks},
                {"micro_batches", shape.micro_batches},
                {"virtual", json_of(one.expected, shape.chunks)},
                {"executed", json_of(one.run.timeline, shape.chunks)},
                {"waited_ms", one.run.waited_ms},
                {"live", std::move(expected_live)},
                {"live_executed", one.run.peak_live},
                {"boundary_bytes", one.run.boundary_bytes},
                {"message_bytes", one.run.message_bytes},
                {"same_gradients", one.same_gradients}};
    if (one.formula > 0) row["formula"] = one.formula;
    rows.push_back(std::move(row));
  }
  return {{"unit_ms", options.unit_ms}, {"rows", std::move(rows)}};
}

void check(const PipelineLab& options) {
  const auto within = [](const char* name, int value, int most) {
    if (value < 1 || value > most) throw UsageError(fmt::format("{} {}: between 1 and {}", name, value, most));
  };
  within("--stages", options.stages, 16);
  within("--micro-batches", options.micro_batches, 64);
  within("--chunks", options.chunks, 8);
  if (!(options.unit_ms >= 0.1 && options.unit_ms <= 1000))
    throw UsageError(fmt::format("--unit-ms {}: between 0.1 and 1000", options.unit_ms));
}

Findings findings_of(const PipelineLab& o, const std::vector<Drawn>& all) {
  Findings findings;
  const double p = o.stages, m = o.micro_batches;
  for (const Drawn& one : all) {
    const std::string& name = one.schedule.name;
    if (one.formula > 0)
      findings.exact(fmt::format("{}: units of a step; executed {:.1f}", name, one.run.timeline.makespan / o.unit_ms),
                     "", one.formula, one.expected.makespan);
    if (name == "gpipe" || name == "1f1b") {
      findings.within(fmt::format("{}: bubble of the ideal", name), "(N−1)/m", (p - 1) / m,
                      one.expected.bubble_of_ideal(), 1e-12);
      findings.within(fmt::format("{}: bubble of the whole", name), "(P−1)/(m+P−1)", (p - 1) / (m + p - 1),
                      one.expected.bubble_of_total(), 1e-12);
    }
    std::vector<int> live;
    for (int stage = 0; stage < one.schedule.shape.stages; ++stage) live.push_back(peak_live(one.schedule, stage));
    findings.same(fmt::format("{}: micro-batches live, by stage", name), name == "1f1b" ? "P − stage" : "",
                  fmt::format("{}", fmt::join(live, " ")), fmt::format("{}", fmt::join(one.run.peak_live, " ")));
    findings.holds(fmt::format("{}: gradients are one process's", name), "", "same bits",
                   one.same_gradients ? "same bits" : "different", one.same_gradients);
  }
  return findings;
}

int run_lab_pipeline(const PipelineLab& options) {
  check(options);
  const std::vector<Drawn> all = draw_all(options);
  std::string text;
  std::vector<TimelinePicture> pictures;
  for (const Drawn& one : all)
    for (TimelinePicture& picture : pictures_of(options, one)) {
      text += timeline_text(picture, 99) + "\n";
      pictures.push_back(std::move(picture));
    }
  text += fmt::format(
      "{}\n{}\nTimes in units of one stage's forward; input gradients take one unit, weight gradients one. Executed by "
      "one rank per\nstage over a toy model; each action takes {:g} ms per unit, so that stages do not compete for "
      "cores. Live: peak number of\nmicro-batches (interleaved: chunks) on a stage. Messages: activations and "
      "gradients between stages, both directions.\n",
      timeline_key(), table_of(options, all), options.unit_ms);
  for (const parallel::ScheduleRow& row : parallel::schedules())
    if (left_out(row, options))
      text += fmt::format("Left out: {}, which takes micro-batches {} at a time.\n", row.name, options.stages);
  const std::string title = fmt::format("Pipeline schedules, P = {}, m = {}", options.stages, options.micro_batches);
  return finish_lab({options.json, options.out}, "pipeline", text, report_of(options, all),
                    timelines_svg(title, pictures), findings_of(options, all));
}

}  // namespace

void define_lab_pipeline(const Arguments& app, Chosen& chosen) {
  auto o = keep<PipelineLab>(app, chosen, run_lab_pipeline);
  app.add_option("--stages", o->stages, "pipeline stages, a rank each [4]").type_name("P");
  app.add_option("--micro-batches", o->micro_batches, "micro-batches of a step [8]").type_name("M");
  app.add_option("--chunks", o->chunks, "chunks a stage, of interleaved [2]").type_name("V");
  app.add_option("--unit-ms", o->unit_ms, "time of a stage's forward, when executed [4]").type_name("MS");
  app.add_option("--schedule", o->files, "a schedule of your own, as text; may be given again").type_name("FILE");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
