// The model of a row. Families differ in what columns cannot say (gates, norms, tables tied or not, shared experts);
// the published count of parameters decides between the variants where it can.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "esp/plan/rows.h"

namespace esp::plan {
namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

bool has_any(const std::string& text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) { return has(text, part); });
}

// Gated feed-forwards, root-mean-square norms, no biases, rotary positions, a head of its own.
void make_llama_like(Shape& s) {
  s.arch = "llama";
  s.gated = s.rms = true;
  s.bias = s.tied = s.learned_positions = false;
}

void set_family(Shape& s, const std::string& arch, const std::string& model) {
  const std::string words = arch + " " + model;
  if (has_any(words, {"llama", "mistral", "mixtral", "qwen",      "deepseek", "internlm", "baichuan",
                      "yi-",   "swiglu",  "olmo",    "moonlight", "kimi",     "glm",      "palm",
                      "gemma", "dbrx",    "grok",    "phi-3",     "hunyuan",  "minitron"})) {
    make_llama_like(s);
  } else if (has(words, "nemotron")) {  // squared ReLU: no gate
    make_llama_like(s);
    s.gated = false;
  } else if (has(words, "bert")) {
    s.arch = "bert";
    s.causal = false;
  } else if (has(words, "t5")) {
    s.arch = "t5";
  } else if (has_any(words, {"mpt", "falcon", "neox", "pythia", "gpt-j"})) {
    s.learned_positions = false;
    s.bias = !has_any(words, {"mpt", "falcon"});
    s.tied = !has_any(words, {"neox", "pythia", "gpt-j"});
  } else if (has(words, "moe") && !has(words, "gpt")) {
    make_llama_like(s);
  }
  if (has(words, "qwen") && !has(words, "qwen3")) s.qkv_bias = true;
}

// What DeepSeek's tables do not say in columns (DeepSeek-V2 and V3 reports, 2024).
void set_latent(Shape& s, const std::string& words, std::vector<std::string>& assumed) {
  const bool latent =
      has(words, "mla") || has_any(words, {"deepseek-v2", "deepseek-v3", "deepseekv2", "deepseekv3", "deepseek v2",
                                           "deepseek v3", "deepseek-r1", "moonlight", "kimi-k2", "kimi k2"});
  if (!latent || s.hidden == 0) return;
  const bool small = has_any(words, {"lite", "16b", "moonlight"}) || s.hidden <= 2048;
  s.q_lora = small ? 0 : 1536;
  s.kv_lora = 512;
  s.rope_dim = 64;
  s.head_dim = s.v_dim = 128;
  assumed.push_back(fmt::format("latent attention of DeepSeek: ranks {} and 512, heads of 128 + 64", s.q_lora));
}

int64_t whole(const CsvRow& cells, std::string_view column, double high) {
  return static_cast<int64_t>(cells.number(column, 1, high).value_or(0));
}

double off(const Shape& s, double wanted) {
  return std::abs(s.parameters() / wanted - 1);
}

// Takes `change` where the count comes at least two points nearer to what is published.
template <typename Change>
void where_nearer(Shape& s, double wanted, std::vector<std::string>& assumed, std::string_view what, Change change) {
  Shape other = s;
  change(other);
  if (off(other, wanted) + 0.02 < off(s, wanted)) {
    s = other;
    assumed.push_back(fmt::format("{}, by the published count of parameters", what));
  }
}

void fit_to_count(Shape& s, double wanted, std::vector<std::string>& assumed) {
  if (s.experts > 0) {
    for (const int64_t dense : {1, 3})
      where_nearer(s, wanted, assumed, fmt::format("{} first layers without experts", dense),
                   [&](Shape& o) { o.dense_layers = std::min(dense, o.layers - 1); });
    for (const int64_t shared : {1, 2, 4})
      where_nearer(s, wanted, assumed, fmt::format("{} shared experts", shared),
                   [&](Shape& o) { o.shared_experts = shared; });
    where_nearer(s, wanted, assumed, "experts in every second layer", [](Shape& o) { o.expert_every = 2; });
  }
  where_nearer(s, wanted, assumed, s.tied ? "a head of its own" : "head and embedding tied",
               [](Shape& o) { o.tied = !o.tied; });
  where_nearer(s, wanted, assumed, s.gated ? "no gates" : "gated feed-forwards", [](Shape& o) { o.gated = !o.gated; });
}

}  // namespace

Shape row_shape(const CsvRow& cells, std::vector<std::string>& assumed) {
  Shape s;
  const std::string arch = cells.words("arch"), words = arch + " " + cells.words("model");
  s.name = cells.text("model");
  s.given_parameters = cells.number("params_b", 1e-6, 1e6).value_or(0) * 1e9;
  s.layers = whole(cells, "layers", 10'000);
  s.hidden = whole(cells, "hidden", 1 << 20);
  s.seq = whole(cells, "seq", 1 << 26);
  if (s.layers == 0 || s.hidden == 0) {
    if (arch != "any") assumed.push_back("sizes not given: a count of parameters alone");
    s.arch = "any";
    s.layers = s.hidden = 0;
    return s;
  }
  set_family(s, arch, cells.words("model"));
  const auto assume = [&](int64_t& field, int64_t value, std::string_view name) {
    if (field > 0) return;
    field = value;
    assumed.push_back(fmt::format("{} = {}", name, value));
  };
  s.heads = whole(cells, "heads", 1 << 16);
  assume(s.heads, std::max<int64_t>(1, s.hidden / 128), "heads");
  s.kv_heads = whole(cells, "kv_heads", 1 << 16);
  if (s.kv_heads == 0) s.kv_heads = s.heads;
  s.head_dim = s.hidden % s.heads == 0 && !has(words, "qwen3") ? s.hidden / s.heads : 128;
  s.ffn = whole(cells, "ffn", 1 << 24);
  assume(s.ffn, s.gated ? (8 * s.hidden / 3 + 255) / 256 * 256 : 4 * s.hidden, "ffn");
  s.vocab = whole(cells, "vocab", 1 << 24);
  assume(s.vocab, s.arch == "llama" ? 32000 : 51200, "vocab");
  assume(s.seq, s.arch == "bert" ? 512 : 2048, "seq");
  s.experts = whole(cells, "experts", 1 << 16);
  if (s.experts <= 1) s.experts = 0;
  if (s.experts > 0) {
    s.topk = std::min(s.experts, whole(cells, "topk", 1 << 16));
    assume(s.topk, 2, "topk");
    s.expert_ffn = whole(cells, "moe_ffn", 1 << 24);
    if (s.expert_ffn == 0) s.expert_ffn = s.ffn;
    if (has_any(words, {"deepseek-v3", "deepseek v3", "deepseekv3", "deepseek-r1"}))
      s.dense_layers = 3, s.shared_experts = 1;
    if (has_any(words, {"deepseek-v2", "deepseek v2", "deepseekv2", "moonlight"}))
      s.dense_layers = 1, s.shared_experts = 2;
    if (has_any(words, {"kimi-k2", "kimi k2"})) s.dense_layers = 1, s.shared_experts = 1;
    s.dense_layers = std::min(s.dense_layers, s.layers - 1);
    if (s.shared_experts > 0)
      assumed.push_back(fmt::format("{} shared experts, {} first layers without", s.shared_experts, s.dense_layers));
  }
  set_latent(s, words, assumed);
  if (s.given_parameters > 0) fit_to_count(s, s.given_parameters, assumed);
  return s;
}

}  // namespace esp::plan
