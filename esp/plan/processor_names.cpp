// Recognises processors by the names that publications use.
#include <algorithm>
#include <cctype>

#include "esp/base/table.h"
#include "esp/plan/catalog.h"
#include "esp/plan/normalise.h"

namespace esp::plan {
namespace {

// The part of a processor's name before form factor and memory: "A100" of "A100-80GB-SXM".
std::string family(const std::string& name) {
  return bare_word(name.substr(0, name.find('-')));
}

}  // namespace

const ProcessorRow& Catalog::processor(std::string_view name) const {
  const std::string target = bare_word(name);
  for (const ProcessorRow& row : processors_) {
    if (bare_word(row.name) == target) return row;
    for (const std::string& alias : row.aliases)
      if (bare_word(alias) == target) return row;
  }
  unknown_name("processor", name, names_of(processors_));
}

const ProcessorRow* Catalog::recognise(std::string_view text, double memory_gb) const {
  const std::string given = bare_word(text);
  if (given.empty()) return nullptr;
  for (const ProcessorRow& row : processors_)
    if (bare_word(row.name) == given) return &row;
  // The longest matching family name wins, so that "GH200" does not match "H200". Form factor and memory size decide
  // between processors of the family.
  const ProcessorRow* best = nullptr;
  double best_score = 0;
  for (const ProcessorRow& row : processors_) {
    const std::string kin = family(row.name);
    if (!has(given, kin)) continue;
    double score = 100 * static_cast<double>(kin.size());
    const std::string form = bare_word(row.name);
    if (has(given, form)) score += 50;
    for (const std::string_view part : {"pcie", "nvl", "sxm"})
      if (has(given, part)) score += has(form, part) ? 30 : -30;
    if (has(form, "pcie") && !has(given, "pcie")) score -= 10;
    if (has(form, "nvl") && !has(given, "nvl")) score -= 10;
    const auto size = static_cast<int64_t>(row.nominal_gb);
    if (has(given, std::to_string(size) + "g")) score += 20;
    if (memory_gb > 0) score -= std::min(20.0, 20 * std::abs(memory_gb / row.nominal_gb - 1));
    for (const std::string& alias : row.aliases)
      if (memory_gb <= 0 && bare_word(alias) == given) score += 15;
    if (!best || score > best_score) {
      best = &row;
      best_score = score;
    }
  }
  return best;
}

}  // namespace esp::plan
