// espalier flight DIR: merges the flight recorder files of all ranks into one timeline, after a failure or during a
// hang.
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/command.h"
#include "apps/espalier/flight_files.h"
#include "apps/espalier/output_file.h"
#include "esp/base/error.h"
#include "esp/obs/flight_log.h"

namespace esp::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSuffix = ".flight";
constexpr const char* kPreviousSuffix = ".previous.flight";

struct FlightOptions {
  std::string folder, json;
  size_t last = 40;
  bool previous = false;
};

int run_flight(const FlightOptions& command) {
  std::vector<obs::FlightLog> logs;
  for (const std::string& path : flight_files(command.folder, command.previous))
    logs.push_back(obs::read_flight_log(path));
  if (!command.json.empty()) {
    Json all = Json::array();
    for (const obs::FlightLog& log : logs) all.push_back(obs::to_json(log));
    write_file(command.json, all.dump() + "\n");
    return 0;
  }
  fmt::print("{}", obs::merged_timeline(logs, {}, command.last));
  if (const std::string places = obs::last_collectives(logs); !places.empty()) fmt::print("{}", places);
  if (const int64_t world = logs.front().world; static_cast<size_t>(world) > logs.size())
    fmt::print("records of {} of {} ranks; the other records are in the run folders of the other hosts\n", logs.size(),
               world);
  return 0;
}

}  // namespace

std::shared_ptr<obs::FlightRecorder> open_flight_recorder(const std::string& run_folder, int rank, int world,
                                                          const Log& log) {
  obs::FlightOptions options;
  options.rank = rank;
  options.world = world;
  try {
    const fs::path folder = fs::path(run_folder) / "flight";
    fs::create_directories(fs::absolute(run_folder).parent_path());
    for (const fs::path& each : {fs::path(run_folder), folder})
      if (mkdir(each.c_str(), 0700) != 0 && errno != EEXIST)
        throw IoError(fmt::format("cannot create the folder {}: {}", each.string(), errno_text(errno)));
    options.path = (folder / fmt::format("rank-{}{}", rank, kSuffix)).string();
    std::error_code none_there;
    fs::rename(options.path, folder / fmt::format("rank-{}{}", rank, kPreviousSuffix), none_there);
    return std::make_shared<obs::FlightRecorder>(options);
  } catch (const std::exception& error) {
    log.warn("flight recorder: cannot create its file, so it records only in memory: {}", error.what());
    options.path.clear();
    return std::make_shared<obs::FlightRecorder>(options);
  }
}

std::vector<std::string> flight_files(const std::string& run_folder, bool previous) {
  if (!fs::is_directory(run_folder)) throw IoError(fmt::format("{}: got no folder; expected a run folder", run_folder));
  const std::string suffix = previous ? kPreviousSuffix : kSuffix;
  std::map<long, std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(run_folder) / "flight", error)) {
    const std::string name = entry.path().filename().string();
    char* end = nullptr;
    if (!name.starts_with("rank-")) continue;
    const long rank = std::strtol(name.c_str() + 5, &end, 10);
    if (std::string_view(end) == suffix) files[rank] = entry.path().string();
  }
  if (files.empty())
    throw IoError(
        fmt::format("{}/flight: found no files rank-K{}; only runs with several ranks write them", run_folder, suffix));
  std::vector<std::string> paths;
  for (const auto& [rank, path] : files) paths.push_back(path);
  return paths;
}

void define_flight(const Arguments& app, SelectedCommand& chosen) {
  auto command = bind_options<FlightOptions>(app, chosen, run_flight);
  app.add_option("folder", command->folder, "the run folder").type_name("DIR").required();
  app.add_option("--last", command->last, "number of newest records to print; 0: all").show_default();
  app.add_flag("--previous", command->previous, "print the records from before the last restart");
  app.add_option("--json", command->json, "write all records as JSON").type_name("FILE");
}

}  // namespace esp::app
