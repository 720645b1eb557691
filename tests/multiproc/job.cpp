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

void host_hub(net::Forked& parent, int size) {
  net::HubOptions options;
  options.size = size;
  options.job = kJob;
  options.secret = job_secret();
  net::Hub hub(options);
  parent.say(std::to_string(hub.port()));
  parent.hear(Deadline::after(10min));  // until the test closes the line
}

void be_rank(net::Forked& parent, int rank, const JobOptions& options, const std::function<void(Rank&)>& body) {
  net::RendezvousOptions meeting;
  meeting.rank = rank;
  meeting.size = options.size;
  meeting.endpoint = fmt::format("tcp://127.0.0.1:{}", parent.hear());
  meeting.host_hub = options.hub_in_rank_0 && rank == 0;
  meeting.local_size = options.size;
  meeting.secret = job_secret();
  meeting.job = kJob;
  meeting.net.timeout = options.comm.timeout;
  meeting.log = Log(LogLevel::error, rank);
  auto world = net::rendezvous(meeting, Deadline::after(60s));
  auto comm = comm::make_communicator(*world, world->everyone(), options.comm);
  Rank self{*world, *comm, parent};
  body(self);
  comm.reset();
  world.reset();
  parent.say("bye");
}

}  // namespace

Job::Job(const JobOptions& options, const std::function<void(Rank&)>& body) {
  if (!options.hub_in_rank_0) {
    hub_ = std::make_unique<net::Forked>([&](net::Forked& parent) { host_hub(parent, options.size); });
    port_ = hub_->hear();
  } else {
    held_ = std::make_unique<net::HeldPort>();
    port_ = std::to_string(held_->number());
  }
  for (int r = 0; r < options.size; ++r)
    ranks_.emplace_back([&, r](net::Forked& parent) { be_rank(parent, r, options, body); });
  tell_all(port_);
}

void Job::tell_all(const std::string& line) {
  for (const net::Forked& rank : ranks_) rank.say(line);
}

void Job::expect_all(const std::string& line) {
  for (int r = 0; r < size(); ++r) EXPECT_EQ(rank(r).hear(Deadline::after(60s)), line) << "rank " << r;
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
