#include "esp/dash/dashboard.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/dash/json_text.h"
#include "esp/dash/page.h"
#include "esp/obs/prometheus.h"

namespace esp::dash {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostRuns = 1000, kMostKeys = 16;

// Content-Security-Policy of the live page: scripts, styles and data come from this server only; all else is blocked.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string error_json(const std::string& what) {
  return "{\"error\":" + quote_json(what) + "}";
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> all;
  for (size_t at = 0; at <= text.size() && all.size() < kMostKeys;) {
    const size_t end = std::min(text.find(',', at), text.size());
    if (end > at) all.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

int buckets_of(const Request& request) {
  return static_cast<int>(std::clamp(request.number("buckets", 800), 1.0, 8e3));
}

}  // namespace

Dashboard::Dashboard(const std::string& folder, DataProviders providers)
    : folder_(folder), providers_(std::move(providers)) {
  while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
  std::error_code error;
  if (!fs::is_directory(folder_, error))
    throw IoError(fmt::format("{}: folder not found; expected a run folder, or a folder of run folders", folder));
  find_new_runs();
}

void Dashboard::find_new_runs() {
  for (const FoundRun& run : find_runs(folder_))
    if (runs_.size() < kMostRuns && !runs_.contains(run.name))
      runs_.emplace(run.name, std::make_unique<RunFolder>(run.path, run.name));
}

std::vector<std::string> Dashboard::names() {
  const std::lock_guard lock(mutex_);
  find_new_runs();
  std::vector<std::string> all;
  for (const auto& [name, run] : runs_) all.push_back(name);
  return all;
}

RunFolder* Dashboard::find(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto at = runs_.find(name);
  // runs are never removed from the map, so the pointer stays valid
  return at == runs_.end() ? nullptr : at->second.get();
}

std::string Dashboard::api(const Request& request, const std::string& what) {
  if (what == "runs") {
    Json list = Json::array();
    for (const std::string& name : names()) list.push_back(find(name)->list_entry());
    return dumped({{"runs", list}, {"planner", planner != nullptr}});
  }
  if (what.starts_with("plan") && planner) return planner(request);
  RunFolder* run = find(request.parameter("run"));
  if (!run)
    throw UsageError(fmt::format("run: got \"{}\"; expected a name from the list of runs", request.parameter("run")));
  if (what == "run") return run->detail(providers_);
  const double from = request.number("from", -1e300), to = request.number("to", 1e300);
  if (what == "series") return run->series(words(request.parameter("keys")), from, to, buckets_of(request));
  if (what == "timeline") return run->timeline(from, to, buckets_of(request));
  throw UsageError(fmt::format("/api/{}: unknown request", what));
}

std::string Dashboard::metrics() {
  std::vector<obs::NamedRun> runs;
  for (const FoundRun& run : find_runs(folder_)) runs.push_back({run.name, run.path});
  return obs::prometheus_text(runs);
}

std::optional<Response> Dashboard::static_response(const std::string& path) const {
  if (path == "/") return Response{200, "text/html", live_page(), kPolicy};
  if (path == "/app.js") return Response{200, "text/javascript", page_script(), ""};
  if (path == "/style.css") return Response{200, "text/css", page_style(), ""};
  if (path == "/metrics" || path.starts_with("/api/")) return std::nullopt;
  return Response{404, "text/plain", "not found", ""};
}

Response Dashboard::respond(const Request& request, const std::string& path) {
  if (auto page = static_response(path)) return std::move(*page);
  if (path == "/metrics") return {200, std::string(obs::kPrometheusType), metrics(), ""};
  try {
    return {200, "application/json", api(request, path.substr(5)), ""};
  } catch (const Error& error) {
    return {error.exit_code() == ExitCode::usage ? 404 : 200, "application/json", error_json(error.what()), ""};
  } catch (const std::exception& error) {  // for example if a field has the wrong JSON type
    return {200, "application/json", error_json(error.what()), ""};
  }
}

Handlers Dashboard::handlers(const AccessGuard& guard) {
  const auto respond_inline = [this, &guard](const Request& request) -> std::optional<Response> {
    std::string path;
    if (const auto denial = guard.check(request, path))
      return Response{denial->status, "text/plain", denial->reason, ""};
    return static_response(path);
  };
  const auto inner_path = [&guard](const Request& request) {
    std::string path;
    guard.check(request, path);
    return path;
  };
  return {respond_inline, [this, inner_path](const Request& request) { return respond(request, inner_path(request)); },
          // Returns the key of a request. Requests with the same key (one run, or the planner) are answered one after
          // another.
          [inner_path](const Request& request) {
            const std::string run = request.parameter("run"), path = inner_path(request);
            return run.empty() ? path.substr(0, path.find('/', 5)) : "run " + run;
          }};
}

}  // namespace esp::dash
