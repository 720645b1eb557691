// espalier dash: the web page over run folders.
#include <csignal>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "apps/espalier/dash_knowledge.h"
#include "esp/base/error.h"
#include "esp/dash/dashboard.h"

namespace esp::app {
namespace {

struct Dash {
  std::string folder;
  int port = 0;
};

int run_dash(const Dash& o) {
  dash::Dashboard dashboard(o.folder, dash_knowledge());
  dashboard.planner = dash_planner;
  // Before threads start, so that the signal comes to us alone.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  dash::HttpServer server(o.port);
  const dash::Gate gate(dash::random_token(), server.port());
  server.start(dashboard.handlers(gate));
  fmt::print("http://127.0.0.1:{}/{}/\n", server.port(), gate.token());
  std::fflush(stdout);  // before what speaks of it
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

void define_dash(const Arguments& app, Chosen& chosen) {
  auto o = keep<Dash>(app, chosen, run_dash);
  app.add_option("folder", o->folder, "a run folder, or one that holds run folders").type_name("DIR").required();
  app.add_option("--port", o->port, "of 127.0.0.1 [any free one]").type_name("P").within(0, 65535);
}

}  // namespace esp::app
