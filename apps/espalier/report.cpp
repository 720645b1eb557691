// espalier report: writes the dashboard page of one or several runs as one HTML file.
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/dash_providers.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/dash/page.h"
#include "esp/train/data_pipeline.h"
#include "esp/train/sampling.h"

namespace esp::app {
namespace {

struct ReportOptions {
  std::vector<std::string> folders;
  std::string out;
};

constexpr uint64_t kMaxSampledBytes = uint64_t{512} << 20;
constexpr Duration kSampling = std::chrono::seconds(5);
constexpr int64_t kSampleTokens = 240;
constexpr const char* kPrompt = "\n";

uint64_t bytes_under(const std::string& folder) {
  uint64_t sum = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder))
    if (file.is_regular_file()) sum += file.file_size();
  return sum;
}

// Samples text from the newest checkpoint, with a fixed seed. Large models get no sample, because it would take too
// long.
Json make_sample(const std::string& folder) {
  try {
    const std::string checkpoint = train::resolve_checkpoint(folder);
    if (const uint64_t bytes = bytes_under(checkpoint); bytes > kMaxSampledBytes)
      return {{"none",
               fmt::format(
                   "the checkpoint has {}, too much for a sample in this page. Use espalier generate --checkpoint {}",
                   human_bytes(bytes), folder)}};
    const auto loaded = train::load_model(checkpoint);
    train::SamplingOptions sampling;
    sampling.temperature = 0.8;
    const Deadline deadline = Deadline::after(kSampling);
    const std::vector<int32_t> sample =
        train::generate(*loaded, data::encode(train::require_tokenizer(*loaded), kPrompt), kSampleTokens, sampling,
                        [&](int32_t) { return !deadline.passed(); });
    return {{"text", loaded->tokenizer->decode(sample)},
            {"prompt", kPrompt},
            {"temperature", sampling.temperature},
            {"seed", sampling.seed},
            {"step", loaded->step}};
  } catch (const std::exception& error) {
    return {{"none", error.what()}};
  }
}

int run_report(const ReportOptions& o) {
  std::vector<std::unique_ptr<dash::RunFolder>> runs;
  std::vector<dash::RunFolder*> run_folders;
  for (const std::string& folder : o.folders)
    if (::access(folder.c_str(), R_OK | X_OK) == 0 && !dash::is_run_folder(folder))
      throw IoError(fmt::format("{}: got a folder without run.toml and metrics.jsonl; expected a run folder", folder));
  std::vector<std::string> refused;
  int num_readable = 0;
  for (const dash::FoundRun& run : dash::find_all_runs(o.folders, &refused)) {
    runs.push_back(std::make_unique<dash::RunFolder>(run.path, run.name));
    run_folders.push_back(runs.back().get());
    const Json list_entry = runs.back()->list_entry();
    num_readable += list_entry.at("state") != dash::kUnreadable;
    if (const auto error = list_entry.at("row").find("error"); error != list_entry.at("row").end())
      refused.push_back(fmt::format("{}: {}", run.path, error->get<std::string>()));
  }
  const std::string why = fmt::format("{}", fmt::join(refused, "\n"));
  if (num_readable == 0) throw IoError(why);
  if (!why.empty()) fmt::print(stderr, "{}\n", why);
  // By default the report is written into the folder of the first run.
  const char* name = run_folders.size() == 1 ? "report.html" : "comparison.html";
  const std::string out = o.out.empty() ? fmt::format("{}/{}", o.folders.front(), name) : o.out;
  dash::DataProviders providers = dash_data_providers();
  providers.sample = make_sample;
  write_file(out, dash::report_page(run_folders, providers));
  if (out != "-") fmt::print("{}\n", out);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_report(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<ReportOptions>(app, chosen, run_report);
  app.add_option("folders", o->folders, "one run folder, or several to compare").type_name("RUN_DIR").required();
  app.add_option("--out", o->out, "HTML file [RUN_DIR/report.html; several runs: comparison.html]; - is stdout")
      .type_name("FILE");
}

}  // namespace esp::app
