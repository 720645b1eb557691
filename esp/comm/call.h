// One communication call as data. The public functions build it and every communicator runs it. Its tag carries enough
// information to describe the mismatching call of another rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "esp/base/clock.h"
#include "esp/base/dtype.h"
#include "esp/kernel/reduce.h"
#include "esp/net/transport.h"

namespace esp::comm {

using kernel::ReduceOp;

enum class Op : uint8_t {
  broadcast,
  reduce,
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  all_to_all_v,
  gather,
  scatter,
  send,
  recv,
  barrier,
  signal,
  wait
};
std::string_view name_of(Op op);
Op parse_op(std::string_view name);

// True for calls that every member makes in the same order.
bool is_collective(Op op);

// One chunk of a buffer of n elements that is cut into N chunks. Chunk k has n/N + (k < n mod N) elements.
struct Chunk {
  size_t offset = 0, count = 0;
};
Chunk chunk_of(size_t count, int num_chunks, int k);

// `count` is always n, the number of elements of the full logical buffer. Chunk k of it belongs to rank k; r is this
// rank.
//   broadcast, reduce, all_reduce   in: n            out: n (reduce: on the root only)
//   reduce_scatter                  in: n            out: chunk r
//   all_gather                      in: chunk r      out: n
//   gather / scatter                in: chunk r / n on the root        out: n on the root / chunk r
//   all_to_all                      in: n            out: n; n must be a multiple of the size
//   all_to_all_v                    count 0; per-peer counts and offsets in the spans below
//   send, recv                      count elements to or from `root`
// A call is in place if `in` equals `out`, or if one of them is this rank's chunk of the other.
struct Call {
  Op op = Op::barrier;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  DType dtype = DType::f32;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;                         // root rank; for send, recv, signal and wait: the peer
  std::string_view algorithm = "auto";  // name of a row of algo/table.cpp, "fused", or "auto"
  std::span<const size_t> send_counts, send_offsets, recv_counts, recv_offsets;
  Duration timeout = Duration::zero();  // zero: use the communicator's timeout
};

// Returns text such as «all_reduce of 1000 f32, sum, algorithm ring», from a call or from a peer's tag.
std::string describe(const Call& call);
std::string describe(const net::Tag& tag);
// The op of a tag that was read from the network; nullopt if the tag does not encode a call.
std::optional<Op> op_of(const net::Tag& tag);
net::Tag tag_of(const Call& call, uint64_t sequence, int algorithm_id);

}  // namespace esp::comm
