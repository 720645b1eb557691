// Gossip of codes (CHOCO-SGD, Koloskova et al. 2019): copies tell neighbours how they moved since they last told, and
// neighbours keep count.
//
//   q_i = C(x_i − x̂_i);  x̂_i += q_i;  s_i += Σ_j w_ij·q_j;  x_i += γ·(s_i − x̂_i)
//
// x̂_i is what neighbours know of this copy and s_i the weighted sum of what it knows of them, itself included: two
// vectors, whatever the number of neighbours. Both begin with the values that all copies begin with. The mean of the
// copies stays (W is doubly stochastic); moves, and with them errors, become small as copies agree. The graph stays the
// same. Codes are added in ascending order of the copies.
#pragma once

#include <memory>
#include <vector>

#include "esp/sync/compress/compression.h"
#include "esp/sync/gossip/topology.h"
#include "esp/sync/ranks.h"

namespace esp::sync {

class ToldMoves {
 public:
  ToldMoves(Ranks& copies, const tensor::Context& context, Compression& compression, double step)
      : copies_(copies), context_(context), compression_(compression), step_(step) {}

  void begin(const std::vector<tensor::Tensor>& x);  // as all copies are now, by unit
  bool begun() const { return !units_.empty(); }
  void forget() { units_.clear(); }
  void mix(const Mixing& mixing, size_t unit, const tensor::Tensor& x, int64_t event);
  std::vector<Remembered> state();

 private:
  struct Unit {
    std::unique_ptr<OneWay> told;  // keeps x̂
    tensor::Tensor heard;          // s
    tensor::Tensor code;
  };
  Ranks& copies_;
  const tensor::Context context_;
  Compression& compression_;
  const double step_;
  std::vector<Unit> units_;
};

}  // namespace esp::sync
