// How communicators begin and end.
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
  if (!pointer) throw UsageError(fmt::format("{} is a null pointer", what));
}

esp_comm* open(std::shared_ptr<net::World> world, const Options& options) {
  auto comm = std::make_unique<esp_comm>();
  comm->world = std::move(world);
  comm->communicator = comm::make_communicator(*comm->world, comm->world->everyone(), options.comm);
  return comm.release();
}

bool on_this_machine(const net::RendezvousOptions& meeting) {
  if (meeting.local_size == meeting.size) return true;
  for (const char* loopback : {"tcp://127.", "tcp://localhost:", "tcp://[::1]:"})
    if (meeting.endpoint.rfind(loopback, 0) == 0) return true;
  return false;
}

esp_comm* join(net::RendezvousOptions meeting, const Options& options) {
  meeting.net = options.net;
  if (meeting.size == 1) {
    auto worlds = net::thread_worlds(1, options.net);
    return open(std::make_shared<net::World>(std::move(worlds[0])), options);
  }
  if (meeting.secret.bytes().empty() && !meeting.endpoint.starts_with("mpi://")) {
    // The user's own secret is known on this machine alone.
    if (!on_this_machine(meeting))
      throw UsageError(
          fmt::format("ranks that meet at {} need a secret: put one into a 0600 file on every host and name it in {}",
                      meeting.endpoint, "ESPALIER_SECRET_FILE or secret_file"));
    meeting.secret = net::local_secret();
  }
  std::shared_ptr<net::World> world = net::rendezvous(meeting, Deadline::after(options.net.start_timeout));
  return open(std::move(world), options);
}

// What the environment sets, then what the caller does.
Options read_options(const std::string& text, const launch::Environment& environment) {
  Options options;
  launch::read_timeouts(environment, options.net);
  return parse_options(text.c_str(), options);
}

// Now, or at the end of the open group.
esp_result now_or_in_group(std::function<void()> job) {
  return guarded([&] {
    OpenGroup& group = OpenGroup::of_this_thread();
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
  return now_or_in_group([text, comm] {
    require(comm, "comm");
    auto environment = launch::process_environment();
    Options parsed = read_options(text, environment);
    net::RendezvousOptions meeting = launch::join_options(environment, parsed.comm.transport == "mpi");
    if (!environment.contains("ESPALIER_LOG")) meeting.log = Log(LogLevel::warn, meeting.rank);
    *comm = join(std::move(meeting), parsed);
  });
}

esp_result esp_init_rank(int rank, int size, const char* address, int port, const char* secret_file,
                         const char* options, esp_comm** comm) {
  std::string text = options ? options : "", host = address ? address : "", secret = secret_file ? secret_file : "";
  return now_or_in_group([=] {
    require(comm, "comm");
    auto environment = launch::process_environment();
    Options parsed = read_options(text, environment);
    if (size < 1 || rank < 0 || rank >= size)
      throw UsageError(fmt::format("rank {} of {} cannot be; ranks are 0 to size - 1", rank, size));
    if (size > 1 && (host.empty() || port < 1 || port > 65535))
      throw UsageError(fmt::format("\"{}\" port {} is no place to meet; rank 0 listens there", host, port));
    net::RendezvousOptions meeting;
    meeting.rank = rank;
    meeting.size = size;
    meeting.host_hub = rank == 0;
    meeting.port = net::RendezvousOptions::Port::shared;
    meeting.job = fmt::format("port-{}", port);
    bool v6 = host.find(':') != std::string::npos;
    meeting.endpoint = fmt::format(fmt::runtime(v6 ? "tcp://[{}]:{}" : "tcp://{}:{}"), host, port);
    if (!secret.empty()) meeting.secret = net::load_secret(secret);
    auto level = environment.find("ESPALIER_LOG");
    meeting.log = Log(level == environment.end() ? LogLevel::warn : parse_log_level(level->second), rank);
    *comm = join(std::move(meeting), parsed);
  });
}

esp_result esp_init_local(int num_ranks, const char* options, esp_comm** comms) {
  return guarded([&] {
    require(comms, "comms");
    Options parsed = parse_options(options);
    auto worlds = net::thread_worlds(num_ranks, parsed.net);
    // Opening is collective: each rank on a thread of its own.
    std::vector<std::unique_ptr<esp_comm>> opened(worlds.size());
    OpenGroup together;
    together.begin();
    for (size_t rank = 0; rank < worlds.size(); ++rank) {
      auto world = std::make_shared<net::World>(std::move(worlds[rank]));
      together.add([world, &parsed, &opened, rank] { opened[rank].reset(open(world, parsed)); });
    }
    together.end();
    for (size_t rank = 0; rank < opened.size(); ++rank) comms[rank] = opened[rank].release();
  });
}

esp_result esp_split(esp_comm* comm, int colour, int key, esp_comm** child) {
  return now_or_in_group([=] {
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
  return guarded([&] {
    require(comm, "comm");
    comm->communicator->abort(why ? why : "no reason given");
  });
}

esp_result esp_finalize(esp_comm* comm) {
  return guarded([comm] {
    auto end = [comm] {
      if (!comm) return;
      comm->memory.clear();
      comm->communicator.reset();
      delete comm;
    };
    OpenGroup& group = OpenGroup::of_this_thread();
    if (group.open()) return group.add_last(end);
    end();
  });
}

esp_result esp_allocate(esp_comm* comm, size_t bytes, void** memory) {
  return now_or_in_group([=] {
    require(comm, "comm");
    require(memory, "memory");
    std::shared_ptr<void> owned = comm->communicator->allocate(bytes);
    *memory = owned.get();
    comm->memory[owned.get()] = std::move(owned);
  });
}

esp_result esp_free(esp_comm* comm, void* memory) {
  return guarded([&] {
    require(comm, "comm");
    if (memory && comm->memory.erase(memory) == 0) throw UsageError("the memory is not this communicator's");
  });
}
