#include "esp/comm/fused/fused.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/comm/fused/extent.h"
#include "esp/device/cpu/topology.h"
#include "esp/kernel/copy.h"

namespace esp::comm {
namespace {

// Of one core, as the kernel tells it: sysconf adds up the caches of a whole processor, most of which no rank here
// sees.
size_t last_level_cache() {
  static const size_t bytes = device::read_topology().l3_bytes;
  return bytes > 0 ? bytes : size_t{16} << 20;
}

FusedTuning filled(FusedTuning tuning, int size) {
  if (tuning.block_bytes == 0) tuning.block_bytes = size_t{1} << 20;
  tuning.block_bytes = std::min(tuning.block_bytes, BoardLayout(size).block_bytes);
  if (tuning.small_bytes == 0)
    tuning.small_bytes = std::max<size_t>(2048, (size_t{16} << 10) / static_cast<size_t>(size));
  if (tuning.stream_from == 0) tuning.stream_from = last_level_cache() / 2;
  tuning.lag = std::clamp<uint32_t>(tuning.lag, 1, BoardLayout::kDepth / 2);
  tuning.small_bytes = std::min(tuning.small_bytes, BoardLayout::kSmallBytes);
  return tuning;
}

// Threads of one process share one mapping: they save page tables, and tools that watch for races see that they meet.
// Member 0 lends its pointer through the store until all have a copy.
std::shared_ptr<net::SharedSegment> open_segment(const net::World& world, const net::Group& group, bool one_process,
                                                 size_t bytes, Deadline deadline) {
  if (!one_process) return std::make_shared<net::SharedSegment>(world, group, "fused", bytes, deadline);
  using Holder = std::shared_ptr<net::SharedSegment>;
  std::string key = fmt::format("fused/{:x}", group.id);
  if (group.rank != 0) {
    auto address = std::stoull(world.store->get(key, deadline), nullptr, 16);
    Holder taken = *reinterpret_cast<Holder*>(static_cast<uintptr_t>(address));
    if (world.store->add(key + "/taken", 1) == group.size() - 1) world.store->set(key + "/all", "1");
    return taken;
  }
  net::Group alone{group.id, {group.members[0]}, 0};
  auto mine = std::make_shared<net::SharedSegment>(world, alone, "fused-threads", bytes, deadline);
  if (group.size() == 1) return mine;
  world.store->set(key, fmt::format("{:x}", reinterpret_cast<uintptr_t>(&mine)));
  try {
    world.store->get(key + "/all", deadline);
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

// Slots of all ranks together stay well inside the last-level cache, and inside a container's shared memory.
BoardLayout::BoardLayout(int size) : num_ranks(static_cast<size_t>(size)) {
  constexpr size_t kAllSlots = size_t{32} << 20;
  block_bytes = std::clamp(kAllSlots / (num_ranks * kDepth) / kPage * kPage, size_t{64} << 10, size_t{4} << 20);
  piece_bytes = (block_bytes / num_ranks + kPage - 1) / kPage * kPage;
  rank_bytes = piece_at(kDepth);
}

std::unique_ptr<Fused> Fused::open(const net::World& world, const net::Group& group, Deadline deadline,
                                   const FusedTuning& tuning) {
  return std::unique_ptr<Fused>(new Fused(world, group, deadline, tuning));
}

Fused::Fused(const net::World& world, const net::Group& group, Deadline deadline, const FusedTuning& tuning)
    : world_(world),
      group_(group),
      tuning_(filled(tuning, group.size())),
      layout_(group.size()),
      one_process_(all_in_one_process(world, group)),
      segment_(open_segment(world, group, one_process_, layout_.bytes(), deadline)),
      gate_(world, group, segment_->data(), layout_),
      registry_(std::make_shared<Registry>()),
      sources_(static_cast<size_t>(group.size())) {
  static_assert(sizeof(BoardPage) <= BoardLayout::kPage);
  views_.in.resize(sources_.size());
  views_.out.resize(sources_.size());
  scratch_.resize(kStripBytes + 64);
}

bool Fused::can(const Call& call) const {
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

std::shared_ptr<void> Fused::allocate(size_t bytes, Deadline deadline) {
  return registry_->add(world_, group_, bytes, deadline);
}

void Fused::run(const Call& call, const net::Tag& tag, Deadline deadline) {
  if (size() == 1) return run_alone(call);
  ++call_number_;
  try {
    if (is_posted(call)) return run_posted(call, tag, deadline);
    ++turn_;
    if (is_small(call)) return run_small(call, tag, deadline);
    run_large(call, tag, deadline);
  } catch (const CommError& error) {
    // A peer that left or did not come may have been told of a difference before this rank looked.
    if (error.kind() != CommError::Kind::mismatch) check_what_was_entered();
    throw;
  }
}

void Fused::run_large(const Call& call, const net::Tag& tag, Deadline deadline) {
  choose_way(call);
  bool may_be_direct = publish_places(call);
  if (call.op == Op::all_to_all_v) publish_parcels(call);
  // Without a buffer that peers could address, staging is certain: the first block travels along with the tag.
  if (!may_be_direct && call.op != Op::all_to_all_v) return run_staged(call, &tag, deadline);
  announce(tag);
  meet(deadline);
  follow_choice(deadline);
  if (call.op == Op::all_to_all_v) check_parcels();
  if (addressable(call)) return run_direct(call, deadline);
  run_staged(call, nullptr, deadline);
}

void Fused::announce(const net::Tag& tag) {
  auto& header = header_of(rank());
  header.tag = tag;
  gate_.announce(header.call, call_number_);
}

void Fused::meet(Deadline deadline) {
  for (int i = 1; i < size(); ++i) await_tags((rank() + i) % size(), call_number_, deadline);
  checked_ = call_number_;
}

void Fused::count_step(uint32_t steps) {
  kernel::finish_streaming();
  gate_.announce(gate_.mine().step.value, steps);
}

void check_tag(const net::Tag& mine, int my_rank, const net::Tag& theirs, int their_rank) {
  if (mine == theirs) return;
  throw CommError(CommError::Kind::mismatch, their_rank,
                  fmt::format("rank {} called {} (call {}), rank {} called {} (call {})", my_rank, describe(mine),
                              mine.sequence, their_rank, describe(theirs), theirs.sequence));
}

bool Fused::publish_places(const Call& call) {
  Extent extent = extent_of(call, rank(), size());
  auto& places = gate_.mine().places[parity()];
  auto place = [&](const void* data, size_t bytes) {
    return one_process_ ? Place{0, reinterpret_cast<uint64_t>(data)} : registry_->find(data, bytes);
  };
  places.in = place(call.in, extent.in_bytes);
  places.out = place(call.out, extent.out_bytes);
  places.overlapping = needs_staging(call, rank(), size());
  return one_process_ || (!places.overlapping && (places.in.segment != 0 || places.out.segment != 0));
}

// Decided from what all ranks published, so that all decide alike. Registered buffers count only when every member has
// one in the same segment: then every member still maps it.
bool Fused::addressable(const Call& call) {
  bool in_shared = true, out_shared = true, in_or_out_shared = true;
  const auto& roots = gate_.page(call.root).places[parity()];
  const auto& first = gate_.page(0).places[parity()];
  for (int member = 0; member < size(); ++member) {
    const auto& places = gate_.page(member).places[parity()];
    if (places.overlapping) return false;
    in_shared &= places.in.segment != 0 && places.in.segment == first.in.segment;
    out_shared &= places.out.segment != 0 && places.out.segment == first.out.segment;
    uint64_t segment = member == call.root ? places.in.segment : places.out.segment;
    in_or_out_shared &= segment != 0 && segment == roots.in.segment;
  }
  bool reaches = one_process_;
  switch (call.op) {
    case Op::all_reduce:
      reaches |= in_shared && out_shared;
      break;
    case Op::reduce:
      reaches |= in_shared && roots.out.segment == first.in.segment;
      break;
    case Op::broadcast:
    case Op::scatter:
      reaches |= in_or_out_shared;
      break;
    default:
      reaches |= in_shared;
  }
  if (!reaches) return false;
  for (int member = 0; member < size(); ++member) {
    const auto& places = gate_.page(member).places[parity()];
    auto view = [&](const Place& place) {
      return one_process_ ? reinterpret_cast<std::byte*>(place.at) : registry_->resolve(place, member);
    };
    views_.in[static_cast<size_t>(member)] = view(places.in);
    views_.out[static_cast<size_t>(member)] = view(places.out);
  }
  return true;
}

bool Fused::bypasses_cache(const Call& call) const {
  Extent extent = extent_of(call, call.root, size());
  return extent.out_bytes * static_cast<size_t>(size()) >= tuning_.stream_from;
}

std::byte* Fused::scratch() {
  auto address = reinterpret_cast<uintptr_t>(scratch_.data());
  return scratch_.data() + (64 - address % 64) % 64;
}

void Fused::move(std::byte* to, const std::byte* from, size_t bytes, bool streams) {
  if (streams)
    kernel::copy_streaming(to, from, bytes);
  else
    kernel::copy(to, from, bytes);
}

void Fused::run_alone(const Call& call) {
  Extent extent = extent_of(call, 0, 1);
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
