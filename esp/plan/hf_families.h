// Model families of `transformers` with exact parameter counts: the differences of each from the blocks that a Shape
// describes. Counts are of the class in `architecture`.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "esp/base/json.h"
#include "esp/plan/shape.h"

namespace esp::plan {

// Values of a config.json. UsageError for invalid values or types.
class HfSizes {
 public:
  static constexpr int64_t kMost = int64_t{1} << 26;
  explicit HfSizes(const Json& config) : config_(config) {}  // borrowed

  int64_t size(std::initializer_list<const char*> names, int64_t otherwise) const;       // the first that is present
  int64_t needed(std::initializer_list<const char*> names, int64_t most = kMost) const;  // > 0
  bool flag(const char* name, bool otherwise) const;
  std::string text(const char* name) const;  // empty: missing
  std::string architecture() const;          // the first of the list; empty: none
  // Null and missing match any value. `value` is JSON.
  void expect(const char* name, std::string_view value) const;
  const Json& json() const { return config_; }

 private:
  const Json& config_;
};

enum HfParts : unsigned {
  kGrouped = 1,   // key heads must be given: the default is not one per query head
  kFourfold = 2,  // the feed-forward is 4·hidden by default
  kExperts = 4,
  kLatent = 8,  // latent attention, and leading dense layers
};

struct HfFamily {
  std::string_view name, architecture, arch;  // model_type, the counted class, Shape::arch
  bool gated, rms, bias, learned_positions;
  bool tied;             // by default
  int64_t head_dim = 0;  // by default; 0: hidden / heads
  unsigned parts = 0;    // of HfParts
  void (*adjust)(const HfSizes&, ModelShape&) = nullptr;
};
std::span<const HfFamily> hf_families();

// A field whose other values change the count in an unsupported way.
struct HfConstant {
  std::string_view family;
  const char* field;
  std::string_view value;
};
std::span<const HfConstant> hf_constants();

}  // namespace esp::plan
