// The dashboard: the runs in a folder, and the responses to requests of its web page. It never writes to the folder.
//
// `respond` is thread-safe. Requests identify a run by its name in the list of runs, never by a path, so no file
// outside the folder can be requested.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "esp/dash/access_guard.h"
#include "esp/dash/http_server.h"
#include "esp/dash/run_folder.h"

namespace esp::dash {

class Dashboard {
 public:
  // A folder that contains runs (up to two levels below it), or one run folder. UsageError: the folder does not exist.
  Dashboard(const std::string& folder, DataProviders providers);

  // Answers requests of the planner page with JSON; set by the app. The query has the planner's inputs. A UsageError
  // becomes {"error": …}.
  std::function<std::string(const Request& request)> planner;

  // Names of all runs; searches the folder for new ones.
  std::vector<std::string> names();
  RunFolder* find(const std::string& name);  // null: no run has this name

  // Responds to a request that passed the AccessGuard. Paths: "/", "/app.js", "/style.css", "/metrics", "/api/…".
  Response respond(const Request& request, const std::string& path);
  // Handlers for an HttpServer. Requests rejected by the guard and static pages are answered without a worker.
  Handlers handlers(const AccessGuard& guard);
  const DataProviders& providers() const { return providers_; }

 private:
  std::optional<Response> static_response(const std::string& path) const;
  void find_new_runs();
  std::string api(const Request& request, const std::string& what);
  std::string metrics();  // state of all runs, in Prometheus text format

  std::string folder_;
  DataProviders providers_;
  std::mutex mutex_;  // guards runs_; locked before the mutex of a RunFolder
  std::map<std::string, std::unique_ptr<RunFolder>> runs_;
};

}  // namespace esp::dash
