// Options of a choice: the words between the colons of "topk:0.01". Each is consumed in order. A missing option has its
// default; an unreadable or surplus option is a UsageError that lists what the choice takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace esp::sync {

class Arguments {
 public:
  // `takes` describes the options of `name` in errors.
  Arguments(std::string_view name, std::string_view rest, std::string_view takes);

  bool empty() const { return next_ == given_.size(); }
  int64_t whole(std::string_view what, int64_t otherwise, int64_t least, int64_t most);
  double number(std::string_view what, std::optional<double> otherwise, double least, double most);
  std::vector<double> numbers(std::string_view what);  // separated by commas
  bool flag(std::string_view word);                    // consumed if it equals `word`

  // A fraction of n ("0.01", "1%") or a number of elements ("100").
  struct Share {
    double fraction = 0;
    int64_t count = 0;  // 0: use `fraction`
  };
  Share share(std::string_view what, double otherwise);

  void finish() const;
  [[noreturn]] void refuse(std::string_view why) const;

 private:
  std::optional<std::string> take();

  std::string name_, takes_;
  std::vector<std::string> given_;
  size_t next_ = 0;
};

}  // namespace esp::sync
