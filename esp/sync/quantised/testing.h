// For tests of quantised collectives: ranks as threads on simulated nodes.
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

inline Deadline one_minute() {
  return Deadline::after(std::chrono::seconds(60));
}

// One rank with its position in the node grid and its memory.
struct GridRank {
  comm::Communicator& world_comm;
  NodeGrid nodes;
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  tensor::Context context{{}, &pool};

  GridRank(comm::Communicator& ranks, int ranks_per_node)
      : world_comm(ranks), nodes(split_by_node(&ranks, ranks_per_node)) {}

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

inline void run_on_nodes(int num_nodes, int ranks_per_node, const std::function<void(GridRank&)>& body,
                         const char* transport = "inproc") {
  net::run_threads(num_nodes * ranks_per_node, [&](net::World& world) {
    auto world_comm = comm::make_communicator(world, world.world_group(), comm::test_options(transport));
    GridRank rank(*world_comm, ranks_per_node);
    body(rank);
    world_comm->barrier();
  });
}

// Runs `body` on every grid with 1 to 4 nodes and 1 to 4 ranks per node.
inline void run_on_every_grid(const std::function<void(GridRank&)>& body) {
  for (int num_nodes = 1; num_nodes <= 4; ++num_nodes)
    for (int ranks_per_node = 1; ranks_per_node <= 4; ++ranks_per_node) run_on_nodes(num_nodes, ranks_per_node, body);
}

// Bytes that this rank sent in all calls of one operation.
inline uint64_t bytes_sent(const comm::Communicator& members, comm::Op op) {
  uint64_t bytes = 0;
  for (const comm::CallStats& stats : members.stats())
    if (stats.op == op) bytes += stats.bytes_sent;
  return bytes;
}

// The expected number of encoded bytes for n values in blocks of B: n + 4⌈n/B⌉ with 8 bits. With 4 bits a block of b
// values takes ⌈b/2⌉ bytes instead of b. Does not use the code under test.
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

// Encodes and decodes a range of `values` in place with the reference kernels.
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
