// DeepSpeedSource: reads the values of a DeepSpeed configuration by dotted key. At the end it lists every key that was
// not read.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "esp/base/json.h"
#include "esp/train/deepspeed.h"

namespace esp::train {

// A getter returns empty if the key is missing, null or "auto". For "auto" it also adds a note to `to` that tells the
// user to set the Espalier key `ours`. UsageError if the value has another type.
class DeepSpeedSource {
 public:
  DeepSpeedSource(const Json& file, std::string_view name) : file_(file), name_(name) {}

  const Json* find(const std::string& key, std::string_view ours, DeepSpeedImport& to);
  std::optional<double> number(const std::string& key, std::string_view ours, DeepSpeedImport& to);
  // also accepts an integer written as 5e8
  std::optional<int64_t> integer(const std::string& key, std::string_view ours, DeepSpeedImport& to);
  std::optional<int64_t> at_least(int64_t least, const std::string& key, std::string_view ours, DeepSpeedImport& to);
  std::optional<bool> flag(const std::string& key, std::string_view ours, DeepSpeedImport& to);
  std::optional<std::string> text(const std::string& key, std::string_view ours, DeepSpeedImport& to);

  [[noreturn]] void throw_bad_value(const std::string& key, std::string_view wanted, const Json& given) const;
  const std::string& name() const { return name_; }

  // Adds every key that was not read to to.ignored, with the reason why it has no effect.
  void ignore_unread(DeepSpeedImport& to) const { collect_unread(file_, "", to); }

 private:
  void collect_unread(const Json& object, const std::string& prefix, DeepSpeedImport& to) const;
  bool has_read(const std::string& section) const;

  const Json& file_;
  std::string name_;
  std::set<std::string> read_keys_;
};

}  // namespace esp::train
