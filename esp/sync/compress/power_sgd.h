// PowerSGD (Vogels et al. 2019): low-rank compression of gradient matrices.
//
// For each a×b matrix M = gradient + error and a shared Q (b×r, from the previous step; in the first step Gaussian
// random numbers from the shared seed): P = Σ M_i·Q over ranks, orthonormalised; Q = factor·Σ M_iᵀ·P; the result is
// P·Qᵀ, and rank i keeps M_i − P·(M_iᵀP)ᵀ. Two all-reduces per step, of 4r·Σa and 4r·Σb bytes. Vectors, and matrices
// with r(a + b)·2 ≥ ab, are sent uncompressed in the first all-reduce. All values are f32. The result is bit-identical
// on every rank.
#pragma once

#include "esp/sync/compress/error_feedback.h"

namespace esp::sync {

// A matrix inside the flat vector, row-major. rows = 0: an uncompressed range of `cols` elements.
struct MatrixPart {
  int64_t offset = 0, rows = 0, cols = 0;
};

struct PowerSgdSetup {
  comm::Communicator* ranks = nullptr;  // null for a single rank
  tensor::Context context;
  int64_t count = 0;              // length of the flat vector
  std::vector<MatrixPart> parts;  // the matrices; elements outside them are sent uncompressed
  int64_t rank = 4;               // the rank r of the factors P and Q
  uint64_t seed = 0;
  std::optional<double> factor;  // factor of the sum; nullopt: 1/N, so the result is the mean
  bool ordered = false;          // true: sums are added in rank order
};

// The element counts of the two all-reduces.
struct PowerSgdCounts {
  int64_t first = 0, second = 0;
};
PowerSgdCounts power_sgd_counts(int64_t count, const std::vector<MatrixPart>& parts, int64_t rank);

// The rank R of the spec "powersgd:R"; 0 for other compressors. Throws UsageError for an invalid R.
int64_t power_sgd_rank(std::string_view spec);

// Creates the feedback of PowerSGD. Its state is the residual and Q of every matrix. Throws UsageError for overlapping
// parts, parts past the end of the vector, and a rank below 1.
std::unique_ptr<Feedback> make_power_sgd(const PowerSgdSetup& setup);

}  // namespace esp::sync
