#include "esp/comm/fused/fused_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/comm/fused/buffer_bytes.h"
#include "esp/device/cpu/topology.h"
#include "esp/kernel/copy.h"

namespace esp::comm {
namespace {

// Size of the L3 cache that one core can use. sysconf is not used: it sums all caches of the processor.
size_t last_level_cache() {
  static const size_t bytes = device::read_topology().l3_bytes;
  return bytes > 0 ? bytes : size_t{16} << 20;
}

FusedTuning with_defaults(FusedTuning tuning, int size) {
  if (tuning.block_bytes == 0) tuning.block_bytes = size_t{1} << 20;
  tuning.block_bytes = std::min(tuning.block_bytes, ShmLayout(size).block_bytes);
  if (tuning.small_bytes == 0)
    tuning.small_bytes = std::max<size_t>(2048, (size_t{16} << 10) / static_cast<size_t>(size));
  if (tuning.stream_from == 0) tuning.stream_from = last_level_cache() / 2;
  tuning.lag = std::clamp<uint32_t>(tuning.lag, 1, ShmLayout::kDepth / 2);
  tuning.small_bytes = std::min(tuning.small_bytes, ShmLayout::kSmallBytes);
  return tuning;
}

// Opens the shared segment of a group. Threads of one process share one mapping: this saves page tables, and race
// detectors recognise the sharing. Member 0 passes its pointer through the store and keeps the mapping alive until
// every member has a copy of the pointer.
std::shared_ptr<net::SharedSegment> open_segment(const net::World& world, const net::Group& group, bool one_process,
                                                 size_t bytes, Deadline deadline) {
  if (!one_process) return std::make_shared<net::SharedSegment>(world, group, "fused", bytes, deadline);
  using Holder = std::shared_ptr<net::SharedSegment>;
  std::string key = fmt::format("fused/{:x}", group.id);
  if (group.rank != 0) {
    auto address = std::stoull(net::wait_for_key(world, group, key, group.members[0], deadline), nullptr, 16);
    Holder taken = *reinterpret_cast<Holder*>(static_cast<uintptr_t>(address));
    if (world.store->add(key + "/taken", 1) == group.size() - 1) world.store->set(key + "/all", "1");
    return taken;
  }
  net::Group alone{group.id, {group.members[0]}, 0};
  auto mine = std::make_shared<net::SharedSegment>(world, alone, "fused-threads", bytes, deadline);
  if (group.size() == 1) return mine;
  world.store->set(key, fmt::format("{:x}", reinterpret_cast<uintptr_t>(&mine)));
  try {
    net::wait_for_key(world, group, key + "/all", -1, deadline);
  } catch (...) {
    world.store->erase(key);
    throw;
  }
  return mine;
}

bool all_in_one_process(const net::World& world, const net::Group& group) {
  return std::all_of(group.members.begin(), group.members.end(),
                     [&](int member) { return world.same_process(group.members[0], member); });
}

}  // namespace

// All slots together are limited to 32 MiB: well below the last-level cache and a container's shared-memory limit.
ShmLayout::ShmLayout(int size) : num_ranks(static_cast<size_t>(size)) {
  constexpr size_t kAllSlots = size_t{32} << 20;
  block_bytes = std::clamp(kAllSlots / (num_ranks * kDepth) / kPage * kPage, size_t{64} << 10, size_t{4} << 20);
  piece_bytes = (block_bytes / num_ranks + kPage - 1) / kPage * kPage;
  rank_bytes = piece_at(kDepth);
}

std::unique_ptr<FusedCollectives> FusedCollectives::open(const net::World& world, const net::Group& group,
                                                         Deadline deadline, const FusedTuning& tuning) {
  return std::unique_ptr<FusedCollectives>(new FusedCollectives(world, group, deadline, tuning));
}

FusedCollectives::FusedCollectives(const net::World& world, const net::Group& group, Deadline deadline,
                                   const FusedTuning& tuning)
    : world_(world),
      group_(group),
      tuning_(with_defaults(tuning, group.size())),
      layout_(group.size()),
      one_process_(all_in_one_process(world, group)),
      segment_(open_segment(world, group, one_process_, layout_.bytes(), deadline)),
      barrier_(world, group, segment_->data(), layout_),
      registry_(std::make_shared<Registry>()),
      sources_(static_cast<size_t>(group.size())) {
  static_assert(sizeof(ShmControlPage) <= ShmLayout::kPage);
  views_.in.resize(sources_.size());
  views_.out.resize(sources_.size());
  scratch_.resize(kStripBytes + 64);
}

bool FusedCollectives::supports(const Call& call) const {
  switch (call.op) {
    case Op::send:
    case Op::recv:
    case Op::signal:
    case Op::wait:
      return false;
    default:
      return true;
  }
}

std::shared_ptr<void> FusedCollectives::allocate(size_t bytes, Deadline deadline) {
  return registry_->add(world_, group_, bytes, deadline);
}

void FusedCollectives::run(const Call& call, const net::Tag& tag, Deadline deadline) {
  if (size() == 1) return run_single_rank(call);
  ++call_number_;
  try {
    if (is_eager(call)) return run_eager(call, tag, deadline);
    ++synchronised_calls_;
    if (is_small(call)) return run_small(call, tag, deadline);
    run_large(call, tag, deadline);
  } catch (const CommError& error) {
    // A mismatch takes precedence over this error: the peer may have left or be late because it saw a mismatch that
    // this rank has not checked yet.
    if (error.kind() != CommError::Kind::mismatch) check_entered_calls();
    throw;
  }
}

void FusedCollectives::run_large(const Call& call, const net::Tag& tag, Deadline deadline) {
  choose_copy_policy(call);
  bool may_be_direct = publish_addresses(call);
  if (call.op == Op::all_to_all_v) publish_segments(call);
  // If this rank has no addressable buffer, the call is staged, and its first block is sent together with the tag.
  if (!may_be_direct && call.op != Op::all_to_all_v) return run_staged(call, &tag, deadline);
  announce(tag);
  wait_for_all(deadline);
  follow_copy_policy(deadline);
  if (call.op == Op::all_to_all_v) check_segments();
  if (addressable(call)) return run_direct(call, deadline);
  run_staged(call, nullptr, deadline);
}

void FusedCollectives::announce(const net::Tag& tag) {
  auto& header = header_of(rank());
  header.tag = tag;
  barrier_.announce(header.call, call_number_);
}

void FusedCollectives::wait_for_all(Deadline deadline) {
  for (int i = 1; i < size(); ++i) wait_for_tags((rank() + i) % size(), call_number_, deadline);
  last_checked_call_ = call_number_;
}

void FusedCollectives::count_step(uint32_t steps) {
  kernel::finish_streaming();
  barrier_.announce(barrier_.mine().step.value, steps);
}

void check_tag(const net::Tag& mine, int my_rank, const net::Tag& theirs, int their_rank) {
  if (mine == theirs) return;
  throw CommError(CommError::Kind::mismatch, their_rank,
                  fmt::format("rank {} called {} (call {}), rank {} called {} (call {})", my_rank, describe(mine),
                              mine.sequence, their_rank, describe(theirs), theirs.sequence));
}

bool FusedCollectives::publish_addresses(const Call& call) {
  BufferBytes extent = buffer_bytes_of(call, rank(), size());
  auto& addresses = barrier_.mine().addresses[parity()];
  auto address_of = [&](const void* data, size_t bytes) {
    return one_process_ ? BufferAddress{0, reinterpret_cast<uint64_t>(data)} : registry_->find(data, bytes);
  };
  addresses.in = address_of(call.in, extent.in_bytes);
  addresses.out = address_of(call.out, extent.out_bytes);
  addresses.overlapping = needs_staging(call, rank(), size());
  return one_process_ || (!addresses.overlapping && (addresses.in.segment != 0 || addresses.out.segment != 0));
}

// True if the call can use the direct path. Reads only data published by all ranks, so the result is equal on all
// ranks. Registered buffers count only if all members have them in the same segment; then every member still maps that
// segment.
bool FusedCollectives::addressable(const Call& call) {
  bool inputs_registered = true, outputs_registered = true, root_and_peers_registered = true;
  const auto& roots = barrier_.page(call.root).addresses[parity()];
  const auto& first = barrier_.page(0).addresses[parity()];
  for (int member = 0; member < size(); ++member) {
    const auto& addresses = barrier_.page(member).addresses[parity()];
    if (addresses.overlapping) return false;
    inputs_registered &= addresses.in.segment != 0 && addresses.in.segment == first.in.segment;
    outputs_registered &= addresses.out.segment != 0 && addresses.out.segment == first.out.segment;
    uint64_t segment = member == call.root ? addresses.in.segment : addresses.out.segment;
    root_and_peers_registered &= segment != 0 && segment == roots.in.segment;
  }
  bool reaches = one_process_;
  switch (call.op) {
    case Op::all_reduce:
      reaches |= inputs_registered && outputs_registered;
      break;
    case Op::reduce:
      reaches |= inputs_registered && roots.out.segment == first.in.segment;
      break;
    case Op::broadcast:
    case Op::scatter:
      reaches |= root_and_peers_registered;
      break;
    default:
      reaches |= inputs_registered;
  }
  if (!reaches) return false;
  for (int member = 0; member < size(); ++member) {
    const auto& addresses = barrier_.page(member).addresses[parity()];
    auto view = [&](const BufferAddress& address) {
      return one_process_ ? reinterpret_cast<std::byte*>(address.at) : registry_->resolve(address, member);
    };
    views_.in[static_cast<size_t>(member)] = view(addresses.in);
    views_.out[static_cast<size_t>(member)] = view(addresses.out);
  }
  return true;
}

bool FusedCollectives::bypasses_cache(const Call& call) const {
  BufferBytes extent = buffer_bytes_of(call, call.root, size());
  return extent.out_bytes * static_cast<size_t>(size()) >= tuning_.stream_from;
}

std::byte* FusedCollectives::scratch() {
  auto address = reinterpret_cast<uintptr_t>(scratch_.data());
  return scratch_.data() + (64 - address % 64) % 64;
}

void FusedCollectives::move(std::byte* to, const std::byte* from, size_t bytes, bool streams) {
  if (streams)
    kernel::copy_streaming(to, from, bytes);
  else
    kernel::copy(to, from, bytes);
}

void FusedCollectives::run_single_rank(const Call& call) {
  BufferBytes extent = buffer_bytes_of(call, 0, 1);
  if (call.op == Op::all_to_all_v) {
    size_t element = size_of(call.dtype);
    std::memmove(bytes_out(call) + call.recv_offsets[0] * element, bytes_in(call) + call.send_offsets[0] * element,
                 call.send_counts[0] * element);
    return;
  }
  if (extent.out_bytes > 0 && call.in != call.out) std::memmove(call.out, call.in, extent.out_bytes);
  bool averages = call.reduce == ReduceOp::avg &&
                  (call.op == Op::all_reduce || call.op == Op::reduce || call.op == Op::reduce_scatter);
  if (averages) kernel::divide(call.out, call.count, call.dtype, 1);
}

}  // namespace esp::comm
