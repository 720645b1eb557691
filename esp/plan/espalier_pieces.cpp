#include "esp/plan/espalier_pieces.h"

#include "esp/parallel/pp/partition.h"

namespace esp::plan {

// Partitions the blocks by cost. The cost of a block is its multiplications per token: matrices and attention. The last
// piece also has the cost of the head; the embedding look-up is negligible.
std::vector<EspalierPiece> espalier_pieces(const ModelShape& shape, int num_pieces) {
  if (num_pieces == 1) return {{0, shape.layers, true, true}};
  const auto dim = static_cast<double>(shape.hidden),
             kv = static_cast<double>(shape.kv_heads > 0 ? shape.kv_heads : shape.heads) /
                  static_cast<double>(shape.heads);
  const double attention = dim * dim * (2 + 2 * kv) + 2 * dim * static_cast<double>(shape.seq);
  std::vector<double> costs;
  for (int64_t i = 0; i < shape.layers; ++i) {
    double ffn = static_cast<double>(shape.ffn);
    if (shape.has_experts(i))
      ffn = static_cast<double>(shape.topk * shape.expert_ffn + shape.shared_experts * shape.expert_ffn);
    costs.push_back(attention + dim * ffn * (shape.gated ? 3 : 2));
  }
  costs.front() += dim;
  costs.back() += dim * static_cast<double>(shape.vocab);
  const std::vector<int> cuts = parallel::linear_partition(costs, num_pieces);
  std::vector<EspalierPiece> pieces;
  for (int i = 0; i < num_pieces; ++i)
    pieces.push_back({cuts[static_cast<size_t>(i)], cuts[static_cast<size_t>(i) + 1], i == 0, i + 1 == num_pieces});
  return pieces;
}

}  // namespace esp::plan
