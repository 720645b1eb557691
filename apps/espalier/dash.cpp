// espalier dash: serves a web page that shows the runs of a folder.
#include <csignal>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "apps/espalier/dash_providers.h"
#include "esp/base/error.h"
#include "esp/dash/dashboard.h"

namespace esp::app {
namespace {

struct DashOptions {
  std::string folder;
  int port = 0;
};

int run_dash(const DashOptions& o) {
  dash::Dashboard dashboard(o.folder, dash_data_providers());
  dashboard.planner = dash_planner;
  // These signals are blocked before threads start, so that only this thread receives them.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  dash::HttpServer server(o.port);
  const dash::AccessGuard guard(dash::random_token(), server.port());
  server.start(dashboard.handlers(guard));
  fmt::print("http://127.0.0.1:{}/{}/\n", server.port(), guard.token());
  std::fflush(stdout);  // the address must appear before the text on stderr that refers to it
  const size_t num_runs = dashboard.names().size();
  const std::string runs = num_runs == 0
                               ? fmt::format("no runs under {} yet; new ones appear on the page", o.folder)
                               : fmt::format("{} run{} under {}", num_runs, num_runs == 1 ? "" : "s", o.folder);
  fmt::print(stderr, "{}. The address above works on this machine only. Ctrl-C ends.\n", runs);
  int signal = 0;
  sigwait(&ends, &signal);
  server.stop();
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_dash(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<DashOptions>(app, chosen, run_dash);
  app.add_option("folder", o->folder, "a run folder, or a folder of run folders").type_name("DIR").required();
  app.add_option("--port", o->port, "port on 127.0.0.1 [any free port]").type_name("P").within(0, 65535);
}

}  // namespace esp::app
