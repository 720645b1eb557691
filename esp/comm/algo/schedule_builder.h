// Building blocks of algorithms. A ScheduleBuilder collects the actions of one rank. A RankSequence lists the ranks
// that take part in a phase. Most algorithms combine the phases of phases.h (ring, tree, pairwise).
//
// `me` is a position in a sequence; `rank` is a member of the group. `round` is the round number given to the actions
// added next. A phase advances it by the same amount on every rank, including idle ones, so round numbers match on all
// ranks. Within one round a rank never receives into memory it sends from, so all messages of a round may be in flight
// together. The builder drops actions of zero size; sender and receiver both know the size, so both drop them.
#pragma once

#include <string>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

inline int mod(int a, int n) {
  int m = a % n;
  return m < 0 ? m + n : m;
}
int ceil_log2(int n);   // ceil_log2(1) is 0
int floor_log2(int n);  // requires n >= 1
inline bool is_power_of_two(int n) {
  return n > 0 && (n & (n - 1)) == 0;
}

inline BufferRegion input(size_t offset, size_t count) {
  return {Buffer::input, offset, count};
}
inline BufferRegion output(size_t offset, size_t count) {
  return {Buffer::output, offset, count};
}
inline BufferRegion input(Chunk c) {
  return input(c.offset, c.count);
}
inline BufferRegion output(Chunk c) {
  return output(c.offset, c.count);
}
// `piece`: elements [offset, offset + count) of a region. `chunk`: chunk k of a region that is cut into n chunks.
inline BufferRegion piece(const BufferRegion& whole, Chunk c) {
  return {whole.buffer, whole.offset + c.offset, c.count};
}
inline BufferRegion chunk(const BufferRegion& whole, int n, int k) {
  return piece(whole, chunk_of(whole.count, n, mod(k, n)));
}
// The region of the chunks [first, last).
BufferRegion chunks(const BufferRegion& whole, int n, int first, int last);

class ScheduleBuilder {
 public:
  int round = 0;

  void send(int peer, BufferRegion what);
  void receive(int peer, BufferRegion into);
  void receive_reduce(int peer, BufferRegion into);
  void copy(BufferRegion into, BufferRegion from);
  void reduce(BufferRegion into, std::vector<BufferRegion> sources);
  // Adds a zero-byte message. The builder keeps it, because its arrival is the information.
  void signal(int peer);
  void wait_for_signal(int peer);

  BufferRegion scratch(size_t count);  // allocates new scratch memory
  // Returns the actions sorted by round. Within a round sends come first; otherwise the insertion order is kept.
  // `round` becomes the number of rounds.
  Schedule finish();

 private:
  Schedule schedule_;
};

// An ordered list of ranks; a phase may treat it as a ring. me < 0: this rank is not in the list; phases then only
// advance `round` for it.
struct RankSequence {
  std::vector<int> ranks;
  int me = -1;
  int size() const { return static_cast<int>(ranks.size()); }
  int at(int position) const { return ranks[static_cast<size_t>(mod(position, size()))]; }
};
RankSequence all_ranks(const CollectiveSpec& spec);             // the sequence 0, 1, …
RankSequence ranks_from(const CollectiveSpec& spec, int root);  // the sequence root, root+1, …
RankSequence reversed(RankSequence sequence);
// The ranks that have the same coordinates as `rank` on all axes of the grid except `axis`.
RankSequence ranks_along(const RankGrid& shape, int rank, int axis);

// The grid of a topology-aware algorithm: spec.shape, with its largest axis split (as evenly as its divisors allow)
// until there are num_axes axes. An empty shape is treated as one axis of all ranks. num_axes = 0: spec.shape unchanged
// or, if it is empty, one axis per prime factor of the size, largest first.
RankGrid grid_for(const CollectiveSpec& spec, int num_axes);
// Returns why spec.shape does not fit, or an empty string if it fits. Used as AlgorithmRow::applies.
std::string grid_problem(const CollectiveSpec& spec, int num_axes);

}  // namespace esp::comm
