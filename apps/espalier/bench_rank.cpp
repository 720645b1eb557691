// espalier bench-rank: one rank of `bench comm`, started by it. Joins the world its environment describes and serves.
#include <map>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "apps/espalier/command.h"
#include "bench/peers/serve.h"
#include "esp/base/error.h"
#include "esp/comm/communicator.h"
#include "esp/launch/world.h"

namespace esp::app {
namespace {

class OurLibrary : public bench::Library {
 public:
  explicit OurLibrary(comm::Communicator& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  std::string refuses(const bench::Request&) override { return ""; }
  void barrier() override { comm_.barrier(); }

  void prepare(const bench::Request& request, const bench::Layout& layout, void* in, void* out) override {
    algorithm_ = request.algo;
    call_ = {};
    call_.in = in;
    call_.out = out;
    call_.count = layout.count;
    call_.dtype = parse_dtype(request.dtype);
    call_.reduce = kernel::parse_reduce_op(request.reduce);
    call_.root = request.root;
    call_.algorithm = algorithm_;
    exchange_ = request.op == "sendrecv";
    if (exchange_) {
      send_ = receive_ = call_;
      send_.op = comm::Op::send;
      send_.algorithm = receive_.algorithm = "auto";
      send_.root = (rank() + 1) % size();
      receive_.op = comm::Op::recv;
      receive_.root = (rank() + size() - 1) % size();
    } else {
      call_.op = comm::parse_op(request.op);
    }
    before_ = comm_.stats();
  }

  void call() override {
    if (!exchange_) return comm_.run(call_);
    const comm::Call both[] = {receive_, send_};
    comm_.start_group(both).wait(Deadline::after(std::chrono::seconds(60)));
  }

  void* allocate_registered(size_t bytes) override {
    std::shared_ptr<void> memory = comm_.allocate(bytes);
    registered_[memory.get()] = memory;
    return memory.get();
  }
  void release_registered(void* data) override { registered_.erase(data); }

  // What ran since `prepare`, barriers apart: the algorithm with the most calls, and its traffic per call.
  std::string report() override {
    std::string algorithm = "none", transport = "none";
    double calls = 0, sent = 0, rounds = 0;
    for (const comm::CallStats& row : comm_.stats()) {
      if (row.op == comm::Op::barrier) continue;
      comm::CallStats now = row;
      for (const comm::CallStats& old : before_)
        if (old.op == row.op && old.algorithm == row.algorithm && old.transport == row.transport)
          now.calls -= old.calls, now.bytes_sent -= old.bytes_sent, now.rounds -= old.rounds;
      if (now.calls == 0) continue;
      algorithm = row.algorithm, transport = row.transport;
      calls += static_cast<double>(now.calls);
      sent += static_cast<double>(now.bytes_sent);
      rounds += static_cast<double>(now.rounds);
    }
    if (exchange_) calls /= 2;  // a send and a receive are one exchange
    if (calls == 0) calls = 1;
    return fmt::format("algo={} transport={} sent={:.0f} rounds={:.0f}", algorithm, transport, sent / calls,
                       rounds / calls);
  }

 private:
  comm::Communicator& comm_;
  comm::Call call_, send_, receive_;
  std::string algorithm_;
  bool exchange_ = false;
  std::map<void*, std::shared_ptr<void>> registered_;
  std::vector<comm::CallStats> before_;
};

struct RankOptions {
  std::string socket, label, transport = "auto";
  std::string shape;  // "2x4"
};

int run_rank(const RankOptions& options) {
  int64_t at_main = now_ns();
  net::RendezvousOptions joining = launch::join_options(launch::process_environment());
  std::unique_ptr<net::World> world = net::rendezvous(joining, Deadline::after(std::chrono::seconds(30)));
  int64_t at_world = now_ns();
  comm::CommOptions comm_options;
  comm_options.transport = options.transport;
  if (!options.shape.empty())
    for (const std::string& part : split(options.shape, 'x')) comm_options.shape.push_back(std::stoi(part));
  std::unique_ptr<comm::Communicator> comm = comm::make_communicator(*world, world->everyone(), comm_options);
  int64_t at_comm = now_ns();
  comm->barrier();
  int64_t at_ready = now_ns();
  OurLibrary library(*comm);
  bench::LineChannel channel(bench::connect_coordinator(options.socket));
  return bench::serve(
      library, channel, options.label,
      fmt::format("at_main={} at_world={} at_comm={} at_ready={}", at_main, at_world, at_comm, at_ready));
}

}  // namespace

void define_bench_rank(const Arguments& app, Chosen& chosen) {
  auto options = keep<RankOptions>(app, chosen, run_rank);
  app.add_option("--socket", options->socket, "the coordinator's switchboard").required();
  app.add_option("--label", options->label, "how to call ourselves").required();
  app.add_option("--transport", options->transport, "transport");
  app.add_option("--shape", options->shape, "grid");
}

}  // namespace esp::app
