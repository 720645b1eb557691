// Whether a model and a batch can be split as a layout says, and which layouts near it could: the one check that a run
// about to begin and a search over layouts share. Pure: sizes in, words out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "esp/parallel/mesh.h"

namespace esp::parallel {

// What there is to split.
struct LayoutSizes {
  std::string arch = "gpt";
  int64_t layers = 1, heads = 1, kv_heads = 1, ffn = 1, vocab = 1, seq_len = 1;
  int64_t experts = 0;                        // 0: no layer has any
  int64_t global_batch = 1, micro_batch = 0;  // sequences; micro_batch 0: the whole of a copy's share
};

// How.
struct Layout {
  MeshShape mesh;
  bool sequence = false;         // rows of the stream over the tensor axis
  std::string context = "ring";  // ring | ulysses
  std::string schedule = "1f1b";
  int64_t interleave = 1;  // chunks of the model per stage

  std::string text() const;  // "parallel.tp=2 parallel.pp=2 parallel.dp=2": what a command line would say
  bool operator==(const Layout&) const = default;
};

// What is wrong: the key and its value, and the rule that is broken with its numbers.
struct BrokenRule {
  std::string key, given, rule;
  std::string text() const { return key + " = " + given + ": " + rule; }
};
// The first rule that is broken; none: it works. The mesh's sizes are at least 1.
std::optional<BrokenRule> broken_rule(const LayoutSizes& sizes, const Layout& layout);

// Layouts of the same number of ranks that work, those that change least first: an axis by its factor, a choice of
// method like a factor of two. `also`: what else must hold of them.
using LayoutFilter = std::function<bool(const Layout&)>;
std::vector<Layout> nearest_layouts(const LayoutSizes& sizes, const Layout& layout, size_t most = 3,
                                    const LayoutFilter& also = {});

// The sizes [parallel] gives, dp = 0 standing for what is left of `world`. UsageError where they do not multiply to it.
MeshShape mesh_shape(int64_t tp, int64_t cp, int64_t dp, int64_t pp, int64_t ep, int world);

// UsageError: the rule broken, and the nearest layouts that work.
void check_layout(const LayoutSizes& sizes, const Layout& layout, const LayoutFilter& also = {});

}  // namespace esp::parallel
