#include "apps/espalier/lab_all.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "apps/espalier/bench_job.h"
#include "apps/espalier/lab_child.h"
#include "apps/espalier/lab_page.h"
#include "apps/espalier/machine.h"
#include "apps/espalier/output_file.h"
#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/obs/file.h"

namespace esp::app {
namespace {

constexpr auto kLimit = std::chrono::minutes(5);  // timeout per lab
constexpr size_t kLargest = size_t{32} << 20;

std::string read_if_there(const std::string& path) {
  return std::filesystem::exists(path) ? obs::read_whole_file(path, kLargest) : "";
}

LabResult run_one(const Experiment& lab, std::string_view chapter, const std::string& out) {
  LabResult result;
  result.lab = &lab;
  result.chapter = chapter;
  const std::string name(lab.command.name), stem = out + "/" + name;
  for (const char* end : {".txt", ".json", ".svg", ".findings.json"}) std::filesystem::remove(stem + end);
  ChildCommand order{{executable_path(), "lab", name, "--out", out}, {{"NO_COLOR", "1"}}};
  std::istringstream words{std::string(lab.in_all)};
  for (std::string word; words >> word;) order.command.push_back(word);
  const int64_t begun = now_ns();
  const std::vector<ChildResult> ended = run_children({order}, kLimit);
  result.seconds = static_cast<double>(now_ns() - begun) * 1e-9;
  result.exit_code = ended[0].code;
  if (result.exit_code != 0) result.error_text = ended[0].err;
  result.text = read_if_there(stem + ".txt");
  result.svg = read_if_there(stem + ".svg");
  result.findings_json = read_if_there(stem + ".findings.json");
  return result;
}

std::vector<std::pair<const Experiment*, std::string_view>> selected_labs(const AllLabs& o) {
  std::vector<std::pair<const Experiment*, std::string_view>> all;
  std::vector<std::string_view> names;
  for (const Chapter& chapter : chapters())
    for (const Experiment& one : chapter.experiments) {
      if (one.command.hidden) continue;
      names.push_back(one.command.name);
      if (o.only.empty() || std::find(o.only.begin(), o.only.end(), one.command.name) != o.only.end())
        all.emplace_back(&one, chapter.title);
    }
  for (const std::string& name : o.only)
    if (std::find(names.begin(), names.end(), name) == names.end()) unknown_name("lab", name, names);
  return all;
}

std::string describe_machine() {
  std::ifstream lines("/proc/cpuinfo");
  std::string model;
  for (std::string line; std::getline(lines, line) && model.empty();)
    if (line.starts_with("model name")) model = line.substr(line.find(':') + 2);
  return fmt::format("{} core{} of {}", usable_cores(), usable_cores() == 1 ? "" : "s",
                     model.empty() ? "this machine" : model);
}

}  // namespace

int run_all_labs(const AllLabs& o) {
  const std::string out = o.out.empty() ? "lab" : o.out;
  const auto labs = selected_labs(o);
  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) throw IoError(fmt::format("cannot create {}: {}", out, error.message()));
  std::vector<LabResult> results;
  double seconds = 0;
  int failed = 0;
  for (const auto& [lab, chapter] : labs) {
    results.push_back(run_one(*lab, chapter, out));
    const LabResult& last = results.back();
    seconds += last.seconds;
    failed += last.exit_code != 0 ? 1 : 0;
    fmt::print("{} {:<14}{:6.1f} s{}\n", last.exit_code == 0 ? "✓" : "✗", lab->command.name, last.seconds,
               last.exit_code == 0 ? "" : fmt::format("  exit {}: {}", last.exit_code, last.error_text));
    std::fflush(stdout);
    // The page is rewritten after every lab, so that partial results can be read.
    write_file(out + "/index.html", labs_page(results, describe_machine()));
  }
  fmt::print("{} labs in {:.0f} s, {} failed: {}/index.html\n", results.size(), seconds, failed, out);
  return static_cast<int>(failed == 0 ? ExitCode::done : ExitCode::internal);
}

}  // namespace esp::app
