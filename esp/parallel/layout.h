// Checks whether a model and a batch can be split by a layout, and finds the nearest layouts that work. Used at the
// start of a run and by the layout search. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "esp/parallel/mesh.h"

namespace esp::parallel {

// Sizes of the model and the batch.
struct LayoutSizes {
  std::string arch = "gpt";
  int64_t layers = 1, heads = 1, kv_heads = 1, ffn = 1, vocab = 1, seq_len = 1;
  int64_t experts = 0;                        // 0: dense model
  int64_t global_batch = 1, micro_batch = 0;  // sequences; micro_batch 0: a replica's whole share
};

// The split.
struct Layout {
  MeshShape mesh;
  bool sequence = false;         // rows of the stream over the tensor axis
  std::string context = "ring";  // ring | ulysses
  std::string schedule = "1f1b";
  int64_t interleave = 1;  // chunks of the model per stage

  std::string text() const;  // "parallel.tp=2 parallel.pp=2 parallel.dp=2", for --set
  bool operator==(const Layout&) const = default;
};

// A violated rule: the key, its value, and the rule with its numbers.
struct LayoutViolation {
  std::string key, given, rule;
  std::string text() const { return key + " = " + given + ": " + rule; }
};
// The first violation; none: the layout works. Sizes of the mesh are at least 1.
std::optional<LayoutViolation> find_violation(const LayoutSizes& sizes, const Layout& layout);

// Working layouts of the same number of ranks, smallest change first: an axis counts by its factor, a choice of method
// like a factor of two. `also`: an additional condition.
using LayoutFilter = std::function<bool(const Layout&)>;
std::vector<Layout> nearest_layouts(const LayoutSizes& sizes, const Layout& layout, size_t most = 3,
                                    const LayoutFilter& also = {});

// Mesh of the sizes in [parallel]; dp = 0 is `world` divided by the other axes. UsageError if they do not multiply to
// `world`.
MeshShape mesh_shape(int64_t tp, int64_t cp, int64_t dp, int64_t pp, int64_t ep, int world);

// UsageError: the violation, and the nearest layouts that work.
void check_layout(const LayoutSizes& sizes, const Layout& layout, const LayoutFilter& also = {});

}  // namespace esp::parallel
