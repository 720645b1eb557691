// Reads the model of a row. Model families differ in details that the columns do not contain (gates, norms, tied
// tables, shared experts). If the row has a published parameter count, it selects the variant.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <optional>

#include <fmt/format.h>

#include "esp/model/model.h"
#include "esp/plan/normalise.h"
#include "esp/plan/rows.h"

namespace esp::plan {
namespace {

bool has_any(const std::string& text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) { return has(text, part); });
}

// Sets the details of llama-like models: gated feed-forwards, RMSNorm, no biases, rotary embeddings, an untied head.
void make_llama_like(ModelShape& s) {
  s.arch = "llama";
  s.gated = s.rms = true;
  s.bias = s.tied = s.learned_positions = false;
}

void set_family(ModelShape& s, const std::string& arch, const std::string& model) {
  const std::string words = arch + " " + model;
  if (has_any(words, {"llama", "mistral", "mixtral", "qwen",      "deepseek", "internlm", "baichuan",
                      "yi-",   "swiglu",  "olmo",    "moonlight", "kimi",     "glm",      "palm",
                      "gemma", "dbrx",    "grok",    "phi-3",     "hunyuan",  "minitron"})) {
    make_llama_like(s);
  } else if (has(words, "nemotron")) {  // its squared ReLU has no gate
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

// Sets details of latent attention that tables of DeepSeek's models omit (DeepSeek-V2 and V3 reports, 2024).
void set_latent(ModelShape& s, const std::string& words, std::vector<std::string>& assumed) {
  const bool latent =
      has(words, "mla") || has_any(words, {"deepseek-v2", "deepseek-v3", "deepseekv2", "deepseekv3", "deepseek v2",
                                           "deepseek v3", "deepseek-r1", "moonlight", "kimi-k2", "kimi k2"});
  if (!latent || s.hidden == 0) return;
  const bool small = has_any(words, {"lite", "16b", "moonlight"}) || s.hidden <= 2048;
  s.q_lora = small ? 0 : 1536;
  s.kv_lora = 512;
  s.rope_dim = 64;
  s.head_dim = s.v_dim = 128;
  assumed.push_back(fmt::format(
      "latent attention as in DeepSeek: compressed to {} (queries) and 512 (keys and values), heads of 128 + 64",
      s.q_lora));
}

int64_t whole(const CsvRow& cells, std::string_view column, double high) {
  return static_cast<int64_t>(cells.number(column, 1, high).value_or(0));
}

// The published parameter count. A plain number is in billions; the cell may also say millions or trillions.
double published_parameters(const CsvRow& cells) {
  const std::string words = cells.words("params_b");
  const size_t unit = words.find_first_not_of("~<>=$ 0123456789.,");
  const double scale = unit == std::string::npos ? 1e9 : words[unit] == 'm' ? 1e6 : words[unit] == 't' ? 1e12 : 1e9;
  return std::min(cells.number("params_b", 1e-6, 1e6).value_or(0) * scale, 1e15);
}

double count_error(const ModelShape& s, double target) {
  return std::abs(s.parameters() / target - 1);
}

struct Variant {
  std::string what;
  std::function<void(ModelShape&)> change;
};

// Applies the variant whose parameter count is nearest to the published one. It must be nearer than the current shape
// by at least 2 percentage points.
void select_nearest_variant(ModelShape& s, double target, std::vector<std::string>& assumed,
                            const std::vector<Variant>& variants) {
  const Variant* best = nullptr;
  ModelShape nearest = s;
  for (const Variant& one : variants) {
    ModelShape other = s;
    one.change(other);
    if (count_error(other, target) + 0.02 >= count_error(s, target) ||
        (best && count_error(other, target) >= count_error(nearest, target)))
      continue;
    best = &one;
    nearest = other;
  }
  if (!best) return;
  s = nearest;
  assumed.push_back(best->what + ", selected by the published parameter count");
}

void fit_to_count(ModelShape& s, double target, std::vector<std::string>& assumed) {
  if (s.experts > 0) {
    std::vector<Variant> variants = {{"experts in every second layer", [](ModelShape& o) { o.expert_every = 2; }}};
    for (const int64_t dense : {0, 1, 3})
      for (const int64_t shared : {0, 1, 2, 4})
        variants.push_back(
            {fmt::format("{} shared experts, no experts in the first {} layers", shared, dense), [=](ModelShape& o) {
               o.dense_layers = std::min(dense, o.layers - 1);
               o.shared_experts = shared;
             }});
    select_nearest_variant(s, target, assumed, variants);
  }
  select_nearest_variant(
      s, target, assumed,
      {{s.tied ? "untied head" : "head and embedding tied", [](ModelShape& o) { o.tied = !o.tied; }}});
  select_nearest_variant(s, target, assumed,
                         {{s.gated ? "no gates" : "gated feed-forwards", [](ModelShape& o) { o.gated = !o.gated; }}});
}

// Finds the model by its name, in the catalog or among the presets.
std::optional<ModelShape> known_model(std::string name) {
  if (const size_t at = name.find("3.1"); at != std::string::npos)
    name.replace(at, 3, "3");  // Llama 3.1 has the sizes of Llama 3
  const std::string target = bare_word(name);
  if (target.empty()) return std::nullopt;
  for (const CatalogModel& row : built_in_catalog().models())
    if (bare_word(row.name) == target) return row.shape;
  for (const model::Preset& row : model::presets())
    if (bare_word(row.name) == target) return shape_of(row.config, std::string(row.name));
  return std::nullopt;
}

// Sets a typical number of layers and hidden size for the parameter count: the hidden size is about a hundred times the
// number of layers.
void typical_sizes(ModelShape& s) {
  const double width = std::cbrt(s.given_parameters * 100 / 12);
  s.hidden = std::clamp<int64_t>(128 * std::llround(width / 128), 128, 1 << 20);
  const double each = 12 * static_cast<double>(s.hidden) * static_cast<double>(s.hidden);
  s.layers = std::clamp<int64_t>(std::llround(s.given_parameters / each), 1, 10'000);
}

// Reads the parameter count from a model's name: "Qwen2.5-7B", "gpt 350m". 0 for "8x7B", because 7B is per expert.
double count_in_name(const std::string& name) {
  for (size_t i = 1; i < name.size(); ++i) {
    const char unit = static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
    const bool ends = i + 1 == name.size() || !std::isalnum(static_cast<unsigned char>(name[i + 1]));
    if ((unit != 'b' && unit != 'm') || !ends) continue;
    size_t begin = i;
    while (begin > 0 && (std::isdigit(static_cast<unsigned char>(name[begin - 1])) || name[begin - 1] == '.')) --begin;
    if (begin == i || (begin > 0 && std::isalpha(static_cast<unsigned char>(name[begin - 1])))) continue;
    const double number = std::atof(name.substr(begin, i - begin).c_str());
    if (number > 0 && number < 1e5) return number * (unit == 'b' ? 1e9 : 1e6);
  }
  return 0;
}

}  // namespace

ModelShape row_shape(const CsvRow& cells, std::vector<std::string>& assumed) {
  ModelShape s;
  const std::string arch = cells.words("arch"), words = arch + " " + cells.words("model");
  s.name = cells.text("model");
  s.given_parameters = published_parameters(cells);
  s.layers = whole(cells, "layers", 10'000);
  s.hidden = whole(cells, "hidden", 1 << 20);
  s.seq = whole(cells, "seq", 1 << 26);
  if (s.layers == 0 || s.hidden == 0) {
    s.layers = s.hidden = 0;
    if (s.given_parameters <= 0 && arch != "any" && !known_model(s.name)) {
      s.given_parameters = count_in_name(s.name);
      if (s.given_parameters > 0)
        assumed.push_back(fmt::format("{:.3g} B parameters, from the name of the model", s.given_parameters * 1e-9));
    }
    if (arch == "any" || (s.given_parameters <= 0 && !known_model(s.name))) {
      if (arch != "any") assumed.push_back("unknown model");
      s.arch = "any";
      return s;
    }
    if (const std::optional<ModelShape> known = known_model(s.name)) {
      ModelShape taken = *known;
      if (s.seq > 0) taken.seq = s.seq;
      taken.name = s.name;
      assumed.push_back(fmt::format("sizes of the known model {}", known->name));
      return taken;
    }
    typical_sizes(s);
    assumed.push_back(fmt::format("{} layers with hidden size {}, usual for this parameter count", s.layers, s.hidden));
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
    // The first 3 of DeepSeek-V3's 61 layers have no experts. A model with fewer layers gets the same fraction, at
    // least one layer.
    if (has_any(words, {"deepseek-v3", "deepseek v3", "deepseekv3", "deepseek-r1"}))
      s.dense_layers = std::clamp<int64_t>((3 * s.layers + 30) / 61, 1, 3), s.shared_experts = 1;
    if (has_any(words, {"deepseek-v2", "deepseek v2", "deepseekv2", "moonlight"}))
      s.dense_layers = 1, s.shared_experts = 2;
    if (has_any(words, {"kimi-k2", "kimi k2"})) s.dense_layers = 1, s.shared_experts = 1;
    s.dense_layers = std::min(s.dense_layers, s.layers - 1);
    if (s.shared_experts > 0)
      assumed.push_back(
          fmt::format("{} shared experts; the first {} layers have no experts", s.shared_experts, s.dense_layers));
  }
  set_latent(s, words, assumed);
  if (s.given_parameters > 0) fit_to_count(s, s.given_parameters, assumed);
  return s;
}

}  // namespace esp::plan
