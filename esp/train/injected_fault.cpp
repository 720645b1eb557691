#include "esp/train/injected_fault.h"

#include <charconv>
#include <vector>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"

namespace esp::train {
namespace {

using Kind = InjectedFault::Kind;

struct KindRow {
  std::string_view name;
  Kind kind;
};
constexpr KindRow kKinds[] = {
    {"loop", Kind::loop}, {"flip", Kind::flip}, {"product", Kind::product}, {"evaluate", Kind::evaluate}};

template <typename T>
T number_of(std::string_view text, std::string_view whole) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty())
    throw UsageError(fmt::format("ESPALIER_FAULT={}: got {}; expected a number in KIND:RANK:STEP[:WHAT]", whole, text));
  return value;
}

}  // namespace

InjectedFault parse_fault(std::string_view text) {
  if (text.empty()) return {};
  std::vector<std::string_view> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t colon = std::min(text.find(':', at), text.size());
    words.push_back(text.substr(at, colon - at));
    at = colon + 1;
  }
  if (words.size() < 3 || words.size() > 4)
    throw UsageError(fmt::format("ESPALIER_FAULT={}: expected KIND:RANK:STEP[:WHAT]. For tests only", text));
  InjectedFault fault;
  fault.kind = find_row("fault", kKinds, words[0]).kind;
  fault.rank = number_of<int>(words[1], text);
  fault.step = number_of<int64_t>(words[2], text);
  if (words.size() == 4) fault.what = number_of<uint64_t>(words[3], text);
  return fault;
}

std::string describe(const InjectedFault& fault) {
  for (const KindRow& row : kKinds)
    if (row.kind == fault.kind)
      return fmt::format("ESPALIER_FAULT: rank {} gets the injected fault «{}» at step {} (for tests only)", fault.rank,
                         row.name, fault.step);
  return "";
}

void loop_forever() {
  for (volatile uint64_t turns = 0;;) turns = turns + 1;
}

}  // namespace esp::train
