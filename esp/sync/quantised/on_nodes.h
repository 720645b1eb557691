// Ranks as threads on simulated nodes: for the tests of quantised collectives.
#pragma once

#include <functional>
#include <numeric>

#include <gtest/gtest.h>

#include "esp/base/rng.h"
#include "esp/comm/scheduled_communicator.h"
#include "esp/comm/test_options.h"
#include "esp/kernel/floating.h"
#include "esp/net/inproc/threads.h"
#include "esp/sync/quantised/encoding.h"
#include "esp/sync/quantised/node_grid.h"

namespace esp::sync {

inline Deadline in_a_minute() {
  return Deadline::after(std::chrono::seconds(60));
}

// One rank: its place in the grid, and its memory.
struct Rank {
  comm::Communicator& everyone;
  NodeGrid nodes;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};

  Rank(comm::Communicator& ranks, int ranks_per_node) : everyone(ranks), nodes(split_by_node(&ranks, ranks_per_node)) {}

  int rank() const { return nodes.rank(); }
  tensor::Tensor empty(size_t count, DType dtype) const {
    return tensor::empty(context, {static_cast<int64_t>(count)}, dtype, device::MemoryCategory::other);
  }
  tensor::Tensor filled(size_t count, DType dtype, const std::function<double(size_t)>& value) const {
    tensor::Tensor made = empty(count, dtype);
    kernel::with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
      for (size_t i = 0; i < count; ++i)
        made.as<T>()[i] = static_cast<T>(static_cast<kernel::Accumulator<T>>(value(i)));
    });
    return made;
  }
  uint64_t buffers_in_use() const { return account.use(device::MemoryCategory::buffer).current; }
};

inline void on_nodes(int num_nodes, int ranks_per_node, const std::function<void(Rank&)>& body,
                     const char* transport = "inproc") {
  net::run_threads(num_nodes * ranks_per_node, [&](net::World& world) {
    auto everyone = comm::make_communicator(world, world.everyone(), comm::test_options(transport));
    Rank rank(*everyone, ranks_per_node);
    body(rank);
    everyone->barrier();
  });
}

// Every grid of up to four nodes of up to four ranks.
inline void on_every_grid(const std::function<void(Rank&)>& body) {
  for (int num_nodes = 1; num_nodes <= 4; ++num_nodes)
    for (int ranks_per_node = 1; ranks_per_node <= 4; ++ranks_per_node) on_nodes(num_nodes, ranks_per_node, body);
}

// Totals over all calls of an operation.
inline uint64_t bytes_sent(const comm::Communicator& members, comm::Op op) {
  uint64_t bytes = 0;
  for (const comm::CallStats& stats : members.stats())
    if (stats.op == op) bytes += stats.bytes_sent;
  return bytes;
}

// n + 4⌈n/B⌉, or for four bits ⌈·/2⌉ of every block instead of n: computed independently of the tested code.
inline uint64_t formula_bytes(size_t count, DType wire, const Encoding& encoding) {
  if (encoding.bits == 0) return count * size_of(wire);
  uint64_t bytes = 0;
  const auto block = static_cast<size_t>(encoding.block);
  for (size_t at = 0; at < count; at += block) {
    const size_t n = std::min(block, count - at);
    bytes += 4 + (encoding.bits == 8 ? n : n / 2 + n % 2);
  }
  return bytes;
}

// A range of values after one encoding and decoding, by the reference loops.
inline void round_trip(tensor::Tensor values, size_t at, size_t count, const Encoding& encoding) {
  if (encoding.bits == 0) return;
  std::vector<uint8_t> encoded(formula_bytes(count, values.dtype(), encoding));
  void* run = kernel::at(values.data(), static_cast<int64_t>(at), values.dtype());
  const auto n = static_cast<int64_t>(count);
  kernel::ref::quantize(encoded.data(), run, n, values.dtype(), encoding.code());
  kernel::ref::dequantize(run, encoded.data(), n, values.dtype(), encoding.code());
}

inline bool same_bits(const tensor::Tensor& a, const tensor::Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

}  // namespace esp::sync
