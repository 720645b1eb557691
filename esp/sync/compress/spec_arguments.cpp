#include "esp/sync/compress/spec_arguments.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sync {
namespace {

template <typename T>
std::optional<T> parsed(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::vector<std::string> parts_of(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

SpecArguments::SpecArguments(std::string_view name, std::string_view rest, std::string_view format)
    : name_(name), format_(format) {
  if (!rest.empty()) given_ = parts_of(rest.substr(1), ':');
}

std::optional<std::string> SpecArguments::take() {
  if (empty()) return {};
  return given_[next_++];
}

void SpecArguments::fail(std::string_view why) const {
  throw UsageError(fmt::format("{}: {}. Format: {}{}.", name_, why, name_, format_));
}

int64_t SpecArguments::integer(std::string_view what, int64_t default_value, int64_t least, int64_t most) {
  const auto text = take();
  if (!text) return default_value;
  const auto value = parsed<int64_t>(*text);
  if (!value || *value < least || *value > most)
    fail(fmt::format("{}: got \"{}\"; expected an integer from {} to {}", what, *text, least, most));
  return *value;
}

double SpecArguments::number(std::string_view what, std::optional<double> default_value, double least, double most) {
  const auto text = take();
  if (!text && !default_value) fail(fmt::format("{}: missing; expected a number", what));
  if (!text) return *default_value;
  const auto value = parsed<double>(*text);
  if (!value || !(*value >= least && *value <= most))
    fail(fmt::format("{}: got \"{}\"; expected a number from {} to {}", what, *text, least, most));
  return *value;
}

std::vector<double> SpecArguments::numbers(std::string_view what) {
  const auto text = take();
  if (!text) fail(fmt::format("{}: missing; expected numbers separated by commas", what));
  std::vector<double> values;
  for (const std::string& part : parts_of(*text, ',')) {
    const auto value = parsed<double>(part);
    if (!value || !std::isfinite(*value))
      fail(fmt::format("{}: got \"{}\"; expected numbers separated by commas", what, part));
    values.push_back(*value);
  }
  return values;
}

bool SpecArguments::flag(std::string_view word) {
  if (empty() || given_[next_] != word) return false;
  ++next_;
  return true;
}

SpecArguments::FractionOrCount SpecArguments::fraction_or_count(std::string_view what, double default_value) {
  const auto text = take();
  if (!text) return {default_value, 0};
  if (const auto count = parsed<int64_t>(*text)) {
    if (*count < 1) fail(fmt::format("{}: got \"{}\"; expected at least 1", what, *text));
    return {0, *count};
  }
  const bool percent = text->ends_with('%');
  const auto value = parsed<double>(std::string_view(*text).substr(0, text->size() - percent));
  const double fraction = value ? *value / (percent ? 100 : 1) : 0;
  if (!(fraction > 0 && fraction <= 1))
    fail(fmt::format("{}: got \"{}\"; expected a fraction in (0, 1.0] (or a percentage), or an integer", what, *text));
  return {fraction, 0};
}

void SpecArguments::finish() const {
  if (!empty()) fail(fmt::format("got the unknown or extra option \"{}\"", given_[next_]));
}

}  // namespace esp::sync
