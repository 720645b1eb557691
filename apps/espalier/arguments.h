// Options and arguments of a command: a thin interface over CLI11. Only arguments.cpp and parser.cpp include CLI11,
// because including it in every command's file would dominate compile time.
//
// Both classes are copyable handles to objects that the Parser owns; they are valid as long as the Parser. A variable
// that an option is bound to must outlive the Parser. Not thread-safe.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace esp::app {

// One option, flag or positional argument; calls can be chained.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument type_name(const std::string& name) const;  // name of the value in help; "a|b" also completes to a and b
  Argument show_default() const;                      // help shows the variable's current value
  Argument required() const;
  Argument delimiter(char between) const;  // character that separates the elements of a list within one word
  Argument one_word_each() const;          // each occurrence of the option adds one word to the list
  Argument excludes(const Argument& other) const;
  Argument hide() const;  // hides the option from help, manual and completion
  Argument one_of(std::initializer_list<const char*> words) const;
  Argument positive() const;
  Argument non_negative() const;
  template <typename Number>  // int, int64_t, double
  Argument within(Number min, Number max) const;

 private:
  CLI::Option* option_;
};

// An option as described in help, manual pages and completion.
struct OptionText {
  std::vector<std::string> names;  // "-b", "--nproc"; for a positional argument its name
  std::string type;                // "N", "auto|shm|tcp", plus the text that a check appends
  std::string help;
  bool positional = false, required = false, hidden = false;
  bool takes_value = false;
  std::string value() const;  // type without the check's text; empty for a flag
};

class Arguments {
 public:
  explicit Arguments(CLI::App* app = nullptr) : app_(app) {}

  // `names` is "-n,--nproc", or a bare word for a positional argument. Instantiated for the value types listed in
  // arguments.cpp.
  template <typename Value>
  Argument add_option(const std::string& names, Value& value, const std::string& help) const;
  Argument add_option_function(const std::string& names, std::function<void(const std::string&)> read,
                               const std::string& help) const;
  Argument add_flag(const std::string& names, bool& value, const std::string& help) const;

  Arguments add_subcommand(const std::string& name, const std::string& help) const;
  void require_subcommand(int min, int max) const;
  void footer(const std::string& text) const;
  void hide() const;
  void callback(std::function<void()> after_parsing) const;

  std::string name() const, help() const, footer() const;
  bool hidden() const;
  bool has_chosen_subcommand() const;               // after parsing
  std::vector<std::string> unparsed_words() const;  // after parsing: words that match no option or argument
  std::vector<OptionText> options() const;          // includes hidden options
  std::vector<Arguments> subcommands() const;       // includes hidden subcommands

 private:
  CLI::App* app_;
};

// Parses `text` as an option of type Value would; false if that fails. Instantiated for int and std::string.
template <typename Value>
bool read_value(const std::string& text, Value& value);

// Splits "a,b" into a and b. An empty text gives one empty word.
std::vector<std::string> split(const std::string& text, char between);

}  // namespace esp::app
