// Checks whether a parallel layout is valid for a model and a batch, and finds the nearest valid layouts. Used at the
// start of a run and by the layout search. Pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "esp/parallel/mesh.h"

namespace esp::parallel {

// Sizes of the model and of the batch.
struct LayoutSizes {
  std::string arch = "gpt";
  int64_t layers = 1, heads = 1, kv_heads = 1, ffn = 1, vocab = 1, seq_len = 1;
  int64_t experts = 0;                        // 0: dense model
  int64_t global_batch = 1, micro_batch = 0;  // in sequences; micro_batch 0: all sequences of a replica
};

// A parallel layout: the mesh, and the method used on each axis.
struct Layout {
  MeshShape mesh;
  bool sequence = false;         // sequence parallelism: shards the rows of the residual stream over the tensor axis
  std::string context = "ring";  // ring | ulysses
  std::string schedule = "1f1b";
  int64_t interleave = 1;  // chunks of the model per stage

  std::string text() const;  // e.g. "dp=2 tp=2 pp=2 schedule=1f1b"
  bool operator==(const Layout&) const = default;
};

// A violated rule: the key, its value, and the rule as text with its numbers.
struct LayoutViolation {
  std::string key, given, rule;
  std::string text() const { return key + " = " + given + ": " + rule; }
};
// Returns the first violated rule, or nullopt if the layout is valid. The sizes of the mesh must be at least 1.
std::optional<LayoutViolation> find_violation(const LayoutSizes& sizes, const Layout& layout);

// Returns valid layouts for the same number of ranks, smallest change first. A changed axis counts by its factor; a
// changed method counts as much as a factor of two. `also`: an additional condition.
using LayoutFilter = std::function<bool(const Layout&)>;
std::vector<Layout> nearest_layouts(const LayoutSizes& sizes, const Layout& layout, size_t most = 3,
                                    const LayoutFilter& also = {});

// Mesh with the sizes in [parallel]; dp = 0 means `world` divided by the other axes. Throws UsageError if the product
// is not `world`.
MeshShape mesh_shape(int64_t tp, int64_t cp, int64_t dp, int64_t pp, int64_t ep, int world);

// Throws UsageError with the violation and the nearest valid layouts.
void check_layout(const LayoutSizes& sizes, const Layout& layout, const LayoutFilter& also = {});

}  // namespace esp::parallel
