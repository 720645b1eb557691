// The dashboard: the runs under a folder, and the answers its page asks for. Read-only.
//
// `answer` may be called by several threads. A run is named by its place in the list of names, never by a path: what is
// outside of the folder cannot be asked for.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "esp/dash/gate.h"
#include "esp/dash/http_server.h"
#include "esp/dash/run_folder.h"

namespace esp::dash {

class Dashboard {
 public:
  // A folder of runs (looked for two floors down), or one run. UsageError: no folder.
  Dashboard(const std::string& folder, Knowledge knowledge);

  // The planner, where the app has one: a question as the query of a request, the answer as JSON. UsageError becomes
  // {"error": …}.
  std::function<std::string(const Request& request)> planner;

  // The runs' names: looks for new ones.
  std::vector<std::string> names();
  RunFolder* find(const std::string& name);  // null: none of that name

  // What a page asks for, behind the gate: "/", "/app.js", "/style.css", "/metrics", "/api/…".
  Response answer(const Request& request, const std::string& path);
  // For a server: requests that the gate refuses, and pages that are the same for all runs, need no worker.
  Handlers handlers(const Gate& gate);
  const Knowledge& knowledge() const { return knowledge_; }

 private:
  std::optional<Response> static_answer(const std::string& path) const;
  void look();
  std::string api(const Request& request, const std::string& what);
  std::string metrics();  // how all runs stand, for Prometheus

  std::string folder_;
  Knowledge knowledge_;
  std::mutex mutex_;  // guards runs_; taken before a run's own
  std::map<std::string, std::unique_ptr<RunFolder>> runs_;
};

}  // namespace esp::dash
