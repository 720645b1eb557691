// Fused: the collectives among ranks of one host, written against shared memory instead of messages.
//
// Every call begins the same way: each rank announces the call's tag on the board (board.h) and reads everybody else's,
// so a call that differs is noticed by all before data is touched (a posted one by who waits in it, by the others some
// calls later). Then one of these ways, the same on every rank:
//   posted   a few bytes from or to a root: who only gives does not wait
//   small    the data travelled in the slot beside the tag: every rank takes what it needs, and there is no second wait
//   direct   peers' buffers can be addressed (registered memory, or threads of one process): each rank reads its share
//            from all, and writes it to all
//   staged   private buffers: a pipeline of blocks through shared slots. Each rank puts a block down, picks up (and
//            reduces) its share of the block before, and picks up the others' shares of the one before that
//
// Sums are in rank order for every element, rounded once. One thread at a time may call `run`; `allocate` is collective
// and in the same order as other calls. After an exception the object must not be used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "esp/comm/call.h"
#include "esp/comm/fused/extent.h"
#include "esp/comm/fused/gate.h"
#include "esp/comm/fused/registry.h"
#include "esp/net/shm/segment.h"
#include "esp/net/world.h"

namespace esp::comm {

// How blocks are put down for peers: in the cache, or past it in memory. The cache is faster between cores that share
// one; between cores that do not, fetching a peer's dirty line costs several times a line from memory. Machines move
// virtual cores about, so `automatic` lets rank 0 look now and then, and all follow.
enum class Way : uint32_t { automatic, staged, streamed };

// Zero: a default by the size of the group.
struct FusedTuning {
  Way way = Way::automatic;
  size_t small_bytes = 0;  // up to here data travels beside the tag
  size_t block_bytes = 0;  // what a rank puts down at a time
  size_t stream_from = 0;  // bytes of all ranks' outputs from which results are written past the cache
  uint32_t lag = 0;        // steps between putting a block down and picking it up
};

class Fused {
 public:
  // Collective over the group, whose members are all on one host; the tuning must be the same on all.
  static std::unique_ptr<Fused> open(const net::World& world, const net::Group& group, Deadline deadline,
                                     const FusedTuning& tuning = {});

  bool can(const Call& call) const;
  void run(const Call& call, const net::Tag& tag, Deadline deadline);
  std::shared_ptr<void> allocate(size_t bytes, Deadline deadline);

  // Collective. Nanoseconds a cache line takes between the cores of ranks 0 and 1: about 60 when they share a cache,
  // 200 and more when they do not, a jumble when ranks take turns on the cores.
  double hand_over_ns(Deadline deadline);

  // Bytes this rank copied or reduced out of peers' memory, and how often it had to wait for a peer.
  uint64_t num_waits() const { return gate_.num_waits(); }

 private:
  // Peers' buffers as this rank can address them; null where it cannot.
  struct Views {
    std::vector<std::byte*> in, out;
  };

  Fused(const net::World& world, const net::Group& group, Deadline deadline, const FusedTuning& tuning);

  int rank() const { return gate_.rank(); }
  int size() const { return gate_.size(); }
  uint32_t parity() const { return turn_ % 2; }
  BoardPage::Header& header_of(int member) const { return header_of(member, call_number_); }
  BoardPage::Header& header_of(int member, uint32_t call_number) const {
    return gate_.page(member).header[call_number % BoardPage::kCalls];
  }

  // fused.cpp
  void run_alone(const Call& call);
  void run_large(const Call& call, const net::Tag& tag, Deadline deadline);
  void announce(const net::Tag& tag);
  void meet(Deadline deadline);
  bool publish_places(const Call& call);
  bool addressable(const Call& call);

  // way.cpp
  void choose_way(const Call& call);
  void follow_choice(Deadline deadline);
  int on_another_core() const;

  // parcels.cpp
  Parcel* parcels_of(int member) const {
    return reinterpret_cast<Parcel*>(gate_.at(member, layout_.parcels_at(parity())));
  }
  void publish_parcels(const Call& call);
  size_t check_parcels() const;

  // posted.cpp
  bool is_posted(const Call& call) const;
  void run_posted(const Call& call, const net::Tag& tag, Deadline deadline);
  void keep_up(Deadline deadline);
  void await_tags(int peer, uint32_t until, Deadline deadline);
  void compare_tags(int peer, uint32_t call_number) const;
  void check_what_was_entered() const;

  // small.cpp
  bool is_small(const Call& call) const;
  void run_small(const Call& call, const net::Tag& tag, Deadline deadline);
  void take_small(const Call& call, size_t slot);
  void combine(std::byte* out, const Call& call, size_t bytes);

  // direct.cpp
  void run_direct(const Call& call, Deadline deadline);
  Span even_share(size_t bytes) const;
  void reduce_share(const Call& call, Span share, std::byte* const* outs, int num_outs, bool streams);

  // staged.cpp. With a tag, the call is announced along with the first block; without, all ranks have met already.
  struct Staging;
  void run_staged(const Call& call, const net::Tag* tag, Deadline deadline);
  template <typename Produce, typename Middle, typename Collect>
  void pipeline(const Staging& staging, const net::Tag* tag, Deadline deadline, Produce&& produce, Middle&& middle,
                Collect&& collect);
  void stage_reduction(const Call& call, const net::Tag* tag, Deadline deadline);
  void stage_rooted(const Call& call, const net::Tag* tag, Deadline deadline);
  void stage_exchange(const Call& call, const net::Tag* tag, Deadline deadline);

  // Whether outputs are so large that they would only push each other out of the cache.
  bool bypasses_cache(const Call& call) const;
  size_t block_limit() const { return tuning_.block_bytes; }
  size_t depth() const { return 2 * tuning_.lag; }  // no more slots than needed: they are to stay in the cache
  std::byte* scratch();
  static void move(std::byte* to, const std::byte* from, size_t bytes, bool streams);
  // Reductions go in strips that are still in the first-level cache when they are copied on. Copies past the cache want
  // short ones: the processor then overlaps them with the reads of the next.
  static constexpr size_t kStripBytes = size_t{16} << 10, kStreamedStripBytes = size_t{2} << 10;
  static size_t strip_bytes(bool streams) { return streams ? kStreamedStripBytes : kStripBytes; }
  void count_step(uint32_t steps);

  const net::World& world_;
  const net::Group group_;
  const FusedTuning tuning_;
  const BoardLayout layout_;
  const bool one_process_;  // all members are threads of this process
  const std::shared_ptr<net::SharedSegment> segment_;
  Gate gate_;
  std::shared_ptr<Registry> registry_;
  uint32_t call_number_ = 0;
  uint32_t turn_ = 0;        // calls so far in which all wait for all
  uint32_t checked_ = 0;     // up to this call every peer's tag was like this rank's
  uint32_t step_ = 0;        // steps finished in all pipelines so far
  uint32_t block_ = 0;       // blocks staged so far: the next slot is block_ modulo the depth
  bool far_ = true;          // cores do not share a cache, as last seen; until then what is never slow
  bool unsure_ = true;       // they were not seen of late
  bool past_cache_ = false;  // how this call puts blocks down
  Clock::time_point look_again_{}, seen_at_{};
  Views views_;
  std::vector<const void*> sources_;
  std::vector<std::byte> scratch_;
};

// Throws CommError(mismatch) naming both ranks and both calls unless the tags are equal.
void check_tag(const net::Tag& mine, int my_rank, const net::Tag& theirs, int their_rank);

}  // namespace esp::comm
