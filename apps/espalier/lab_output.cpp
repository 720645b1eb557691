#include "apps/espalier/lab_output.h"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/output_file.h"
#include "esp/base/error.h"

namespace esp::app {

void write_lab(const LabFiles& files, const std::string& name, const std::string& text, const Json& report,
               const std::string& svg) {
  const std::string json = report.dump(1) + "\n";
  if (!files.json.empty()) write_file(files.json, json);
  if (files.out.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(files.out, error);
  if (error) throw IoError(fmt::format("cannot make {}: {}", files.out, error.message()));
  write_file(fmt::format("{}/{}.txt", files.out, name), text);
  write_file(fmt::format("{}/{}.json", files.out, name), json);
  write_file(fmt::format("{}/{}.svg", files.out, name), svg);
  fmt::print("Wrote {}/{}.txt, .json and .svg\n", files.out, name);
}

}  // namespace esp::app
