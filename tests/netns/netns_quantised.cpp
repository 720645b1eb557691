// netns_quantised INTERFACE PARTS COUNT REPEATS: one rank of quantised_test.py. Does what a step of ZeRO stage 3 sends
// for one unit of COUNT 16-bit values, REPEATS times: a gather for forward, one for backward, a reduce-scatter. PARTS
// are those of ZeRO++ that are on, of qwz, hpz and qgz joined by commas, or none; what is off goes round a ring of all
// ranks. Checks the values of a step before and one after, and prints as one line of JSON what it sent to each rank,
// what its host's interface counted meanwhile, and how long each step took.
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
#include "tests/netns/meeting.h"

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

// By rank of the world; a group of one has no transport.
void add_sent(std::vector<uint64_t>& sent, const comm::Communicator* members) {
  const net::Transport* transport = dynamic_cast<const comm::ScheduledCommunicator&>(*members).transport();
  for (int peer = 0; transport && peer < transport->size(); ++peer)
    sent[static_cast<size_t>(transport->group().members[static_cast<size_t>(peer)])] +=
        transport->traffic(peer).bytes_sent;
}

// |value| <= 1, and not the same from one element or rank to the next.
float value_of(int rank, size_t i) {
  return static_cast<float>(BFloat16(std::sin(static_cast<float>(i * 7 + static_cast<size_t>(rank) * 13))));
}

class Unit {
 public:
  Unit(comm::Communicator& everyone, const sync::NodeGrid& nodes, const tensor::Context& context,
       const std::string& parts, size_t count)
      : everyone_(everyone),
        nodes_(nodes),
        qwz_(parts.find("qwz") != std::string::npos),
        hpz_(parts.find("hpz") != std::string::npos),
        qgz_(parts.find("qgz") != std::string::npos),
        own_(comm::chunk_of(count, everyone.size(), everyone.rank())),
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
    for (size_t i = 0; i < count; ++i) gradients_.as<BFloat16>()[i] = BFloat16(value_of(everyone.rank(), i));
  }

  void step(bool checked) {
    gather();
    if (hpz_) shard_.keep(whole_);
    if (checked) check_whole();
    hpz_ ? shard_.gather_inside(whole_, soon()) : gather();
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
    everyone_.run(call);
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
                      fmt::format("element {} is {}, not {} ± {}", i, value, want, bound));
  }
  void check_whole() {
    const double bound = qwz_ ? 0.5 / 127 + 0x1p-8 : 0;  // half a step, and the rounding to storage
    for (size_t i = 0; i < static_cast<size_t>(whole_.count()); ++i) near(whole_, i, value_of(0, i), bound);
  }
  void check_sum() {
    const double size = everyone_.size(), nodes = nodes_.num_nodes(), per_node = size / nodes;
    // Half a step of each rank's value and of each node's sum; or the ring's roundings to 16 bits.
    const double first = 0.5 / 7, quantised = size * first + nodes * 0.5 * per_node * (1 + first) / 7;
    const double bound = (qgz_ ? quantised : size * size * 0x1p-9) + size * 0x1p-8;
    for (size_t i = 0; i < own_.count; ++i) {
      double exact = 0;
      for (int rank = 0; rank < everyone_.size(); ++rank) exact += static_cast<double>(value_of(rank, own_.offset + i));
      near(sum_, i, exact, bound);
    }
  }

  comm::Communicator& everyone_;
  const sync::NodeGrid& nodes_;
  const bool qwz_, hpz_, qgz_;
  const comm::Chunk own_;
  sync::QuantisedGather gather_;
  sync::SecondaryShard shard_;
  sync::QuantisedScatter scatter_;
  Tensor chunk_, whole_, gradients_, sum_;
};

void run(const std::string& interface, const std::string& parts, size_t count, int repeats) {
  auto world = netns::meet(interface);
  comm::CommOptions options;
  options.timeout = std::chrono::seconds(60);
  auto everyone = comm::make_communicator(*world, world->everyone(), options);
  const sync::NodeGrid nodes = sync::split_by_node(everyone.get(), netns::number_from("LOCAL_WORLD_SIZE"));
  device::MemoryAccount account;
  device::MemoryPool pool(account);
  Unit unit(*everyone, nodes, {{}, &pool}, parts, count);
  auto sent_by_peer = [&] {
    std::vector<uint64_t> sent(static_cast<size_t>(world->size));
    for (const comm::Communicator* members : {everyone.get(), nodes.inside.get(), nodes.across.get()})
      add_sent(sent, members);
    return sent;
  };

  unit.step(true);  // connections open, buffers grow
  everyone->barrier();
  const Interface before = sent_by_host();
  everyone->barrier();
  std::vector<uint64_t> sent = sent_by_peer();
  std::vector<double> ms;
  for (int i = 0; i < repeats; ++i) {
    const auto begun = Clock::now();
    unit.step(false);
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begun).count());
  }
  const std::vector<uint64_t> sent_after = sent_by_peer();
  everyone->barrier();
  const Interface after = sent_by_host();
  everyone->barrier();  // all of a host have looked
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
