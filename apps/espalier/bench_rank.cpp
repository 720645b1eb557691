// espalier bench-rank: one rank of `bench comm`, which starts it. Joins the world that its environment describes and
// serves requests.
#include <memory>
#include <string>

#include <fmt/format.h>

#include "apps/espalier/bench_library.h"
#include "apps/espalier/command.h"
#include "esp/base/error.h"
#include "esp/comm/communicator.h"
#include "esp/launch/world.h"

namespace esp::app {
namespace {

struct RankOptions {
  std::string socket, label, transport = "auto";
  std::string shape;  // extents of the rank grid: "2x4"
};

int run_rank(const RankOptions& options) {
  int64_t at_main = now_ns();
  net::RendezvousOptions rendezvous_options = launch::join_options(launch::process_environment());
  std::unique_ptr<net::World> world = net::rendezvous(rendezvous_options, Deadline::after(std::chrono::seconds(30)));
  int64_t at_world = now_ns();
  comm::CommOptions comm_options;
  comm_options.transport = options.transport;
  if (!options.shape.empty())
    for (const std::string& part : split(options.shape, 'x')) comm_options.shape.push_back(std::stoi(part));
  std::unique_ptr<comm::Communicator> comm = comm::make_communicator(*world, world->world_group(), comm_options);
  int64_t at_comm = now_ns();
  comm->barrier();
  int64_t at_ready = now_ns();
  EspalierLibrary library(*comm);
  bench::LineChannel channel(bench::connect_coordinator(options.socket));
  return bench::serve(
      library, channel, options.label,
      fmt::format("at_main={} at_world={} at_comm={} at_ready={}", at_main, at_world, at_comm, at_ready));
}

}  // namespace

void define_bench_rank(const Arguments& app, SelectedCommand& chosen) {
  auto options = bind_options<RankOptions>(app, chosen, run_rank);
  app.add_option("--socket", options->socket, "the coordinator's socket").required();
  app.add_option("--label", options->label, "label in the benchmark's protocol").required();
  app.add_option("--transport", options->transport, "transport");
  app.add_option("--shape", options->shape, "grid");
}

}  // namespace esp::app
