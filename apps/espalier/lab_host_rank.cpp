// One rank of `espalier lab hosts`. Runs an all-reduce of floats, checks the sum, and prints one line of JSON with the
// bytes sent to each peer and the duration of each call.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/espalier/lab_table.h"
#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/comm/scheduled_communicator.h"
#include "esp/launch/environment.h"
#include "esp/launch/secret.h"
#include "esp/net/rendezvous.h"

namespace esp::app {
namespace {

struct HostRank {
  std::string algorithm = "ring";
  size_t count = 1 << 20;
  int repeats = 3;
};

std::unique_ptr<net::World> join_world(const launch::Environment& environment) {
  const launch::Placement here = launch::read_environment(environment);
  net::RendezvousOptions options;
  options.rank = here.rank;
  options.size = here.size;
  options.local_size = here.local_size;
  options.host_hub = here.rank == 0;
  options.endpoint = fmt::format("tcp://{}:{}", here.master_address, here.master_port);
  options.host_name = fmt::format("host{}", here.rank / here.local_size);
  options.job = "lab";
  options.secret = launch::read_secret(environment);
  options.net.interface = "10.78.0.0/24";
  options.log = Log(LogLevel::warn, here.rank);
  return net::rendezvous(options, Deadline::after(std::chrono::seconds(30)));
}

std::vector<uint64_t> sent_by_peer(const net::Transport& transport) {
  std::vector<uint64_t> sent(transport.world().peers.size());
  for (int peer = 0; peer < transport.size(); ++peer)
    sent[static_cast<size_t>(transport.group().members[static_cast<size_t>(peer)])] =
        transport.traffic(peer).bytes_sent;
  return sent;
}

// If `scattered` (ring_scattered), the ring visits the hosts round-robin, as after a scheduler's round-robin placement
// of ranks.
std::unique_ptr<comm::Communicator> open(const net::World& world, bool scattered, int ranks_per_host) {
  comm::CommOptions options;
  options.timeout = std::chrono::seconds(60);
  auto all_ranks = std::make_unique<comm::ScheduledCommunicator>(world, world.world_group(), options);
  if (!scattered) return all_ranks;
  const int hosts = world.size / ranks_per_host;
  return all_ranks->split(0, world.rank % ranks_per_host * hosts + world.rank / ranks_per_host);
}

int run_host_rank(const HostRank& o) {
  const launch::Environment environment = launch::process_environment();
  const auto world = join_world(environment);
  const bool scattered = o.algorithm == "ring_scattered";
  const auto comm = open(*world, scattered, launch::read_environment(environment).local_size);
  const net::Transport& transport = *dynamic_cast<comm::ScheduledCommunicator&>(*comm).transport();
  std::vector<float> in(o.count, static_cast<float>(world->rank + 1)), out(o.count);
  comm::Call call;
  call.op = comm::Op::all_reduce;
  call.in = in.data();
  call.out = out.data();
  call.count = o.count;
  call.algorithm = scattered ? "ring" : std::string_view(o.algorithm);

  comm->run(call);  // warm-up: opens connections, allocates buffers
  comm->barrier();
  const std::vector<uint64_t> before = sent_by_peer(transport);
  std::vector<double> ms;
  for (int i = 0; i < o.repeats; ++i) {
    const auto begun = Clock::now();
    comm->run(call);
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begun).count());
  }
  std::vector<uint64_t> sent = sent_by_peer(transport);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] -= before[i];
  const float want = static_cast<float>(world->size * (world->size + 1)) / 2;
  for (const float value : out)
    if (value != want)
      throw CommError(CommError::Kind::corrupt, world->rank,
                      fmt::format("all-reduce: got the sum {}; expected {}", value, want));
  comm->barrier();
  fmt::print("{}\n", Json{{"rank", world->rank}, {"sent", sent}, {"ms", ms}}.dump());
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void define_lab_host_rank(const Arguments& app, SelectedCommand& chosen) {
  auto o = bind_options<HostRank>(app, chosen, run_host_rank);
  app.add_option("--algorithm", o->algorithm, "all-reduce algorithm, or ring_scattered");
  app.add_option("--count", o->count, "number of floats");
  app.add_option("--repeats", o->repeats, "number of calls");
}

}  // namespace esp::app
