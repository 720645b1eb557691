#include "esp/model/config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::model {
namespace {

constexpr double kMostParameters = 1e15;  // limit, so that byte counts fit in 64 bits

template <typename... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw UsageError("model: " + fmt::format(format, std::forward<Args>(args)...));
}

void check_scaling(const ModelConfig& c) {
  using kernel::RopeScaling;
  const kernel::RotaryAngles& r = c.rope;
  if (r.scaling == RopeScaling::none) {
    require(r.factor == 1, "rope_factor = {} has no effect without rope_scaling = \"linear\", \"yarn\" or \"llama3\"",
            r.factor);
    return;
  }
  require(c.positions == Positions::rotary, "rope_scaling needs positions = \"rotary\"");
  require(r.factor >= 1 && std::isfinite(r.factor), "rope_factor = {}: must be >= 1, such as 8", r.factor);
  require(r.scaling == RopeScaling::linear || r.original_seq_len > 0,
          "rope_original_seq_len = {}: must be > 0 for yarn and llama3; use the original training length, such as 8192",
          r.original_seq_len);
  require(r.scaling != RopeScaling::llama3 || (r.low_freq_factor > 0 && r.high_freq_factor > r.low_freq_factor),
          "rope_low_freq_factor = {}: must be > 0 and < rope_high_freq_factor = {}; 1 and 4 are usual",
          r.low_freq_factor, r.high_freq_factor);
  require(r.scaling != RopeScaling::yarn || (r.beta_slow > 0 && r.beta_fast > r.beta_slow),
          "rope_beta_slow = {}: must be > 0 and < rope_beta_fast = {}; 1 and 32 are usual", r.beta_slow, r.beta_fast);
  require(r.attention_factor >= 0, "rope_attention_factor = {}: must be >= 0; 0 means 0.1·ln(rope_factor) + 1",
          r.attention_factor);
}

}  // namespace

void ModelConfig::check_sizes() const {
  const struct {
    std::string_view key;
    int64_t value, least, most;
  } sizes[] = {{"layers", layers, 1, 10'000},
               {"heads", heads, 1, 1 << 16},
               {"kv_heads", kv_heads, 0, 1 << 16},
               {"dim", dim, 1, 1 << 20},
               {"ffn", ffn, 0, 1 << 24},
               {"vocab", vocab, 0, INT32_MAX},
               {"seq_len", seq_len, 1, 1 << 24},
               {"moe.experts", experts, 0, 1 << 16},
               {"moe.top_k", experts_per_token, 1, 1 << 16},
               {"moe.shared", shared_expert, 0, 1 << 24},
               {"type_vocab", type_vocab, 0, INT32_MAX},
               {"classes", num_classes, 0, INT32_MAX}};
  for (const auto& size : sizes)
    if (size.value > size.most || size.value < size.least)
      throw UsageError(
          fmt::format("model.{} = {}: must be from {} to {}", size.key, size.value, size.least, size.most));
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double width = real(dim), each = width * real(ffn_or_default()) * 3;
  const double block = 4 * width * width + each * std::max(1.0, real(experts)) + 3 * width * real(shared_expert);
  const double all = real(layers) * block + width * (2 * real(vocab) + real(seq_len));
  require(all <= kMostParameters,
          "layers = {}, dim = {}, ffn = {}, vocab = {}, moe.experts = {}: give about {:.1e} "
          "parameters; expected at most {:.1e}. Make one of them smaller",
          layers, dim, ffn_or_default(), vocab, experts, all, kMostParameters);
}

void ModelConfig::check() const {
  check_sizes();
  require(layers > 0, "layers = {}: must be >= 1", layers);
  require(heads > 0, "heads = {}: must be >= 1", heads);
  require(dim > 0 && dim % heads == 0, "dim = {}: must be a positive multiple of heads = {}", dim, heads);
  require(kv_heads >= 0 && heads % kv_heads_or_all() == 0, "heads = {}: must be a multiple of kv_heads = {}", heads,
          kv_heads);
  require(ffn >= 0, "ffn = {}: must be >= 0; 0 means 4·dim", ffn);
  require(vocab > 0 && vocab <= INT32_MAX, "vocab = {}: must be from 1 to {}; use the tokenizer's size", vocab,
          INT32_MAX);
  require(seq_len > 0, "seq_len = {}: must be >= 1", seq_len);
  require(dropout >= 0 && dropout < 1, "dropout = {}: must be in [0, 1)", dropout);
  require(norm_eps > 0, "norm_eps = {}: must be > 0", norm_eps);
  require(init_std >= 0, "init_std = {}: must be >= 0", init_std);
  require(positions != Positions::rotary || head_dim() % 2 == 0,
          "positions = \"rotary\": needs an even head dimension; dim / heads = {}", head_dim());
  require(positions != Positions::rotary || rope.theta > 1, "rope_theta = {}: must be > 1", rope.theta);
  check_scaling(*this);
  require(type_vocab >= 0 && num_classes >= 0, "type_vocab = {} and num_classes = {}: must be >= 0", type_vocab,
          num_classes);
  const bool bert = arch == "bert", t5 = arch == "t5";
  require(bert || (type_vocab == 0 && num_classes == 0 && !pooler && !headless),
          "type_vocab, num_classes, pooler and headless need arch = \"bert\"; got arch = \"{}\"", arch);
  require(!pooler || num_classes > 0 || headless, "pooler = true: needs classes > 0");
  require(bert || t5 || !post_norm, "post_norm needs arch = \"bert\" or \"t5\"; got arch = \"{}\"", arch);
  require(!gated || activation == kernel::Activation::silu, "gated needs activation = \"silu\"; got {}",
          kernel::name_of(activation));
  require(experts >= 0 && (experts == 0 || (!bert && !t5)),
          "moe.experts = {}: must be >= 0, and 0 unless arch is gpt or llama; arch = \"{}\"", experts, arch);
  require(experts == 0 || (experts_per_token >= 1 && experts_per_token <= experts),
          "moe.top_k = {}: must be from 1 to moe.experts = {}", experts_per_token, experts);
  require(experts == 0 || (expert_every >= 1 && expert_every <= layers),
          "moe.every = {}: must be from 1 (every block has experts) to layers = {}", expert_every, layers);
  require(expert_capacity >= 0 && expert_aux >= 0 && expert_z >= 0,
          "moe.capacity_factor = {}, moe.aux_loss = {} and moe.z_loss = {}: must be >= 0", expert_capacity, expert_aux,
          expert_z);
  require(shared_expert >= 0 && (shared_expert == 0 || experts > 0),
          "moe.shared = {}: must be >= 0, and 0 without experts; moe.experts = {}", shared_expert, experts);
  require(!t5 || tie_embeddings,
          "tie_embeddings = false: must be true for arch = \"t5\"; encoder, decoder and head share one table");
}

}  // namespace esp::model
