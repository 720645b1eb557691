#include "esp/comm/algo/cost.h"

#include <bit>

#include "esp/comm/algo/double_tree.h"
#include "esp/comm/algo/phases.h"
#include "esp/comm/algo/segments.h"

namespace esp::comm::cost {
namespace {

double bytes(const CollectiveSpec& p, size_t element_bytes) {
  return static_cast<double>(p.count) * static_cast<double>(element_bytes);
}

// Time of `num` messages that are sent one after another and have `sent` bytes in total.
double in_turn(double num, double sent, double alpha, double beta) {
  return num * alpha + sent * beta;
}

double ring_over(int n, double s, double alpha, double beta) {
  return in_turn(2.0 * (n - 1), 2.0 * (n - 1) / n * s, alpha, beta);
}

double on_torus(const CollectiveSpec& p, int num_axes, double s, double alpha, double beta) {
  double rounds = 0;
  for (int d : grid_for(p, num_axes).dims) rounds += 2.0 * (d - 1);
  return in_turn(rounds, 2.0 * (p.size - 1) / p.size * s, alpha, beta);
}

}  // namespace

double ring_all_reduce(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return ring_over(p.size, bytes(p, e), alpha, beta);
}

// The model has one port per rank, so the two messages of a round are sent one after the other. The algorithm is faster
// than one ring only where links, not ports, are the bottleneck.
double ring_bidirectional(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return in_turn(4.0 * (p.size - 1), 2.0 * (p.size - 1) / p.size * bytes(p, e), alpha, beta);
}

double naive_all_reduce(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return 2 * naive(p, e, alpha, beta);
}

double recursive_doubling(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  PowerOfTwoFold fold = make_fold(0, p.size);
  return (floor_log2(fold.p) + 2 * fold.rounds()) * (alpha + bytes(p, e) * beta);
}

double halving_doubling(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  PowerOfTwoFold fold = make_fold(0, p.size);
  double s = bytes(p, e);
  return in_turn(2.0 * floor_log2(fold.p), 2.0 * (fold.p - 1) / fold.p * s, alpha, beta) +
         2 * fold.rounds() * (alpha + s * beta);
}

double tree_all_reduce(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return 2 * tree(p, e, alpha, beta);
}

double double_tree(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  if (p.size == 1) return 0;
  int k = double_tree_segments(p);
  return (2 * ceil_log2(p.size) + k - 1) * (4 * alpha + 2 * bytes(p, e) * beta / k);
}

double hierarchical_all_reduce(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  RankGrid shape = grid_for(p, 2);
  double s = bytes(p, e);
  return 2 * ceil_log2(shape.dims[0]) * (alpha + s * beta) + ring_over(shape.dims[1], s, alpha, beta);
}

double torus2d(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return on_torus(p, 2, bytes(p, e), alpha, beta);
}
double torus3d(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return on_torus(p, 3, bytes(p, e), alpha, beta);
}
double torus(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return on_torus(p, 0, bytes(p, e), alpha, beta);
}

double mesh2d(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  RankGrid shape = grid_for(p, 2);
  return ring_over(shape.dims[0], bytes(p, e), alpha, beta) + ring_over(shape.dims[1], bytes(p, e), alpha, beta);
}

double tree(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return ceil_log2(p.size) * (alpha + bytes(p, e) * beta);
}

double pipelined(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  if (p.size == 1) return 0;
  int s = pipeline_segments(p);
  return (p.size - 2 + s) * (alpha + bytes(p, e) * beta / s);
}

double scatter_allgather(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return in_turn(ceil_log2(p.size) + p.size - 1, 2.0 * (p.size - 1) / p.size * bytes(p, e), alpha, beta);
}

double naive(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return (p.size - 1) * (alpha + bytes(p, e) * beta);
}

double linear_chunks(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return in_turn(p.size - 1, 1.0 * (p.size - 1) / p.size * bytes(p, e), alpha, beta);
}

double log_chunks(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  return in_turn(ceil_log2(p.size), 1.0 * (p.size - 1) / p.size * bytes(p, e), alpha, beta);
}

double halving(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  PowerOfTwoFold fold = make_fold(0, p.size);
  double s = bytes(p, e);
  return in_turn(floor_log2(fold.p), 1.0 * (fold.p - 1) / fold.p * s, alpha, beta) +
         fold.rounds() * (2 * alpha + (s + s / p.size) * beta);
}

double bruck_all_to_all(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  double blocks = 0;
  for (int j = 0; j < p.size; ++j) blocks += std::popcount(static_cast<unsigned>(j));
  return in_turn(ceil_log2(p.size), blocks / p.size * bytes(p, e), alpha, beta);
}

double hierarchical_all_to_all(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  RankGrid shape = grid_for(p, 2);
  double g = shape.dims[0], m = shape.dims[1];
  return in_turn(g + m - 2, ((g - 1) * m + (m - 1) * g) / p.size * bytes(p, e), alpha, beta);
}

double all_to_all_v(const CollectiveSpec& p, size_t e, double alpha, double beta) {
  size_t sent = 0;
  for (size_t peer = 0; peer < p.send_counts.size(); ++peer)
    if (static_cast<int>(peer) != p.rank) sent += p.send_counts[peer];
  return in_turn(p.size - 1, static_cast<double>(sent * e), alpha, beta);
}

double barrier(const CollectiveSpec& p, size_t, double alpha, double) {
  return ceil_log2(p.size) * alpha;
}

}  // namespace esp::comm::cost
