#include "apps/espalier/bench_launched.h"

#include <unistd.h>

#include <array>

#include <fmt/format.h>

#include "esp/launch/world.h"
#include "esp/net/rendezvous.h"
#include "esp/train/gather_texts.h"

namespace esp::app {

LaunchedRanks::LaunchedRanks(const launch::Environment& environment, const CommBenchOptions& bench) {
  const net::RendezvousOptions rendezvous_options = launch::join_options(environment, bench.transport == "mpi");
  world_ = net::rendezvous(rendezvous_options, Deadline::after(rendezvous_options.net.start_timeout));
  comm::CommOptions options;
  options.transport = bench.transport;
  options.shape = bench.shape;
  comm_ = comm::make_communicator(*world_, world_->world_group(), options);
  library_ = std::make_unique<EspalierLibrary>(*comm_);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  for (const Reply& message : gather_replies(fmt::format("hello pid={} host={}", ::getpid(), host.data())))
    registrations_.push_back(message.words);
}

std::vector<Reply> LaunchedRanks::gather_replies(const std::string& reply_text) {
  std::vector<Reply> replies;
  for (const std::string& line : train::gather_texts(comm_.get(), reply_text)) {
    Reply reply;
    reply.words = bench::split_words(line, reply.verb);
    replies.push_back(std::move(reply));
  }
  return replies;
}

BenchResult LaunchedRanks::execute(const bench::Request& request, Deadline) {
  return merge_replies("espalier", request, gather_replies(bench::run_request(*library_, request)));
}

}  // namespace esp::app
