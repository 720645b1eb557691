#include "apps/espalier/arguments.h"

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>
#include <type_traits>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace esp::app {

Argument Argument::type_name(const std::string& name) const {
  return Argument(option_->type_name(name));
}

Argument Argument::show_default() const {
  return Argument(option_->capture_default_str());
}

Argument Argument::required() const {
  return Argument(option_->required());
}

Argument Argument::delimiter(char between) const {
  return Argument(option_->delimiter(between));
}

Argument Argument::one_word_each() const {
  return Argument(option_->allow_extra_args(false));
}

Argument Argument::excludes(const Argument& other) const {
  return Argument(option_->excludes(other.option_));
}

Argument Argument::hide() const {
  return Argument(option_->group(""));
}

Argument Argument::one_of(std::initializer_list<const char*> words) const {
  return Argument(option_->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end()))));
}

namespace {

// A range check with its own message. CLI11's message would print the largest representable number as the upper limit.
template <typename Number, typename Holds>
CLI::Validator checked(const CLI::Validator& described, std::string expected, Holds holds) {
  auto judge = [expected = std::move(expected), holds](const std::string& text) -> std::string {
    Number value{};
    return CLI::detail::lexical_cast(text, value) && holds(value) ? ""
                                                                  : fmt::format("got {}; must be {}", text, expected);
  };
  return CLI::Validator(std::move(judge), described.get_description());
}

}  // namespace

Argument Argument::positive() const {
  return Argument(option_->check(checked<double>(CLI::PositiveNumber, "> 0", [](double value) { return value > 0; })));
}

Argument Argument::non_negative() const {
  return Argument(
      option_->check(checked<double>(CLI::NonNegativeNumber, ">= 0", [](double value) { return value >= 0; })));
}

template <typename Number>
Argument Argument::within(Number min, Number max) const {
  return Argument(option_->check(checked<Number>(CLI::Range(min, max), fmt::format("from {} to {}", min, max),
                                                 [=](Number value) { return value >= min && value <= max; })));
}

template Argument Argument::within(int, int) const;
template Argument Argument::within(int64_t, int64_t) const;
template Argument Argument::within(double, double) const;

namespace {

// The type of one value that an option parses: for a list option, the type of its elements.
template <typename Value>
struct ElementOf {
  using type = Value;
};
template <typename Value>
struct ElementOf<std::vector<Value>> {
  using type = Value;
};
template <typename Value>
struct ElementOf<std::optional<Value>> {
  using type = Value;
};

// Rejects a number that does not fit. CLI11 would clamp it to the nearest representable one, or wrap a negative one.
template <typename Whole>
std::string refuse_whole(const std::string& text) {
  errno = 0;
  bool fits = true;
  if constexpr (std::is_signed_v<Whole>) {
    const long long value = std::strtoll(text.c_str(), nullptr, 0);
    fits = value <= std::numeric_limits<Whole>::max();
  } else {
    if (text.starts_with('-')) return fmt::format("got {}; must be >= 0", text);
    std::strtoull(text.c_str(), nullptr, 0);
  }
  if (errno == ERANGE || !fits) return fmt::format("got {}; must be <= {}", text, std::numeric_limits<Whole>::max());
  Whole value{};
  return CLI::detail::lexical_cast(text, value) ? "" : fmt::format("got {}; expected an integer", text);
}

template <typename Number>
std::string refuse_number(const std::string& text) {
  Number value{};
  return CLI::detail::lexical_cast(text, value) && std::isfinite(value)
             ? ""
             : fmt::format("got {}; expected a finite number", text);
}

}  // namespace

template <typename Value>
Argument Arguments::add_option(const std::string& names, Value& value, const std::string& help) const {
  using Element = typename ElementOf<Value>::type;
  CLI::Option* option = app_->add_option(names, value, help);
  if constexpr (std::is_integral_v<Element> && !std::is_same_v<Element, bool>)
    option->check(CLI::Validator([](const std::string& text) { return refuse_whole<Element>(text); }, ""));
  if constexpr (std::is_floating_point_v<Element>)
    option->check(CLI::Validator([](const std::string& text) { return refuse_number<Element>(text); }, ""));
  return Argument(option);
}

#define ESP_OPTION_TYPE(...) \
  template Argument Arguments::add_option(const std::string&, __VA_ARGS__&, const std::string&) const
ESP_OPTION_TYPE(std::string);
ESP_OPTION_TYPE(std::vector<std::string>);
ESP_OPTION_TYPE(bool);
ESP_OPTION_TYPE(int);
ESP_OPTION_TYPE(int64_t);
ESP_OPTION_TYPE(uint16_t);
ESP_OPTION_TYPE(uint32_t);
ESP_OPTION_TYPE(uint64_t);
ESP_OPTION_TYPE(float);
ESP_OPTION_TYPE(double);
ESP_OPTION_TYPE(std::vector<int>);
ESP_OPTION_TYPE(std::vector<int64_t>);
ESP_OPTION_TYPE(std::vector<double>);
ESP_OPTION_TYPE(std::optional<int>);
ESP_OPTION_TYPE(std::optional<int64_t>);
ESP_OPTION_TYPE(std::optional<double>);
#undef ESP_OPTION_TYPE

Argument Arguments::add_option_function(const std::string& names, std::function<void(const std::string&)> read,
                                        const std::string& help) const {
  return Argument(app_->add_option_function<std::string>(names, read, help));
}

Argument Arguments::add_flag(const std::string& names, bool& value, const std::string& help) const {
  return Argument(app_->add_flag(names, value, help));
}

Arguments Arguments::add_subcommand(const std::string& name, const std::string& help) const {
  return Arguments(app_->add_subcommand(name, help));
}

void Arguments::require_subcommand(int min, int max) const {
  app_->require_subcommand(static_cast<size_t>(min), static_cast<size_t>(max));
}

void Arguments::footer(const std::string& text) const {
  app_->footer(text);
}

void Arguments::hide() const {
  app_->group("");
}

void Arguments::callback(std::function<void()> after_parsing) const {
  app_->callback(std::move(after_parsing));
}

std::string Arguments::name() const {
  return app_->get_name();
}

std::string Arguments::help() const {
  return app_->get_description();
}

std::string Arguments::footer() const {
  return app_->get_footer();
}

bool Arguments::hidden() const {
  return app_->get_group().empty();
}

bool Arguments::has_chosen_subcommand() const {
  return !app_->get_subcommands().empty();
}

std::vector<std::string> Arguments::unparsed_words() const {
  return app_->remaining();
}

std::vector<OptionText> Arguments::options() const {
  std::vector<OptionText> texts;
  for (const CLI::Option* option : std::as_const(*app_).get_options()) {
    OptionText text;
    text.positional = option->get_positional() && !option->nonpositional();
    text.required = option->get_required();
    text.hidden = option->get_group().empty();
    text.takes_value = option->get_items_expected_max() > 0;
    text.help = option->get_description();
    text.type = option->get_type_name();
    if (text.positional) {
      text.names.push_back(option->get_name(true));
    } else {
      for (const std::string& name : option->get_snames()) text.names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) text.names.push_back("--" + name);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

// A check appends ":{accepted values}" to the type name. This suffix is removed: the type name already lists the
// values.
std::string OptionText::value() const {
  return takes_value ? type.substr(0, type.find(":{")) : "";
}

std::vector<Arguments> Arguments::subcommands() const {
  std::vector<Arguments> subs;
  for (CLI::App* sub : app_->get_subcommands([](CLI::App*) { return true; })) subs.emplace_back(sub);
  return subs;
}

template <typename Value>
bool read_value(const std::string& text, Value& value) {
  return CLI::detail::lexical_cast(text, value);
}

template bool read_value(const std::string&, int&);
template bool read_value(const std::string&, std::string&);

std::vector<std::string> split(const std::string& text, char between) {
  return CLI::detail::split(text, between);
}

}  // namespace esp::app
