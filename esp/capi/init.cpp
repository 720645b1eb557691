// Creation and destruction of communicators.
#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/capi/group.h"
#include "esp/capi/handles.h"
#include "esp/launch/environment.h"
#include "esp/launch/world.h"
#include "esp/net/inproc/threads.h"
#include "esp/net/rendezvous.h"
#include "esp/net/secret.h"

namespace esp::capi {
namespace {

void require(const void* pointer, const char* what) {
  if (!pointer) throw UsageError(fmt::format("{}: must not be NULL", what));
}

esp_comm* open(std::shared_ptr<net::World> world, const CapiOptions& options) {
  auto comm = std::make_unique<esp_comm>();
  comm->world = std::move(world);
  comm->communicator = comm::make_communicator(*comm->world, comm->world->world_group(), options.comm);
  return comm.release();
}

bool on_this_machine(const net::RendezvousOptions& rendezvous_options) {
  if (rendezvous_options.local_size == rendezvous_options.size) return true;
  for (const char* loopback : {"tcp://127.", "tcp://localhost:", "tcp://[::1]:"})
    if (rendezvous_options.endpoint.rfind(loopback, 0) == 0) return true;
  return false;
}

esp_comm* join(net::RendezvousOptions rendezvous_options, const CapiOptions& options) {
  rendezvous_options.net = options.net;
  if (rendezvous_options.size == 1) {
    auto worlds = net::thread_worlds(1, options.net);
    return open(std::make_shared<net::World>(std::move(worlds[0])), options);
  }
  if (rendezvous_options.secret.bytes().empty() && !rendezvous_options.endpoint.starts_with("mpi://")) {
    // Without a configured secret the user's local secret is used. It is a file on this host, so other hosts do not
    // know it.
    if (!on_this_machine(rendezvous_options))
      throw UsageError(fmt::format(
          "ranks that connect to {} need a secret. Write the same secret to a file of mode 0600 on every host and "
          "pass the file's path in ESPALIER_SECRET_FILE or secret_file",
          rendezvous_options.endpoint));
    rendezvous_options.secret = net::local_secret();
  }
  std::shared_ptr<net::World> world = net::rendezvous(rendezvous_options, Deadline::after(options.net.start_timeout));
  return open(std::move(world), options);
}

// Reads the options of the environment; the caller's options override them.
CapiOptions read_options(const std::string& text, const launch::Environment& environment) {
  CapiOptions options;
  launch::read_timeouts(environment, options.net);
  return parse_options(text.c_str(), options);
}

// Runs the job at once, or queues it if a group is open.
esp_result run_or_queue(std::function<void()> job) {
  return run_guarded([&] {
    PendingGroup& group = PendingGroup::this_thread();
    if (group.open()) return group.add(std::move(job));
    job();
  });
}

}  // namespace
}  // namespace esp::capi

using namespace esp;
using namespace esp::capi;

esp_result esp_init(const char* options, esp_comm** comm) {
  std::string text = options ? options : "";
  return run_or_queue([text, comm] {
    require(comm, "comm");
    auto environment = launch::process_environment();
    CapiOptions parsed = read_options(text, environment);
    net::RendezvousOptions rendezvous_options = launch::join_options(environment, parsed.comm.transport == "mpi");
    if (!environment.contains("ESPALIER_LOG")) rendezvous_options.log = Log(LogLevel::warn, rendezvous_options.rank);
    *comm = join(std::move(rendezvous_options), parsed);
  });
}

esp_result esp_init_rank(int rank, int size, const char* address, int port, const char* secret_file,
                         const char* options, esp_comm** comm) {
  std::string text = options ? options : "", host = address ? address : "", secret = secret_file ? secret_file : "";
  return run_or_queue([=] {
    require(comm, "comm");
    auto environment = launch::process_environment();
    CapiOptions parsed = read_options(text, environment);
    if (size < 1 || rank < 0 || rank >= size)
      throw UsageError(fmt::format("rank: got {} with size {}; expected 0 <= rank < size", rank, size));
    if (size > 1 && (host.empty() || port < 1 || port > 65535))
      throw UsageError(
          fmt::format("address: got \"{}\" port {}; expected the address and port (1 to 65535) of rank 0", host, port));
    net::RendezvousOptions rendezvous_options;
    rendezvous_options.rank = rank;
    rendezvous_options.size = size;
    rendezvous_options.host_hub = rank == 0;
    rendezvous_options.port = net::RendezvousOptions::Port::shared;
    rendezvous_options.job = fmt::format("port-{}", port);
    bool v6 = host.find(':') != std::string::npos;
    rendezvous_options.endpoint = fmt::format(fmt::runtime(v6 ? "tcp://[{}]:{}" : "tcp://{}:{}"), host, port);
    if (!secret.empty()) rendezvous_options.secret = net::load_secret(secret);
    auto level = environment.find("ESPALIER_LOG");
    rendezvous_options.log = Log(level == environment.end() ? LogLevel::warn : parse_log_level(level->second), rank);
    *comm = join(std::move(rendezvous_options), parsed);
  });
}

esp_result esp_init_local(int num_ranks, const char* options, esp_comm** comms) {
  return run_guarded([&] {
    require(comms, "comms");
    CapiOptions parsed = parse_options(options);
    auto worlds = net::thread_worlds(num_ranks, parsed.net);
    // Opening a communicator is collective, so each local rank opens its own on a separate thread.
    std::vector<std::unique_ptr<esp_comm>> opened(worlds.size());
    PendingGroup group;
    group.begin();
    for (size_t rank = 0; rank < worlds.size(); ++rank) {
      auto world = std::make_shared<net::World>(std::move(worlds[rank]));
      group.add([world, &parsed, &opened, rank] { opened[rank].reset(open(world, parsed)); });
    }
    group.end();
    for (size_t rank = 0; rank < opened.size(); ++rank) comms[rank] = opened[rank].release();
  });
}

esp_result esp_split(esp_comm* comm, int colour, int key, esp_comm** child) {
  return run_or_queue([=] {
    require(comm, "comm");
    require(child, "child");
    *child = nullptr;
    auto made = std::make_unique<esp_comm>();
    made->world = comm->world;
    made->communicator = comm->communicator->split(colour, key);
    if (made->communicator) *child = made.release();
  });
}

esp_result esp_abort(esp_comm* comm, const char* why) {
  return run_guarded([&] {
    require(comm, "comm");
    comm->communicator->abort(why ? why : "no reason given");
  });
}

esp_result esp_finalize(esp_comm* comm) {
  return run_guarded([comm] {
    auto end = [comm] {
      if (!comm) return;
      comm->memory.clear();
      comm->communicator.reset();
      delete comm;
    };
    PendingGroup& group = PendingGroup::this_thread();
    if (group.open()) return group.add_last(end);
    end();
  });
}

esp_result esp_allocate(esp_comm* comm, size_t bytes, void** memory) {
  return run_or_queue([=] {
    require(comm, "comm");
    require(memory, "memory");
    std::shared_ptr<void> owned = comm->communicator->allocate(bytes);
    *memory = owned.get();
    comm->memory[owned.get()] = std::move(owned);
  });
}

esp_result esp_free(esp_comm* comm, void* memory) {
  return run_guarded([&] {
    require(comm, "comm");
    if (memory && comm->memory.erase(memory) == 0)
      throw UsageError(
          "esp_free: got memory that esp_allocate did not return for this communicator. Pass the pointer from "
          "esp_allocate");
  });
}
