// Parses the options of a compressor or feedback spec: the words between the colons of "topk:0.01", in order. A missing
// option has its default value; an invalid or extra option causes a UsageError that shows the format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace esp::sync {

class SpecArguments {
 public:
  // Errors show `name` and `format`, for example "topk" and "[:FRACTION or :K]".
  SpecArguments(std::string_view name, std::string_view rest, std::string_view format);

  bool empty() const { return next_ == given_.size(); }
  int64_t integer(std::string_view what, int64_t default_value, int64_t least, int64_t most);
  double number(std::string_view what, std::optional<double> default_value, double least, double most);
  std::vector<double> numbers(std::string_view what);  // numbers separated by commas
  bool flag(std::string_view word);  // consumes the next word if it equals `word`; returns whether it did

  // A fraction of n ("0.01", "1%") or a number of elements ("100").
  struct FractionOrCount {
    double fraction = 0;
    int64_t count = 0;  // number of elements; 0: `fraction` is used
  };
  FractionOrCount fraction_or_count(std::string_view what, double default_value);

  void finish() const;
  [[noreturn]] void fail(std::string_view why) const;

 private:
  std::optional<std::string> take();

  std::string name_, format_;
  std::vector<std::string> given_;
  size_t next_ = 0;
};

}  // namespace esp::sync
