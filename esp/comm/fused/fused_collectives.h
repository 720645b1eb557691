// Fused collectives: the ranks of one host communicate through shared memory instead of messages.
//
// A call starts the same way on every rank: the rank publishes its tag in the control block (shm_control_block.h) and
// reads all peers' tags, so a mismatching call is detected before data is touched. (In an eager call, the waiting ranks
// detect it at once and the others some calls later.) Then all ranks take one of these paths:
//   eager    a few bytes from or to a root; the root of a broadcast does not wait
//   small    the data is in the slot beside the tag: each rank copies what it needs, without a second wait
//   direct   peers' buffers are addressable (registered memory, or threads of one process): each rank reads its
//            share from all peers and writes it to all
//   staged   private buffers: a pipeline of blocks through shared slots. Each rank writes a block, reads (and
//            reduces) its share of the previous block, and reads the other ranks' shares of the block before that
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

// Store type of staged blocks: cached stores or streaming (non-temporal) stores. Cached stores are faster between cores
// that share a cache. Between other cores, reading a peer's dirty cache line is several times slower than reading
// memory. Virtual machines move cores, so with `automatic` rank 0 probes regularly and all ranks follow its result.
enum class CopyPolicy : uint32_t { automatic, staged, streamed };

// Tuning parameters; a field that is zero gets a default that depends on the group size.
struct FusedTuning {
  CopyPolicy copy_policy = CopyPolicy::automatic;
  size_t small_bytes = 0;  // largest message sent beside the tag, in bytes
  size_t block_bytes = 0;  // size of a pipeline block
  size_t stream_from = 0;  // results bypass the cache if the outputs of all ranks have at least this many bytes
  uint32_t lag = 0;        // pipeline steps between writing and reading a block
};

class FusedCollectives {
 public:
  // Collective over the group. All members must be on one host and pass the same tuning.
  static std::unique_ptr<FusedCollectives> open(const net::World& world, const net::Group& group, Deadline deadline,
                                                const FusedTuning& tuning = {});

  bool supports(const Call& call) const;
  void run(const Call& call, const net::Tag& tag, Deadline deadline);
  std::shared_ptr<void> allocate(size_t bytes, Deadline deadline);

  // Collective. Measures the time in ns to transfer one cache line between the cores of ranks 0 and 1: about 60 with a
  // shared cache, 200 and more without. Meaningless if the two ranks share a core.
  double cache_line_ns(Deadline deadline);

  // Number of times this rank had to wait for a peer.
  uint64_t num_waits() const { return barrier_.num_waits(); }

 private:
  // Addresses of the peers' buffers as mapped in this rank; null if not addressable.
  struct Views {
    std::vector<std::byte*> in, out;
  };

  FusedCollectives(const net::World& world, const net::Group& group, Deadline deadline, const FusedTuning& tuning);

  int rank() const { return barrier_.rank(); }
  int size() const { return barrier_.size(); }
  uint32_t parity() const { return synchronised_calls_ % 2; }
  ShmControlPage::Header& header_of(int member) const { return header_of(member, call_number_); }
  ShmControlPage::Header& header_of(int member, uint32_t call_number) const {
    return barrier_.page(member).header[call_number % ShmControlPage::kCalls];
  }

  // Defined in fused_collectives.cpp:
  void run_single_rank(const Call& call);
  void run_large(const Call& call, const net::Tag& tag, Deadline deadline);
  void announce(const net::Tag& tag);
  void wait_for_all(Deadline deadline);
  bool publish_addresses(const Call& call);
  bool addressable(const Call& call);

  // Defined in copy_policy.cpp:
  void choose_copy_policy(const Call& call);
  void follow_copy_policy(Deadline deadline);
  int first_rank_on_other_core() const;

  // Defined in all_to_all_segments.cpp:
  AllToAllSegment* segments_of(int member) const {
    return reinterpret_cast<AllToAllSegment*>(barrier_.at(member, layout_.segments_at(parity())));
  }
  void publish_segments(const Call& call);
  size_t check_segments() const;

  // Defined in eager.cpp:
  bool is_eager(const Call& call) const;
  void run_eager(const Call& call, const net::Tag& tag, Deadline deadline);
  void wait_for_slowest(Deadline deadline);
  void wait_for_tags(int peer, uint32_t until, Deadline deadline);
  void compare_tags(int peer, uint32_t call_number) const;
  void check_entered_calls() const;

  // Defined in small.cpp:
  bool is_small(const Call& call) const;
  void run_small(const Call& call, const net::Tag& tag, Deadline deadline);
  void take_small(const Call& call, size_t slot);
  void combine(std::byte* out, const Call& call, size_t bytes);

  // Defined in direct.cpp:
  void run_direct(const Call& call, Deadline deadline);
  ByteRange even_share(size_t bytes) const;
  void reduce_share(const Call& call, ByteRange share, std::byte* const* outs, int num_outs, bool streams);

  // Defined in staged.cpp. `tag` given: announces the call together with its first block. `tag` null: all ranks have
  // already entered the call.
  struct Staging;
  void run_staged(const Call& call, const net::Tag* tag, Deadline deadline);
  template <typename Produce, typename Middle, typename Collect>
  void pipeline(const Staging& staging, const net::Tag* tag, Deadline deadline, Produce&& produce, Middle&& middle,
                Collect&& collect);
  void stage_reduction(const Call& call, const net::Tag* tag, Deadline deadline);
  void stage_rooted(const Call& call, const net::Tag* tag, Deadline deadline);
  void stage_exchange(const Call& call, const net::Tag* tag, Deadline deadline);

  // True if the outputs of all ranks together exceed the cache.
  bool bypasses_cache(const Call& call) const;
  size_t block_limit() const { return tuning_.block_bytes; }
  size_t depth() const { return 2 * tuning_.lag; }  // number of slots in use; small, so that they stay in the cache
  std::byte* scratch();
  static void move(std::byte* to, const std::byte* from, size_t bytes, bool streams);
  // Strip length of reductions: a strip is still in the L1 cache when it is copied. With streaming copies strips are
  // shorter, so that a copy overlaps with the reads of the next strip.
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
  uint32_t synchronised_calls_ = 0;  // number of calls so far in which all ranks wait for each other
  uint32_t last_checked_call_ = 0;   // last call in which the tags of all peers equalled this rank's tag
  uint32_t step_ = 0;                // pipeline steps finished so far, in all calls
  uint32_t block_ = 0;               // blocks staged so far; the next slot is block_ modulo the depth
  bool separate_caches_ = true;      // true if the last probe found that the cores do not share a cache
  bool probe_expired_ = true;        // true if the last probe is too old to rely on
  bool streams_copies_ = false;      // true if this call uses streaming stores
  Clock::time_point next_probe_{}, probed_at_{};
  Views views_;
  std::vector<const void*> sources_;
  std::vector<std::byte> scratch_;
};

// Throws CommError(mismatch) naming both ranks and both calls if the tags differ.
void check_tag(const net::Tag& mine, int my_rank, const net::Tag& theirs, int their_rank);

}  // namespace esp::comm
