#include "esp/comm/fused/buffer_bytes.h"

#include <algorithm>

namespace esp::comm {
namespace {

size_t reach(std::span<const size_t> counts, std::span<const size_t> offsets) {
  size_t end = 0;
  for (size_t k = 0; k < counts.size(); ++k)
    if (counts[k] > 0) end = std::max(end, offsets[k] + counts[k]);
  return end;
}

}  // namespace

ByteRange chunk_range(const Call& call, int size, int k) {
  Chunk chunk = chunk_of(call.count, size, k);
  size_t element = size_of(call.dtype);
  return {chunk.offset * element, (chunk.offset + chunk.count) * element};
}

BufferBytes buffer_bytes_of(const Call& call, int rank, int size) {
  size_t all = call.count * size_of(call.dtype);
  bool is_root = rank == call.root;
  switch (call.op) {
    case Op::broadcast:
    case Op::all_reduce:
    case Op::all_to_all:
      return {all, all};
    case Op::reduce:
      return {all, is_root ? all : 0};
    case Op::reduce_scatter:
      return {all, chunk_range(call, size, rank).bytes()};
    case Op::all_gather:
      return {chunk_range(call, size, rank).bytes(), all};
    case Op::gather:
      return {chunk_range(call, size, rank).bytes(), is_root ? all : 0};
    case Op::scatter:
      return {is_root ? all : 0, chunk_range(call, size, rank).bytes()};
    case Op::all_to_all_v:
      return {reach(call.send_counts, call.send_offsets) * size_of(call.dtype),
              reach(call.recv_counts, call.recv_offsets) * size_of(call.dtype)};
    default:
      return {};
  }
}

PeerTraffic peer_traffic_of(const Call& call, int rank, int size) {
  const uint64_t all = call.count * size_of(call.dtype), own = chunk_range(call, size, rank).bytes();
  const auto others = static_cast<uint64_t>(size - 1);
  const bool is_root = rank == call.root;
  switch (call.op) {
    case Op::broadcast:
      return {is_root ? others * all : 0, is_root ? 0 : all};
    case Op::reduce:
      return {is_root ? 0 : all, is_root ? others * all : 0};
    case Op::all_reduce:  // an all-reduce has the traffic of a reduce-scatter and an all-gather
      return {all - own + others * own, others * own + all - own};
    case Op::reduce_scatter:
      return {all - own, others * own};
    case Op::all_gather:
      return {others * own, all - own};
    case Op::all_to_all:
      return {all - own, all - own};
    case Op::gather:
      return {is_root ? 0 : own, is_root ? all - own : 0};
    case Op::scatter:
      return {is_root ? all - own : 0, is_root ? 0 : own};
    case Op::all_to_all_v: {
      PeerTraffic crossing;
      for (size_t peer = 0; peer < call.send_counts.size(); ++peer) {
        if (peer == static_cast<size_t>(rank)) continue;
        crossing.sent += call.send_counts[peer] * size_of(call.dtype);
        crossing.received += call.recv_counts[peer] * size_of(call.dtype);
      }
      return crossing;
    }
    default:
      return {};
  }
}

bool needs_staging(const Call& call, int rank, int size) {
  BufferBytes extent = buffer_bytes_of(call, rank, size);
  const std::byte *in = bytes_in(call), *out = bytes_out(call);
  bool disjoint =
      extent.in_bytes == 0 || extent.out_bytes == 0 || in + extent.in_bytes <= out || out + extent.out_bytes <= in;
  if (disjoint) return false;
  size_t own = chunk_range(call, size, rank).begin;
  switch (call.op) {
    case Op::broadcast:
    case Op::all_reduce:
    case Op::reduce:
      return in != out;
    case Op::reduce_scatter:
    case Op::scatter:
      return out != in + own;
    case Op::all_gather:
    case Op::gather:
      return in != out + own;
    default:
      return true;
  }
}

}  // namespace esp::comm
