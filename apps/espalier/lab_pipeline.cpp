// espalier lab pipeline: runs pipeline schedules with real ranks and in virtual time, and shows their bubbles.
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

struct PipelineLabOptions {
  int stages = 4, micro_batches = 8, chunks = 2;
  double unit_ms = 4;
  std::vector<std::string> files;
  std::string json, out;
};

struct ScheduleResult {
  PipelineSchedule schedule;
  double formula = 0;  // makespan by the formula, in units; 0: unknown (schedule from a file)
  Timeline expected;   // times in units
  PipelineRun run;
  bool same_gradients = false;
};

// Interleaved schedules are left out if the number of micro-batches is not a multiple of the number of stages.
bool left_out(const parallel::ScheduleRow& row, const PipelineLabOptions& options) {
  return row.chunked && options.micro_batches % options.stages != 0;
}

std::vector<PipelineSchedule> schedules_of(const PipelineLabOptions& options) {
  std::vector<PipelineSchedule> results;
  for (const parallel::ScheduleRow& row : parallel::schedules())
    if (!left_out(row, options))
      results.push_back(
          parallel::make_schedule(row.name, {options.stages, row.chunked ? options.chunks : 1, options.micro_batches}));
  for (const std::string& file : options.files)
    results.push_back(parallel::parse_schedule_text(obs::read_whole_file(file, parallel::kMaxScheduleTextBytes), file));
  return results;
}

std::vector<ScheduleResult> draw_all(const PipelineLabOptions& options) {
  std::vector<PipelineSchedule> results = schedules_of(options);
  // All schedules run the same model, so it needs at least one unit per chunk of every schedule.
  int num_units = 1;
  for (const PipelineSchedule& schedule : results) num_units = std::max(num_units, schedule.shape.virtual_stages());

  std::vector<ScheduleResult> drawn;
  for (PipelineSchedule& schedule : results) {
    ScheduleResult result;
    const auto m = schedule.shape.micro_batches;
    const PipelineRun alone = run_pipeline(parallel::make_schedule("none", {1, 1, m}), num_units, 0);
    result.expected = parallel::simulate(schedule, parallel::equal_costs(schedule.shape, kUnits));
    result.run = run_pipeline(schedule, num_units, options.unit_ms);
    result.same_gradients = result.run.gradients == alone.gradients;
    for (const parallel::ScheduleRow& row : parallel::schedules())
      if (row.name == schedule.name) result.formula = row.makespan(schedule.shape, kUnits);
    result.schedule = std::move(schedule);
    drawn.push_back(std::move(result));
  }
  return drawn;
}

std::string percent(double ratio) {
  return fmt::format("{:.1f} %", 100 * ratio);
}

std::string table_of(const PipelineLabOptions& options, const std::vector<ScheduleResult>& results) {
  std::vector<Cells> rows;
  for (const ScheduleResult& result : results)
    rows.push_back({result.schedule.name, result.formula > 0 ? fmt::format("{:g}", result.formula) : "–",
                    fmt::format("{:g}", result.expected.makespan),
                    fmt::format("{:.1f}", result.run.timeline.makespan / options.unit_ms),
                    percent(result.expected.bubble_of_ideal()), percent(result.run.timeline.bubble_of_ideal()),
                    percent(result.expected.bubble_of_total()), percent(result.run.timeline.bubble_of_total()),
                    fmt::format("{}", fmt::join(result.run.peak_live, " ")),
                    fmt::format("{}", result.run.boundary_bytes / result.run.message_bytes),
                    result.same_gradients ? "same bits" : "DIFFERENT"});
  return text_table({"", "units: formula", "virtual", "executed", "bubble/ideal: virtual", "executed",
                     "bubble/total: virtual", "executed", "peak live by stage", "messages", "gradients"},
                    rows);
}

std::vector<TimelinePicture> pictures_of(const PipelineLabOptions& options, const ScheduleResult& result) {
  const int chunks = result.schedule.shape.chunks;
  const std::string name =
      chunks > 1 ? fmt::format("{}, {} chunks per stage", result.schedule.name, chunks) : result.schedule.name;
  return {{fmt::format("{}, virtual time: {:g} units, bubble {} of the ideal", name, result.expected.makespan,
                       percent(result.expected.bubble_of_ideal())),
           result.expected, chunks, 1},
          {fmt::format("{}, executed: {:.1f} ms, bubble {}", name, result.run.timeline.makespan,
                       percent(result.run.timeline.bubble_of_ideal())),
           result.run.timeline, chunks, options.unit_ms}};
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

Json report_of(const PipelineLabOptions& options, const std::vector<ScheduleResult>& results) {
  Json rows = Json::array();
  for (const ScheduleResult& result : results) {
    const parallel::ScheduleShape& shape = result.schedule.shape;
    Json expected_live = Json::array();
    for (int stage = 0; stage < shape.stages; ++stage) expected_live.push_back(peak_live(result.schedule, stage));
    Json row = {{"schedule", result.schedule.name},
                {"stages", shape.stages},
                {"chunks", shape.chunks},
                {"micro_batches", shape.micro_batches},
                {"virtual", json_of(result.expected, shape.chunks)},
                {"executed", json_of(result.run.timeline, shape.chunks)},
                {"waited_ms", result.run.waited_ms},
                {"live", std::move(expected_live)},
                {"live_executed", result.run.peak_live},
                {"boundary_bytes", result.run.boundary_bytes},
                {"message_bytes", result.run.message_bytes},
                {"same_gradients", result.same_gradients}};
    if (result.formula > 0) row["formula"] = result.formula;
    rows.push_back(std::move(row));
  }
  return {{"unit_ms", options.unit_ms}, {"rows", std::move(rows)}};
}

void check(const PipelineLabOptions& options) {
  const auto within = [](const char* name, int value, int most) {
    if (value < 1 || value > most) throw UsageError(fmt::format("{}: got {}; expected 1 to {}", name, value, most));
  };
  within("--stages", options.stages, 16);
  within("--micro-batches", options.micro_batches, 64);
  within("--chunks", options.chunks, 8);
  if (!(options.unit_ms >= 0.1 && options.unit_ms <= 1000))
    throw UsageError(fmt::format("--unit-ms: got {}; expected 0.1 to 1000", options.unit_ms));
}

Findings findings_of(const PipelineLabOptions& o, const std::vector<ScheduleResult>& results) {
  Findings findings;
  const double p = o.stages, m = o.micro_batches;
  for (const ScheduleResult& result : results) {
    const std::string& name = result.schedule.name;
    if (result.formula > 0)
      findings.exact(fmt::format("{}: units per step; executed {:.1f}", name, result.run.timeline.makespan / o.unit_ms),
                     "", result.formula, result.expected.makespan);
    if (name == "gpipe" || name == "1f1b") {
      findings.within(fmt::format("{}: bubble / ideal time", name), "(N−1)/m", (p - 1) / m,
                      result.expected.bubble_of_ideal(), 1e-12);
      findings.within(fmt::format("{}: bubble / total time", name), "(P−1)/(m+P−1)", (p - 1) / (m + p - 1),
                      result.expected.bubble_of_total(), 1e-12);
    }
    std::vector<int> live;
    for (int stage = 0; stage < result.schedule.shape.stages; ++stage)
      live.push_back(peak_live(result.schedule, stage));
    findings.same(fmt::format("{}: peak live micro-batches by stage", name), name == "1f1b" ? "P − stage" : "",
                  fmt::format("{}", fmt::join(live, " ")), fmt::format("{}", fmt::join(result.run.peak_live, " ")));
    findings.holds(fmt::format("{}: gradients equal those of one process", name), "", "same bits",
                   result.same_gradients ? "same bits" : "different", result.same_gradients);
  }
  return findings;
}

int run_lab_pipeline(const PipelineLabOptions& options) {
  check(options);
  const std::vector<ScheduleResult> results = draw_all(options);
  std::string text;
  std::vector<TimelinePicture> pictures;
  for (const ScheduleResult& result : results)
    for (TimelinePicture& picture : pictures_of(options, result)) {
      text += timeline_text(picture, 99) + "\n";
      pictures.push_back(std::move(picture));
    }
  text += fmt::format(
      "{}\n"
      "{}\n"
      "The unit of time is the forward of one stage; input gradients and weight gradients take one "
      "unit each. Executed by one\n"
      "rank per stage over a toy model; each action takes {:g} ms per unit, so that stages do not "
      "compete for cores.\n"
      "Peak live: largest number of micro-batches (interleaved: chunks) in flight on a stage.\n"
      "Messages: activations and gradients between stages, both directions.\n",
      timeline_key(), table_of(options, results), options.unit_ms);
  for (const parallel::ScheduleRow& row : parallel::schedules())
    if (left_out(row, options))
      text += fmt::format("Left out: {}, which needs a number of micro-batches divisible by {}.\n", row.name,
                          options.stages);
  const std::string title = fmt::format("Pipeline schedules, P = {}, m = {}", options.stages, options.micro_batches);
  return finish_lab({options.json, options.out}, "pipeline", text, report_of(options, results),
                    timelines_svg(title, pictures), findings_of(options, results));
}

}  // namespace

void define_lab_pipeline(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<PipelineLabOptions>(app, chosen, run_lab_pipeline);
  app.add_option("--stages", o->stages, "pipeline stages, one rank each [4]").type_name("P");
  app.add_option("--micro-batches", o->micro_batches, "micro-batches per step [8]").type_name("M");
  app.add_option("--chunks", o->chunks, "chunks per stage of the interleaved schedule [2]").type_name("V");
  app.add_option("--unit-ms", o->unit_ms, "duration of the forward of a stage when executed, in ms [4]")
      .type_name("MS");
  app.add_option("--schedule", o->files, "file with one more schedule to run; repeatable").type_name("FILE");
  app.add_option("--json", o->json, "write the figures as JSON").type_name("FILE");
  app.add_option("--out", o->out, "folder for text, JSON and picture").type_name("DIR");
}

}  // namespace esp::app
