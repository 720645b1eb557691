// Model families of `transformers` with exact parameter counts. A row describes how a family differs from the blocks
// that ModelShape can express. The parameter count is that of the class `architecture`.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "esp/base/json.h"
#include "esp/plan/shape.h"

namespace esp::plan {

// Reads values of a config.json. UsageError for invalid values or types.
class HfConfigReader {
 public:
  static constexpr int64_t kMaxSize = int64_t{1} << 26;
  explicit HfConfigReader(const Json& config) : config_(config) {}  // not owned

  // value of the first of these fields that is present; `otherwise` if none is
  int64_t size(std::initializer_list<const char*> names, int64_t otherwise) const;
  // the same for a required field with a value > 0
  int64_t needed(std::initializer_list<const char*> names, int64_t most = kMaxSize) const;
  bool flag(const char* name, bool otherwise) const;
  std::string text(const char* name) const;  // empty if the field is missing
  std::string architecture() const;          // first entry of "architectures"; empty if there is none
  // UsageError if the field is present with a value other than `value` (JSON text). A missing or null field is
  // accepted.
  void expect(const char* name, std::string_view value) const;
  const Json& json() const { return config_; }

 private:
  const Json& config_;
};

enum HfFamilyTraits : unsigned {
  kGrouped = 1,   // num_key_value_heads is required; it does not default to the number of query heads
  kFourfold = 2,  // if the field is missing, the feed-forward width is 4·hidden
  kExperts = 4,
  kLatent = 8,  // the family has latent attention, and first layers without experts
};

struct HfFamily {
  std::string_view name, architecture, arch;  // model_type of config.json, counted class, ModelShape::arch
  bool gated, rms, bias, learned_positions;
  bool tied;             // default of tie_word_embeddings
  int64_t head_dim = 0;  // default head dimension; 0: hidden / heads
  unsigned traits = 0;   // flags of HfFamilyTraits
  void (*adjust)(const HfConfigReader&, ModelShape&) = nullptr;
};
std::span<const HfFamily> hf_families();

// A field of a family that must have this value, because the parameters are not counted for other values.
struct HfConstant {
  std::string_view family;
  const char* field;
  std::string_view value;
};
std::span<const HfConstant> hf_constants();

}  // namespace esp::plan
