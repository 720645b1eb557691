// The building blocks of algorithms. A ScheduleBuilder collects one rank's actions. A RankSequence lists the ranks a
// phase runs over. The phases (ring, tree, pairwise; phases.h) are the parts most algorithms are composed of.
//
// `me` is a position in a sequence; `rank` is a member of the group. `round` labels the actions added next; a phase
// advances it by the same amount on every rank, including idle ones, so labels match on all ranks. Within one round a
// rank never receives into memory it sends from, so all messages of a round may be in flight together. The builder
// drops actions of zero size; both ends know the size, so both drop them.
#pragma once

#include <string>
#include <vector>

#include "esp/comm/schedule.h"

namespace esp::comm {

inline int mod(int a, int n) {
  int m = a % n;
  return m < 0 ? m + n : m;
}
int ceil_log2(int n);   // 0 for 1
int floor_log2(int n);  // n >= 1
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
// Elements [offset, offset + count) of a region, and chunk k of a region cut into n.
inline BufferRegion piece(const BufferRegion& whole, Chunk c) {
  return {whole.buffer, whole.offset + c.offset, c.count};
}
inline BufferRegion chunk(const BufferRegion& whole, int n, int k) {
  return piece(whole, chunk_of(whole.count, n, mod(k, n)));
}
// Chunks [first, last) together.
BufferRegion chunks(const BufferRegion& whole, int n, int first, int last);

class ScheduleBuilder {
 public:
  int round = 0;

  void send(int peer, BufferRegion what);
  void receive(int peer, BufferRegion into);
  void receive_reduce(int peer, BufferRegion into);
  void copy(BufferRegion into, BufferRegion from);
  void reduce(BufferRegion into, std::vector<BufferRegion> sources);
  // A zero-byte message that is kept; its arrival is the information.
  void signal(int peer);
  void await(int peer);

  BufferRegion scratch(size_t count);  // fresh memory
  // Actions sorted by round. Within a round sends come first; otherwise insertion order. `round` becomes the number of
  // rounds.
  Schedule finish();

 private:
  Schedule schedule_;
};

// An ordered list of ranks; a phase may close it into a ring. me < 0: this rank is not in it and only advances `round`.
struct RankSequence {
  std::vector<int> ranks;
  int me = -1;
  int size() const { return static_cast<int>(ranks.size()); }
  int at(int position) const { return ranks[static_cast<size_t>(mod(position, size()))]; }
};
RankSequence all_ranks(const CollectiveSpec& spec);             // 0, 1, …
RankSequence ranks_from(const CollectiveSpec& spec, int root);  // root, root+1, …
RankSequence reversed(RankSequence sequence);
// The ranks that differ from `rank` along one axis of the grid.
RankSequence ranks_along(const RankGrid& shape, int rank, int axis);

// The grid a topology-aware algorithm runs on: spec.shape, with its largest axis split (as evenly as its divisors
// allow) until there are num_axes axes. An empty shape starts from one axis. num_axes 0: the shape as given, or the
// prime factors, largest first.
RankGrid grid_for(const CollectiveSpec& spec, int num_axes);
// The reason the shape does not fit, or empty. For AlgorithmRow::applies.
std::string grid_problem(const CollectiveSpec& spec, int num_axes);

}  // namespace esp::comm
