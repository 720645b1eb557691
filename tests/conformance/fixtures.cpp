#include "tests/conformance/fixture.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "esp/net/inproc/threads.h"
#include "esp/net/mpi/mpi.h"
#include "esp/net/virtual/network.h"
#include "tests/conformance/fork_ranks.h"

namespace esp::net {
namespace {

bool run_as_threads(int size, const Body& body) {
  run_threads(size, [&](World& world) { body(world, world.world_group()); });
  return true;
}

bool run_under_virtual_clock(int size, const Body& body) {
  auto network = VirtualNetwork::flat(size, {.alpha_ps = 1'000'000, .beta_ps_per_byte = 80});
  run_threads(
      size, [&](World& world) { body(world, world.world_group()); }, {}, network);
  return true;
}

bool run_as_processes(int size, const Body& body) {
  fork_ranks(size, [&](World& world) { body(world, world.world_group()); });
  return true;
}

bool run_as_processes_with_sockets(int size, const Body& body) {
  fork_ranks(size, [&](World& world) { body(world, world.world_group()); }, {.listen = true});
  return true;
}

// Puts two ranks on each host. With more than one host, `auto` must select the mixed transport: shared memory within a
// host, sockets between hosts.
bool run_on_several_hosts(int size, const Body& body) {
  auto checked = [&](World& world) {
    Group world_group = world.world_group();
    Group probed = world_group;
    probed.id = 999'999;
    EXPECT_EQ(open_transport("auto", world, probed)->name(), size > 2 ? "mixed" : "shm");
    body(world, world_group);
  };
  fork_ranks(size, checked, {.listen = true, .ranks_per_host = 2});
  return true;
}

// Under mpirun this process is one rank of the job; without mpirun the fixture cannot run. MPI can start only once
// per process, so all tests share the job. Each test gets a new PeerStatus and a new group. Ranks beyond `size` do not
// take part.
bool run_as_mpi_rank(int size, const Body& body) {
  std::string_view flavour = mpi_flavour(std::getenv);
  if (flavour.empty()) return false;
  static std::unique_ptr<World> job = mpi_world(flavour, {}, Log());
  static uint64_t num_runs = 0;
  if (size > job->size) return false;
  World world = *job;
  world.peer_status = std::make_shared<PeerStatus>();
  Group group = world.world_group();
  group.id = ++num_runs;
  group.members.resize(static_cast<size_t>(size));
  if (world.rank < size) body(world, group);
  return true;
}

constexpr FixtureRow kFixtures[] = {
    {"inproc", run_as_threads, false},    {"virtual", run_under_virtual_clock, false},
    {"shm", run_as_processes, true},      {"tcp", run_as_processes_with_sockets, true},
    {"auto", run_on_several_hosts, true}, {"mpi", run_as_mpi_rank, false},
};

}  // namespace

std::span<const FixtureRow> fixtures() {
  return kFixtures;
}

}  // namespace esp::net
