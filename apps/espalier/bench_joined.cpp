#include "apps/espalier/bench_joined.h"

#include <unistd.h>

#include <array>

#include <fmt/format.h>

#include "esp/launch/world.h"
#include "esp/net/rendezvous.h"
#include "esp/train/gather_texts.h"

namespace esp::app {

JoinedRanks::JoinedRanks(const launch::Environment& environment, const CommBench& bench) {
  const net::RendezvousOptions meeting = launch::join_options(environment, bench.transport == "mpi");
  world_ = net::rendezvous(meeting, Deadline::after(meeting.net.start_timeout));
  comm::CommOptions options;
  options.transport = bench.transport;
  options.shape = bench.shape;
  comm_ = comm::make_communicator(*world_, world_->everyone(), options);
  library_ = std::make_unique<OurLibrary>(*comm_);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  for (const Reply& hello : all(fmt::format("hello pid={} host={}", ::getpid(), host.data())))
    hellos_.push_back(hello.words);
}

std::vector<Reply> JoinedRanks::all(const std::string& mine) {
  std::vector<Reply> replies;
  for (const std::string& line : train::gather_texts(comm_.get(), mine)) {
    Reply reply;
    reply.words = bench::split_words(line, reply.verb);
    replies.push_back(std::move(reply));
  }
  return replies;
}

Answer JoinedRanks::ask(const bench::Request& request, Deadline) {
  return answer_of("espalier", request, all(bench::run_request(*library_, request)));
}

}  // namespace esp::app
