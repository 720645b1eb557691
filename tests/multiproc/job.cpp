#include "tests/multiproc/job.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include "esp/net/rendezvous.h"
#include "esp/net/store/hub.h"

namespace esp::multiproc {

using namespace std::chrono_literals;

namespace {

const std::string kJob = "multiproc";

net::Secret job_secret() {
  return net::Secret(std::string(32, 'm'));
}

void host_hub(net::ChildProcess& parent, int size) {
  net::HubOptions options;
  options.size = size;
  options.job = kJob;
  options.secret = job_secret();
  net::Hub hub(options);
  parent.write_line(std::to_string(hub.port()));
  parent.read_line(Deadline::after(10min));  // the read returns when the test closes the pipe
}

void run_rank(net::ChildProcess& parent, int rank, const JobOptions& options,
              const std::function<void(RankContext&)>& body) {
  net::RendezvousOptions rendezvous_options;
  rendezvous_options.rank = rank;
  rendezvous_options.size = options.size;
  rendezvous_options.endpoint = fmt::format("tcp://127.0.0.1:{}", parent.read_line());
  rendezvous_options.host_hub = options.hub_in_rank_0 && rank == 0;
  rendezvous_options.local_size = options.size;
  rendezvous_options.secret = job_secret();
  rendezvous_options.job = kJob;
  rendezvous_options.net.timeout = options.comm.timeout;
  rendezvous_options.log = Log(LogLevel::error, rank);
  auto world = net::rendezvous(rendezvous_options, Deadline::after(60s));
  auto comm = comm::make_communicator(*world, world->world_group(), options.comm);
  RankContext self{*world, *comm, parent};
  body(self);
  comm.reset();
  world.reset();
  parent.write_line("bye");
}

}  // namespace

Job::Job(const JobOptions& options, const std::function<void(RankContext&)>& body) {
  if (!options.hub_in_rank_0) {
    hub_ = std::make_unique<net::ChildProcess>([&](net::ChildProcess& parent) { host_hub(parent, options.size); });
    port_ = hub_->read_line();
  } else {
    hub_port_reservation_ = std::make_unique<net::ReservedPort>();
    port_ = std::to_string(hub_port_reservation_->number());
  }
  for (int r = 0; r < options.size; ++r)
    ranks_.emplace_back([&, r](net::ChildProcess& parent) { run_rank(parent, r, options, body); });
  write_all(port_);
}

void Job::write_all(const std::string& line) {
  for (const net::ChildProcess& rank : ranks_) rank.write_line(line);
}

void Job::expect_all(const std::string& line) {
  for (int r = 0; r < size(); ++r) EXPECT_EQ(rank(r).read_line(Deadline::after(60s)), line) << "rank " << r;
}

std::vector<std::string> segments_of(const std::vector<int>& pids) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    std::string name = entry.path().filename();
    for (int pid : pids)
      if (name.rfind(fmt::format("espalier-{}-", pid), 0) == 0) found.push_back(name);
  }
  return found;
}

int num_open_descriptors() {
  auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

int num_threads() {
  auto entries = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

}  // namespace esp::multiproc
