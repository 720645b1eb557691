// netns_quantised INTERFACE PARTS COUNT REPEATS: one rank of quantised_test.py. Runs the collectives of a ZeRO stage 3
// step for one unit of COUNT 16-bit values, REPEATS times: an all-gather for forward, an all-gather for backward and a
// reduce-scatter. PARTS are the enabled parts of ZeRO++ (qwz, hpz, qgz, comma-separated) or none; disabled parts use a
// ring over all ranks. Checks the values in one step before and one step after the measured steps. Prints one line of
// JSON: bytes sent to each rank, bytes sent by the interface of its host, and the time of each step.
#include <cmath>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/half.h"
#include "esp/comm/scheduled_communicator.h"
#include "esp/sync/quantised/all_gather.h"
#include "esp/sync/quantised/reduce_scatter.h"
#include "esp/sync/quantised/secondary_shard.h"
#include "tests/netns/rank_world.h"

using namespace esp;
using tensor::Tensor;

namespace {

Deadline soon() {
  return Deadline::after(std::chrono::seconds(60));
}

uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) throw IoError("cannot read " + path);
  return value;
}

struct Interface {
  uint64_t bytes = 0, packets = 0;
};
Interface sent_by_host() {
  const std::string folder = "/sys/class/net/eth0/statistics/";
  return {read_number(folder + "tx_bytes"), read_number(folder + "tx_packets")};
}

// Adds the bytes sent to each world rank. A group of one rank has no transport.
void add_sent(std::vector<uint64_t>& sent, const comm::Communicator* members) {
  const net::Transport* transport = dynamic_cast<const comm::ScheduledCommunicator&>(*members).transport();
  for (int peer = 0; transport && peer < transport->size(); ++peer)
    sent[static_cast<size_t>(transport->group().members[static_cast<size_t>(peer)])] +=
        transport->traffic(peer).bytes_sent;
}

// The test value of a rank's element i: |value| <= 1, different for each rank and element.
float value_of(int rank, size_t i) {
  return static_cast<float>(BFloat16(std::sin(static_cast<float>(i * 7 + static_cast<size_t>(rank) * 13))));
}

class Unit {
 public:
  Unit(comm::Communicator& world_comm, const sync::NodeGrid& nodes, const tensor::Context& context,
       const std::string& parts, size_t count)
      : world_comm_(world_comm),
        nodes_(nodes),
        qwz_(parts.find("qwz") != std::string::npos),
        hpz_(parts.find("hpz") != std::string::npos),
        qgz_(parts.find("qgz") != std::string::npos),
        own_(comm::chunk_of(count, world_comm.size(), world_comm.rank())),
        gather_(nodes, context, static_cast<int64_t>(count), DType::bf16),
        shard_(nodes, context, static_cast<int64_t>(count), DType::bf16),
        scatter_(nodes, context, static_cast<int64_t>(count), DType::bf16) {
    auto make = [&](size_t n, DType dtype) {
      return tensor::zeros(context, {static_cast<int64_t>(n)}, dtype, device::MemoryCategory::other);
    };
    chunk_ = make(own_.count, DType::bf16);
    whole_ = make(count, DType::bf16);
    gradients_ = make(count, DType::bf16);
    sum_ = make(own_.count, DType::bf16);
    for (size_t i = 0; i < own_.count; ++i) chunk_.as<BFloat16>()[i] = BFloat16(value_of(0, own_.offset + i));
    for (size_t i = 0; i < count; ++i) gradients_.as<BFloat16>()[i] = BFloat16(value_of(world_comm.rank(), i));
  }

  void step(bool checked) {
    gather();
    if (hpz_) shard_.keep(whole_);
    if (checked) check_whole();
    hpz_ ? shard_.gather_in_node(whole_, soon()) : gather();
    if (checked) check_whole();
    if (qgz_) {
      scatter_.start(gradients_);
      scatter_.finish(sum_, soon());
    } else {
      run(comm::Op::reduce_scatter, gradients_, sum_);
    }
    if (checked) check_sum();
  }

 private:
  void run(comm::Op op, const Tensor& in, const Tensor& out) {
    comm::Call call;
    call.op = op;
    call.in = in.data();
    call.out = out.data();
    call.count = static_cast<size_t>(whole_.count());
    call.dtype = DType::bf16;
    call.algorithm = "ring";
    world_comm_.run(call);
  }
  void gather() {
    if (!qwz_) return run(comm::Op::all_gather, chunk_, whole_);
    gather_.start(chunk_);
    gather_.finish(whole_, soon());
  }
  static void near(const Tensor& got, size_t i, double want, double bound) {
    const double value = tensor::item(got, static_cast<int64_t>(i));
    if (!(std::abs(value - want) <= bound))
      throw CommError(CommError::Kind::corrupt, -1,
                      fmt::format("element {}: got {}; expected {} ± {}", i, value, want, bound));
  }
  void check_whole() {
    // error bound: half a quantisation step, plus the rounding to the storage dtype
    const double bound = qwz_ ? 0.5 / 127 + 0x1p-8 : 0;
    for (size_t i = 0; i < static_cast<size_t>(whole_.count()); ++i) near(whole_, i, value_of(0, i), bound);
  }
  void check_sum() {
    const double size = world_comm_.size(), nodes = nodes_.num_nodes(), per_node = size / nodes;
    // Error bound with qgz: half a quantisation step for each rank's value and for each node's sum. Without qgz: the
    // rounding to 16 bits in each step of the ring.
    const double first = 0.5 / 7, quantised = size * first + nodes * 0.5 * per_node * (1 + first) / 7;
    const double bound = (qgz_ ? quantised : size * size * 0x1p-9) + size * 0x1p-8;
    for (size_t i = 0; i < own_.count; ++i) {
      double exact = 0;
      for (int rank = 0; rank < world_comm_.size(); ++rank)
        exact += static_cast<double>(value_of(rank, own_.offset + i));
      near(sum_, i, exact, bound);
    }
  }

  comm::Communicator& world_comm_;
  const sync::NodeGrid& nodes_;
  const bool qwz_, hpz_, qgz_;
  const comm::Chunk own_;
  sync::QuantisedGather gather_;
  sync::SecondaryShard shard_;
  sync::QuantisedScatter scatter_;
  Tensor chunk_, whole_, gradients_, sum_;
};

void run(const std::string& interface, const std::string& parts, size_t count, int repeats) {
  auto world = netns::join_world(interface);
  comm::CommOptions options;
  options.timeout = std::chrono::seconds(60);
  auto world_comm = comm::make_communicator(*world, world->world_group(), options);
  const sync::NodeGrid nodes = sync::split_by_node(world_comm.get(), netns::number_from("LOCAL_WORLD_SIZE"));
  device::MemoryAccount account;
  device::MemoryPool pool(account);
  Unit unit(*world_comm, nodes, {{}, &pool}, parts, count);
  auto sent_by_peer = [&] {
    std::vector<uint64_t> sent(static_cast<size_t>(world->size));
    for (const comm::Communicator* members : {world_comm.get(), nodes.intra_node.get(), nodes.inter_node.get()})
      add_sent(sent, members);
    return sent;
  };

  unit.step(true);  // the first step opens connections and lets buffers grow
  world_comm->barrier();
  const Interface before = sent_by_host();
  world_comm->barrier();
  std::vector<uint64_t> sent = sent_by_peer();
  std::vector<double> ms;
  for (int i = 0; i < repeats; ++i) {
    const auto begun = Clock::now();
    unit.step(false);
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begun).count());
  }
  const std::vector<uint64_t> sent_after = sent_by_peer();
  world_comm->barrier();
  const Interface after = sent_by_host();
  world_comm->barrier();  // waits until all ranks of the host have read the interface counters
  unit.step(true);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = sent_after[i] - sent[i];
  std::cout << nlohmann::json{{"rank", world->rank},
                              {"sent", sent},
                              {"interface_bytes", after.bytes - before.bytes},
                              {"interface_packets", after.packets - before.packets},
                              {"ms", ms}}
            << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return std::cerr << "usage: netns_quantised INTERFACE PARTS COUNT REPEATS\n", 2;
  try {
    run(argv[1], argv[2], std::stoul(argv[3]), std::stoi(argv[4]));
    return 0;
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.exit_code());
  }
}
