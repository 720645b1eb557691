#include "esp/comm/arguments.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::comm {
namespace {

[[noreturn]] void refuse(const Call& call, const std::string& why) {
  throw UsageError(fmt::format("{}: {}", name_of(call.op), why));
}

bool rooted(Op op) {
  return op == Op::broadcast || op == Op::reduce || op == Op::gather || op == Op::scatter;
}
bool point_to_point(Op op) {
  return op == Op::send || op == Op::recv || op == Op::signal || op == Op::wait;
}

// Checks that the range [offset, offset + count) of each peer fits in memory.
void check_parts(const Call& call, std::span<const size_t> counts, std::span<const size_t> offsets) {
  const size_t most = SIZE_MAX / 2 / size_of(call.dtype);
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > most || (counts[i] > 0 && offsets[i] > most - counts[i]))
      refuse(call, fmt::format("rank {}'s part: {} elements of {} at offset {} do not fit in memory", i, counts[i],
                               name_of(call.dtype), offsets[i]));
}

// Number of elements from the start of the buffer to the end of the last peer's range.
size_t span_of(std::span<const size_t> counts, std::span<const size_t> offsets) {
  size_t end = 0;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) end = std::max(end, offsets[i] + counts[i]);
  return end;
}

void check_irregular(const Call& call, int rank, int size) {
  auto n = static_cast<size_t>(size);
  if (call.send_counts.size() != n || call.send_offsets.size() != n || call.recv_counts.size() != n ||
      call.recv_offsets.size() != n)
    refuse(call, fmt::format("number of entries: got send counts {}, send offsets {}, recv counts {}, recv offsets {}; "
                             "expected {} each, one per rank",
                             call.send_counts.size(), call.send_offsets.size(), call.recv_counts.size(),
                             call.recv_offsets.size(), size));
  check_parts(call, call.send_counts, call.send_offsets);
  check_parts(call, call.recv_counts, call.recv_offsets);
  auto me = static_cast<size_t>(rank);
  if (call.send_counts[me] != call.recv_counts[me])
    refuse(call,
           fmt::format("rank {} sends {} elements to itself and receives {} from itself; both counts must be equal",
                       rank, call.send_counts[me], call.recv_counts[me]));
}

// The two buffers must not overlap, or must be in place exactly as call.h defines for this op.
void check_overlap(const Call& call, const BufferCounts& extents, int rank, int size) {
  size_t unit = size_of(call.dtype);
  auto in = reinterpret_cast<uintptr_t>(call.in), out = reinterpret_cast<uintptr_t>(call.out);
  if (in >= out + extents.out * unit || out >= in + extents.in * unit) return;
  auto shift = [&] { return chunk_of(call.count, size, rank).offset * unit; };
  bool in_place = in == out;
  if (call.op == Op::all_gather || call.op == Op::gather) in_place = in == out + shift();
  if (call.op == Op::reduce_scatter || call.op == Op::scatter) in_place = out == in + shift();
  if (call.op == Op::all_to_all_v) in_place = false;
  if (!in_place)
    refuse(call, "the input and output buffers overlap partially; pass one buffer (in place) or two disjoint buffers");
}

}  // namespace

BufferCounts buffer_counts_of(const Call& call, int rank, int size) {
  size_t n = call.count;
  switch (call.op) {
    case Op::broadcast:
      return {rank == call.root ? n : 0, n};
    case Op::reduce:
      return {n, rank == call.root ? n : 0};
    case Op::all_reduce:
    case Op::all_to_all:
      return {n, n};
    case Op::reduce_scatter:
      return {n, chunk_of(n, size, rank).count};
    case Op::all_gather:
      return {chunk_of(n, size, rank).count, n};
    case Op::gather:
      return {chunk_of(n, size, rank).count, rank == call.root ? n : 0};
    case Op::scatter:
      return {rank == call.root ? n : 0, chunk_of(n, size, rank).count};
    case Op::all_to_all_v:
      return {span_of(call.send_counts, call.send_offsets), span_of(call.recv_counts, call.recv_offsets)};
    case Op::send:
      return {n, 0};
    case Op::recv:
      return {0, n};
    default:
      return {};
  }
}

void check_arguments(const Call& call, int rank, int size) {
  if (call.op > Op::wait)
    throw UsageError(fmt::format("operation: got {}; expected a comm::Op", static_cast<int>(call.op)));
  if (call.dtype > DType::u8)
    refuse(call, fmt::format("element type: got {}; expected a DType", static_cast<int>(call.dtype)));
  if (call.reduce > ReduceOp::avg)
    refuse(call, fmt::format("reduction: got {}; expected a ReduceOp", static_cast<int>(call.reduce)));
  if (rooted(call.op) && (call.root < 0 || call.root >= size))
    refuse(call, fmt::format("root: got {}; expected a rank from 0 to {}", call.root, size - 1));
  if (point_to_point(call.op)) {
    if (call.root < 0 || call.root >= size)
      refuse(call, fmt::format("peer: got {}; expected a rank from 0 to {}", call.root, size - 1));
    bool rejects_self = call.op == Op::send || call.op == Op::recv;
    if (rejects_self && call.root == rank)
      refuse(call, fmt::format("peer: got {}, this rank itself; expected another rank", rank));
  }
  if (call.op == Op::all_to_all && call.count % static_cast<size_t>(size) != 0)
    refuse(call, fmt::format("count: got {}; expected a multiple of the {} ranks. Use all_to_all_v for other counts",
                             call.count, size));
  if (call.op == Op::all_to_all_v) check_irregular(call, rank, size);
  if (call.count > SIZE_MAX / 2 / size_of(call.dtype))
    refuse(call, fmt::format("count: {} elements of {} do not fit in memory", call.count, name_of(call.dtype)));
  BufferCounts extents = buffer_counts_of(call, rank, size);
  if (extents.in > 0 && !call.in)
    refuse(call, fmt::format("input: got a null pointer; expected a buffer of {} elements", extents.in));
  if (extents.out > 0 && !call.out)
    refuse(call, fmt::format("output: got a null pointer; expected a buffer of {} elements", extents.out));
  size_t unit = size_of(call.dtype);
  if (extents.in > 0 && reinterpret_cast<uintptr_t>(call.in) % unit != 0)
    refuse(call,
           fmt::format("input: the address is not aligned; expected a multiple of {} bytes, the element size", unit));
  if (extents.out > 0 && reinterpret_cast<uintptr_t>(call.out) % unit != 0)
    refuse(call,
           fmt::format("output: the address is not aligned; expected a multiple of {} bytes, the element size", unit));
  if (extents.in > 0 && extents.out > 0) check_overlap(call, extents, rank, size);
}

}  // namespace esp::comm
