// A DeepSpeed configuration being read: values by dotted key, and in the end everything that nobody asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "esp/base/json.h"
#include "esp/train/deepspeed.h"

namespace esp::train {

// Nothing is returned where a key is missing, null, or "auto", which is told in `to`; `ours` is the key to give then.
// UsageError for a value of another type.
class DeepSpeedSource {
 public:
  DeepSpeedSource(const Json& file, std::string_view name) : file_(file), name_(name) {}

  const Json* find(const std::string& key, std::string_view ours, Imported& to);
  std::optional<double> number(const std::string& key, std::string_view ours, Imported& to);
  std::optional<int64_t> whole(const std::string& key, std::string_view ours, Imported& to);  // 5e8 is one
  std::optional<int64_t> at_least(int64_t least, const std::string& key, std::string_view ours, Imported& to);
  std::optional<bool> flag(const std::string& key, std::string_view ours, Imported& to);
  std::optional<std::string> text(const std::string& key, std::string_view ours, Imported& to);

  [[noreturn]] void refuse(const std::string& key, std::string_view wanted, const Json& given) const;
  const std::string& name() const { return name_; }

  // Everything that was not read, with the reason.
  void leave_rest(Imported& to) const { leave(file_, "", to); }

 private:
  void leave(const Json& object, const std::string& prefix, Imported& to) const;
  bool has_read(const std::string& section) const;

  const Json& file_;
  std::string name_;
  std::set<std::string> seen_;
};

}  // namespace esp::train
