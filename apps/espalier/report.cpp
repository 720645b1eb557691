// espalier report: a run's page as one file, for keeping and for sending.
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/dash_knowledge.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/dash/page.h"
#include "esp/train/feed.h"
#include "esp/train/sampling.h"

namespace esp::app {
namespace {

struct Report {
  std::vector<std::string> folders;
  std::string out;
};

constexpr uint64_t kMostSampled_bytes = uint64_t{512} << 20;
constexpr Duration kSampling = std::chrono::seconds(5);
constexpr int64_t kSampleTokens = 240;
constexpr const char* kPrompt = "\n";

uint64_t bytes_under(const std::string& folder) {
  uint64_t sum = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder))
    if (file.is_regular_file()) sum += file.file_size();
  return sum;
}

// A text from the run's newest checkpoint, the same for the same checkpoint; small enough to be made while one waits.
Json sample_of(const std::string& folder) {
  try {
    const std::string checkpoint = train::checkpoint_at(folder);
    if (const uint64_t bytes = bytes_under(checkpoint); bytes > kMostSampled_bytes)
      return {{"none", fmt::format("the checkpoint has {}; espalier generate --checkpoint {} samples it",
                                   human_bytes(bytes), folder)}};
    const auto loaded = train::load_model(checkpoint);
    train::SamplingOptions sampling;
    sampling.temperature = 0.8;
    const Deadline deadline = Deadline::after(kSampling);
    const std::vector<int32_t> made =
        train::generate(*loaded, data::encode(train::tokenizer_of(*loaded), kPrompt), kSampleTokens, sampling,
                        [&](int32_t) { return !deadline.passed(); });
    return {{"text", loaded->tokenizer->decode(made)},
            {"prompt", kPrompt},
            {"temperature", sampling.temperature},
            {"seed", sampling.seed},
            {"step", loaded->step}};
  } catch (const std::exception& error) {
    return {{"none", error.what()}};
  }
}

int run_report(const Report& o) {
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
    const Json brief = runs.back()->brief();
    num_readable += brief.at("state") != dash::kUnreadable;
    if (const auto error = brief.at("row").find("error"); error != brief.at("row").end())
      refused.push_back(fmt::format("{}: {}", run.path, error->get<std::string>()));
  }
  const std::string why = fmt::format("{}", fmt::join(refused, "\n"));
  if (num_readable == 0) throw IoError(why);
  if (!why.empty()) fmt::print(stderr, "{}\n", why);
  const char* name = run_folders.size() == 1 ? "report.html" : "comparison.html";  // beside the first one's own
  const std::string out = o.out.empty() ? fmt::format("{}/{}", o.folders.front(), name) : o.out;
  dash::Knowledge knowledge = dash_knowledge();
  knowledge.sample = sample_of;
  write_file(out, dash::report_page(run_folders, knowledge));
  if (out != "-") fmt::print("{}\n", out);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_report(const Arguments& app, Chosen& chosen) {
  auto o = keep<Report>(app, chosen, run_report);
  app.add_option("folders", o->folders, "one run folder, or several to compare").type_name("RUN_DIR").required();
  app.add_option("--out", o->out,
                 "the page [RUN_DIR/report.html, of several comparison.html in the first]; - is stdout")
      .type_name("FILE");
}

}  // namespace esp::app
