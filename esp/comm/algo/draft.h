// The vocabulary in which algorithms are written: a Draft collects one rank's actions, a Line is the ranks a phase runs
// over, and the phases (ring, tree, pairwise) are the sentences most algorithms are made of.
//
// Words: `me` is a position on a line, `rank` a member of the group. `round` labels what is added next; a phase
// advances it by the same amount on every rank, also where that rank stays idle, so labels agree everywhere. In one
// round a rank never receives into what it sends, and never sends what it receives: all messages of a round may be
// under way at once. Draft drops zero-size work; both ends know the size, so both drop it.
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

inline Region input(size_t offset, size_t count) {
  return {Buffer::input, offset, count};
}
inline Region output(size_t offset, size_t count) {
  return {Buffer::output, offset, count};
}
inline Region input(Chunk c) {
  return input(c.offset, c.count);
}
inline Region output(Chunk c) {
  return output(c.offset, c.count);
}
// The piece [offset, offset + count) of a region; chunk k of it when cut in n.
inline Region piece(const Region& whole, Chunk c) {
  return {whole.buffer, whole.offset + c.offset, c.count};
}
inline Region chunk(const Region& whole, int n, int k) {
  return piece(whole, chunk_of(whole.count, n, mod(k, n)));
}
// Chunks [first, last) together.
Region chunks(const Region& whole, int n, int first, int last);

class Draft {
 public:
  int round = 0;

  void send(int peer, Region what);
  void receive(int peer, Region into);
  void receive_reduce(int peer, Region into);
  void copy(Region into, Region from);
  void reduce(Region into, std::vector<Region> sources);
  // A message of no bytes, kept: its arrival is what it says.
  void signal(int peer);
  void await(int peer);

  Region scratch(size_t count);  // fresh memory
  // Actions in order of rounds; within one sends first, else as drafted. `round` is the number of rounds.
  Schedule finish();

 private:
  Schedule schedule_;
};

// Ranks in a row, closed to a ring where a phase needs one. me < 0: this rank is not on it and only counts rounds.
struct Line {
  std::vector<int> ranks;
  int me = -1;
  int size() const { return static_cast<int>(ranks.size()); }
  int at(int position) const { return ranks[static_cast<size_t>(mod(position, size()))]; }
};
Line everyone(const Problem& problem);                 // 0, 1, …
Line everyone_from(const Problem& problem, int root);  // root, root+1, …; position 0 is the root
Line reversed(Line line);
// The ranks that differ from `rank` along one axis of the grid.
Line along(const Shape& shape, int rank, int axis);

// The grid a topology-aware algorithm runs on: problem.shape, its largest axis split (as evenly as its divisors allow)
// until there are num_axes; an empty shape starts from one axis. num_axes 0: as given, or the prime factors, largest
// first.
Shape shape_of(const Problem& problem, int num_axes);
// Why the shape cannot serve, or empty. For AlgorithmRow::applies.
std::string shape_problem(const Problem& problem, int num_axes);

}  // namespace esp::comm
