#include "apps/espalier/lab_output.h"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/output_file.h"
#include "esp/base/error.h"

namespace esp::app {
namespace {

void write_lab(const LabFiles& files, const std::string& name, const std::string& text, const Json& report,
               const std::string& svg) {
  const std::string json = report.dump(1) + "\n";
  if (!files.json.empty()) write_file(files.json, json);
  if (files.out.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(files.out, error);
  if (error) throw IoError(fmt::format("cannot create {}: {}", files.out, error.message()));
  write_file(fmt::format("{}/{}.txt", files.out, name), text);
  write_file(fmt::format("{}/{}.json", files.out, name), json);
  write_file(fmt::format("{}/{}.svg", files.out, name), svg);
  fmt::print("Wrote {}/{}.txt, .json and .svg\n", files.out, name);
}

}  // namespace

int finish_lab(const LabFiles& files, const std::string& name, const std::string& text, const Json& report,
               const std::string& svg, const Findings& findings) {
  std::string whole = text;
  if (!findings.empty())
    whole += fmt::format("{}Lecture, model and measurement:\n{}", whole.empty() ? "" : "\n", findings.text());
  fmt::print("{}", whole);
  Json all = report;
  if (all.is_object() && !findings.empty()) all["findings"] = findings.json();
  write_lab(files, name, whole, all, svg);
  if (!files.out.empty() && !findings.empty())
    write_file(fmt::format("{}/{}.findings.json", files.out, name), findings.json().dump(1) + "\n");
  if (findings.all_hold()) return static_cast<int>(ExitCode::done);
  fmt::print(stderr, "espalier: lab {}: at least one asserted figure is wrong; it is marked WRONG above\n", name);
  return static_cast<int>(ExitCode::internal);
}

}  // namespace esp::app
