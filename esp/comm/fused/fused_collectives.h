// Fused collectives: the ranks of one host communicate through shared memory instead of messages.
//
// A call starts the same way on every rank: it publishes its tag in the control block (shm_control_block.h) and reads
// all peers' tags, so a mismatching call is detected before data is touched (in an eager call by the ranks that wait,
// by the others some calls later). Then all ranks take one of these paths:
//   eager    a few bytes from or to a root; the root of a broadcast does not wait
//   small    the data is in the slot beside the tag: each rank copies what it needs, without a second wait
//   direct   peers' buffers are addressable (registered memory, or threads of one process): each rank reads its
//            share from all peers and writes it to all
//   staged   private buffers: a pipeline of blocks through shared slots. Each rank writes a block, reads (and
//            reduces) its share of the previous block, and reads the others' shares of the block before that
//
// Sums are in rank order for every element, rounded once. One thread at a time may call `run`; `allocate` is collective
// and ordered with the other calls. After an exception the object must not be used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "esp/comm/call.h"
#include "esp/comm/fused/buffer_bytes.h"
#include "esp/comm/fused/registry.h"
#include "esp/comm/fused/shm_barrier.h"
#include "esp/net/shm/segment.h"
#include "esp/net/world.h"

namespace esp::comm {

// How staged blocks are written: into the cache, or past it with streaming stores. The cache is faster between cores
// that share one. Between other cores, fetching a peer's dirty line costs several times a line from memory. Virtual
// machines move cores, so with `automatic` rank 0 measures now and then and all ranks follow.
enum class CopyPolicy : uint32_t { automatic, staged, streamed };

// Zero: a default that depends on the group size.
struct FusedTuning {
  CopyPolicy copy_policy = CopyPolicy::automatic;
  size_t small_bytes = 0;  // largest message sent beside the tag
  size_t block_bytes = 0;  // bytes a rank writes at a time
  size_t stream_from = 0;  // total output bytes from which results bypass the cache
  uint32_t lag = 0;        // steps between writing and reading a block
};

class FusedCollectives {
 public:
  // Collective over the group, whose members are all on one host; the tuning must be the same on all.
  static std::unique_ptr<FusedCollectives> open(const net::World& world, const net::Group& group, Deadline deadline,
                                                const FusedTuning& tuning = {});

  bool can(const Call& call) const;
  void run(const Call& call, const net::Tag& tag, Deadline deadline);
  std::shared_ptr<void> allocate(size_t bytes, Deadline deadline);

  // Collective. Latency in ns of one cache line between the cores of ranks 0 and 1: about 60 with a shared cache, 200
  // and more without; meaningless when ranks share cores.
  double cache_line_ns(Deadline deadline);

  // Number of times this rank had to wait for a peer.
  uint64_t num_waits() const { return barrier_.num_waits(); }

 private:
  // Peers' buffers mapped in this rank; null if not addressable.
  struct Views {
    std::vector<std::byte*> in, out;
  };

  FusedCollectives(const net::World& world, const net::Group& group, Deadline deadline, const FusedTuning& tuning);

  int rank() const { return barrier_.rank(); }
  int size() const { return barrier_.size(); }
  uint32_t parity() const { return turn_ % 2; }
  ShmControlPage::Header& header_of(int member) const { return header_of(member, call_number_); }
  ShmControlPage::Header& header_of(int member, uint32_t call_number) const {
    return barrier_.page(member).header[call_number % ShmControlPage::kCalls];
  }

  // fused_collectives.cpp
  void run_alone(const Call& call);
  void run_large(const Call& call, const net::Tag& tag, Deadline deadline);
  void announce(const net::Tag& tag);
  void wait_for_all(Deadline deadline);
  bool publish_addresses(const Call& call);
  bool addressable(const Call& call);

  // copy_policy.cpp
  void choose_copy_policy(const Call& call);
  void follow_copy_policy(Deadline deadline);
  int on_another_core() const;

  // all_to_all_segments.cpp
  AllToAllSegment* segments_of(int member) const {
    return reinterpret_cast<AllToAllSegment*>(barrier_.at(member, layout_.segments_at(parity())));
  }
  void publish_segments(const Call& call);
  size_t check_segments() const;

  // eager.cpp
  bool is_eager(const Call& call) const;
  void run_eager(const Call& call, const net::Tag& tag, Deadline deadline);
  void wait_for_slowest(Deadline deadline);
  void await_tags(int peer, uint32_t until, Deadline deadline);
  void compare_tags(int peer, uint32_t call_number) const;
  void check_entered_calls() const;

  // small.cpp
  bool is_small(const Call& call) const;
  void run_small(const Call& call, const net::Tag& tag, Deadline deadline);
  void take_small(const Call& call, size_t slot);
  void combine(std::byte* out, const Call& call, size_t bytes);

  // direct.cpp
  void run_direct(const Call& call, Deadline deadline);
  ByteRange even_share(size_t bytes) const;
  void reduce_share(const Call& call, ByteRange share, std::byte* const* outs, int num_outs, bool streams);

  // staged.cpp. With a tag, the call is announced together with its first block; without, all ranks have already met.
  struct Staging;
  void run_staged(const Call& call, const net::Tag* tag, Deadline deadline);
  template <typename Produce, typename Middle, typename Collect>
  void pipeline(const Staging& staging, const net::Tag* tag, Deadline deadline, Produce&& produce, Middle&& middle,
                Collect&& collect);
  void stage_reduction(const Call& call, const net::Tag* tag, Deadline deadline);
  void stage_rooted(const Call& call, const net::Tag* tag, Deadline deadline);
  void stage_exchange(const Call& call, const net::Tag* tag, Deadline deadline);

  // Whether the outputs exceed the cache.
  bool bypasses_cache(const Call& call) const;
  size_t block_limit() const { return tuning_.block_bytes; }
  size_t depth() const { return 2 * tuning_.lag; }  // as few slots as needed, so that they stay in the cache
  std::byte* scratch();
  static void move(std::byte* to, const std::byte* from, size_t bytes, bool streams);
  // Reductions run in strips that are still in L1 when they are copied on. Streaming copies use shorter strips, so that
  // they overlap with the reads of the next strip.
  static constexpr size_t kStripBytes = size_t{16} << 10, kStreamedStripBytes = size_t{2} << 10;
  static size_t strip_bytes(bool streams) { return streams ? kStreamedStripBytes : kStripBytes; }
  void count_step(uint32_t steps);

  const net::World& world_;
  const net::Group group_;
  const FusedTuning tuning_;
  const ShmLayout layout_;
  const bool one_process_;  // all members are threads of this process
  const std::shared_ptr<net::SharedSegment> segment_;
  ShmBarrier barrier_;
  std::shared_ptr<Registry> registry_;
  uint32_t call_number_ = 0;
  uint32_t turn_ = 0;        // calls so far in which all ranks wait for all
  uint32_t checked_ = 0;     // last call in which every peer's tag equalled this rank's
  uint32_t step_ = 0;        // steps finished in all pipelines so far
  uint32_t block_ = 0;       // blocks staged so far: the next slot is block_ modulo the depth
  bool far_ = true;          // last measurement: cores do not share a cache
  bool unsure_ = true;       // that measurement is old
  bool past_cache_ = false;  // this call streams past the cache
  Clock::time_point look_again_{}, seen_at_{};
  Views views_;
  std::vector<const void*> sources_;
  std::vector<std::byte> scratch_;
};

// Throws CommError(mismatch) naming both ranks and both calls unless the tags are equal.
void check_tag(const net::Tag& mine, int my_rank, const net::Tag& theirs, int their_rank);

}  // namespace esp::comm
