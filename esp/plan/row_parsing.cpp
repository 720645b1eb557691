// Parses the words in the cells of a table of results.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "esp/plan/normalise.h"
#include "esp/plan/rows.h"

namespace esp::plan {
namespace {

struct Spelling {
  std::string_view part, schedule;
};
// Searched in this order, so more specific words stand first.
constexpr Spelling kSchedules[] = {
    {"vhalf", "v-half"},
    {"vmin", "v-min"},
    {"dualpipe", "dualpipe"},
    {"zbvpp", "zb-v"},
    {"zbv", "zb-v"},
    {"zerobubblev", "zb-v"},
    {"zb2p", "zb-2p"},
    {"zbh2", "zb-2p"},
    {"zb1p", "zb-h1"},
    {"zbh1", "zb-h1"},
    {"zerobubble", "zb-h1"},
    {"zb", "zb-h1"},
    {"interleav", "interleaved"},
    {"vpp", "interleaved"},
    {"virtual", "interleaved"},
    {"looped", "interleaved"},
    {"circular", "interleaved"},
    {"gpipe", "gpipe"},
    {"afab", "gpipe"},
    {"allforward", "gpipe"},
    {"fthenb", "gpipe"},
    {"1f1b", "1f1b"},
    {"pipedream", "1f1b"},
    {"dapple", "1f1b"},
};

struct Rate {
  std::string_view name;
  double Processor::*flops;
};
constexpr Rate kRates[] = {{"fp4", &Processor::fp4_flops},   {"fp8", &Processor::fp8_flops},
                           {"bf16", &Processor::bf16_flops}, {"fp16", &Processor::fp16_flops},
                           {"tf32", &Processor::tf32_flops}, {"fp32", &Processor::fp32_flops}};

std::string precision_meant(const std::string& words) {
  if (has(words, "fp4") || has(words, "nvfp4")) return "fp4";
  if (has(words, "fp8") || has(words, "e4m3") || has(words, "float8")) return "fp8";
  if (has(words, "bf16") || has(words, "bfloat")) return "bf16";
  if (has(words, "fp16") || has(words, "half") || has(words, "float16") || has(words, "mixed") || has(words, "amp"))
    return "fp16";
  if (has(words, "tf32")) return "tf32";
  if (has(words, "fp32") || has(words, "float32") || has(words, "single")) return "fp32";
  return "";
}

}  // namespace

ScheduleWords parse_schedule(const std::string& words, int interleave, std::vector<std::string>& assumed) {
  ScheduleWords result;
  const std::string given = bare_word(words);
  // "Interlaced" schedules: every stage computes a share of the head between its layers.
  result.vocabulary =
      (has(given, "vocab") && !has(given, "novocab") && !has(given, "withoutvocab")) || has(given, "interlac");
  result.vocabulary = result.vocabulary || has(given, "interlac");
  result.balanced = has(given, "redis") || has(given, "balanc");
  result.schedule = interleave > 1 ? "interleaved" : "1f1b";
  if (given.empty() || given == "none" || given == "baseline" || given == "interlaced") return result;
  for (const Spelling& one : kSchedules)
    if (has(given, one.part)) {
      result.schedule = one.schedule;
      // A row with several chunks per stage is interleaved even if it says 1F1B.
      if (interleave > 1 && one.schedule == "1f1b") result.schedule = "interleaved";
      return result;
    }
  assumed.push_back(fmt::format("schedule {} (unknown \"{}\")", result.schedule, words));
  return result;
}

std::string parse_precision(const std::string& words, const Processor& processor, std::vector<std::string>& assumed) {
  std::string precision = precision_meant(words);
  const bool given = !precision.empty();
  if (!given) precision = processor.bf16_flops > 0 ? "bf16" : "fp16";
  const auto* rate =
      std::find_if(std::begin(kRates), std::end(kRates), [&](const Rate& r) { return r.name == precision; });
  std::string taken = precision;
  // the chip does not support the precision: takes the next one in the list that it supports
  if (processor.*rate->flops <= 0) {
    for (const Rate& other : kRates)
      if (&other > rate && processor.*other.flops > 0) {
        taken = other.name;
        break;
      }
  }
  if (!given || taken != precision) assumed.push_back(fmt::format("precision {}", taken));
  return taken;
}

bool parse_flag(const std::string& words, bool otherwise) {
  if (words.empty()) return otherwise;
  return !(words[0] == '0' || words.starts_with("no") || words.starts_with("false") || words.starts_with("off"));
}

}  // namespace esp::plan
