// PowerSGD (Vogels et al. 2019): low-rank compression of gradient matrices.
//
// For each a×b matrix M = gradient + error and a shared Q (b×r, from the previous step; at first Gaussian from the
// shared seed):  P = Σ M_i·Q over ranks, orthonormalised;  Q = factor·Σ M_iᵀ·P;  the result is P·Qᵀ, and rank i keeps
// M_i − P·(M_iᵀP)ᵀ. Two all-reduces per step, of 4r·Σa and 4r·Σb bytes. Vectors, and matrices with r(a + b)·2 ≥ ab, are
// sent uncompressed with the first. f32. Bit-identical on every rank.
#pragma once

#include "esp/sync/compress/feedback.h"

namespace esp::sync {

// A range of the flat vector, row-major; rows 0: not a matrix.
struct MatrixPart {
  int64_t offset = 0, rows = 0, cols = 0;
};

struct PowerSgdSetup {
  comm::Communicator* ranks = nullptr;  // null: one rank
  tensor::Context context;
  int64_t count = 0;              // of the flat vector
  std::vector<MatrixPart> parts;  // elements outside these are sent uncompressed
  int64_t rank = 4;               // r
  uint64_t seed = 0;
  std::optional<double> factor;  // of the sum; none: 1/N
  bool ordered = false;          // sums in rank order
};

// Elements of the two all-reduces.
struct PowerSgdCounts {
  int64_t first = 0, second = 0;
};
PowerSgdCounts power_sgd_counts(int64_t count, const std::vector<MatrixPart>& parts, int64_t rank);

// The r of "powersgd:R"; 0: another compressor. UsageError for an invalid r.
int64_t power_sgd_rank(std::string_view spec);

// Its state is the error and all Q. UsageError for overlapping parts, parts past the end, and r < 1.
std::unique_ptr<Feedback> make_power_sgd(const PowerSgdSetup& setup);

}  // namespace esp::sync
