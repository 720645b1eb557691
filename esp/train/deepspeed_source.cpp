#include "esp/train/deepspeed_source.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/train/deepspeed_keys.h"

namespace esp::train {
namespace {

// True if the section disables its feature. Then its keys have no effect in DeepSpeed either.
bool switched_off(const Json& value) {
  if (!value.is_object()) return value.is_null() || value == false;
  const auto enabled = value.find("enabled");
  return enabled != value.end() && *enabled == false;
}

std::string unknown(const std::string& path) {
  const std::string_view nearest = nearest_name(path, known_deepspeed_keys());
  return nearest.empty() ? "unknown DeepSpeed key" : fmt::format("unknown DeepSpeed key; did you mean {}?", nearest);
}

}  // namespace

const Json* DeepSpeedSource::find(const std::string& key, std::string_view ours, DeepSpeedImport& to) {
  const Json* at = &file_;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    if (!at->is_object()) throw_bad_value(key.substr(0, begin - 1), "an object", *at);
    const auto found = at->find(key.substr(begin, end - begin));
    if (found == at->end() || found->is_null()) return nullptr;
    at = &*found;
    begin = end + 1;
  }
  read_keys_.insert(key);
  if (*at != "auto") return at;
  to.ignored.push_back({key, fmt::format("\"auto\" is filled in by the script that calls DeepSpeed; set {}", ours)});
  return nullptr;
}

std::optional<double> DeepSpeedSource::number(const std::string& key, std::string_view ours, DeepSpeedImport& to) {
  const Json* value = find(key, ours, to);
  if (!value) return {};
  if (!value->is_number() || !std::isfinite(value->get<double>())) throw_bad_value(key, "a number", *value);
  return value->get<double>();
}

std::optional<int64_t> DeepSpeedSource::integer(const std::string& key, std::string_view ours, DeepSpeedImport& to) {
  const auto value = number(key, ours, to);
  if (!value) return {};
  if (*value != std::floor(*value) || std::abs(*value) > 0x1p53) throw_bad_value(key, "an integer", Json(*value));
  return static_cast<int64_t>(*value);
}

std::optional<int64_t> DeepSpeedSource::at_least(int64_t least, const std::string& key, std::string_view ours,
                                                 DeepSpeedImport& to) {
  const auto value = integer(key, ours, to);
  if (value && *value < least) throw_bad_value(key, fmt::format("an integer >= {}", least), Json(*value));
  return value;
}

std::optional<bool> DeepSpeedSource::flag(const std::string& key, std::string_view ours, DeepSpeedImport& to) {
  const Json* value = find(key, ours, to);
  if (!value) return {};
  if (!value->is_boolean()) throw_bad_value(key, "true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> DeepSpeedSource::text(const std::string& key, std::string_view ours, DeepSpeedImport& to) {
  const Json* value = find(key, ours, to);
  if (!value) return {};
  if (!value->is_string()) throw_bad_value(key, "a string", *value);
  return value->get<std::string>();
}

void DeepSpeedSource::throw_bad_value(const std::string& key, std::string_view wanted, const Json& given) const {
  throw UsageError(fmt::format("{0}: {1}: got {3}; expected {2}", name_, key, wanted,
                               given.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80)));
}

void DeepSpeedSource::collect_unread(const Json& object, const std::string& prefix, DeepSpeedImport& to) const {
  for (const auto& [key, value] : object.items()) {
    const std::string path = prefix + key;
    const std::string_view why = ignore_reason(path);
    const bool known = !why.empty() || value.is_object();
    if (read_keys_.contains(path) || (known && switched_off(value))) continue;
    if (value.is_object() && (why.empty() || has_read(path)) && !value.empty()) {
      collect_unread(value, path + ".", to);
    } else {
      to.ignored.push_back({path, why.empty() ? unknown(path) : std::string(why)});
    }
  }
}

bool DeepSpeedSource::has_read(const std::string& section) const {
  const auto at = read_keys_.lower_bound(section + ".");
  return at != read_keys_.end() && at->starts_with(section + ".");
}

}  // namespace esp::train
