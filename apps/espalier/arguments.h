// What a command may be given, and where it goes. A thin face over CLI11, which is compiled in arguments.cpp and
// parser.cpp alone: in every command's file it would take longer to compile than all the rest of that file.
//
// Both classes are handles of what the Parser owns: copy them, lend them, keep them no longer than it lives. The
// variables that options are bound to must live as long. One thread.
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

// One option, flag or positional argument; verbs may be chained.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument type_name(const std::string& name) const;  // of its value, in help; "a|b" also completes to a and b
  Argument show_default() const;                      // help shows what the variable holds now
  Argument required() const;
  Argument delimiter(char between) const;  // of a list's values, within one word
  Argument one_word_each() const;          // a list takes one word each time its name is given
  Argument excludes(const Argument& other) const;
  Argument hide() const;  // from help, manual and completion
  Argument one_of(std::initializer_list<const char*> words) const;
  Argument positive() const;
  Argument non_negative() const;
  template <typename Number>  // int, int64_t, double
  Argument within(Number least, Number most) const;

 private:
  CLI::Option* option_;
};

// An option as the pages that describe it want it.
struct OptionText {
  std::vector<std::string> names;  // "-b", "--nproc"; of a positional one its name
  std::string type;                // "N", "auto|shm|tcp", and what a check adds to it
  std::string help;
  bool positional = false, required = false, hidden = false;
  bool takes_value = false;
  std::string value() const;  // the type alone, empty where it takes none
};

class Arguments {
 public:
  explicit Arguments(CLI::App* app = nullptr) : app_(app) {}

  // Names as "-n,--nproc", or a bare word for a positional argument. Value is one of those listed in arguments.cpp.
  template <typename Value>
  Argument add_option(const std::string& names, Value& value, const std::string& help) const;
  Argument add_option_function(const std::string& names, std::function<void(const std::string&)> read,
                               const std::string& help) const;
  Argument add_flag(const std::string& names, bool& value, const std::string& help) const;

  Arguments add_subcommand(const std::string& name, const std::string& help) const;
  void require_subcommand(int least, int most) const;
  void footer(const std::string& text) const;
  void hide() const;
  void callback(std::function<void()> after_parsing) const;

  std::string name() const, help() const, footer() const;
  bool hidden() const;
  bool has_chosen_subcommand() const;          // after parsing
  std::vector<std::string> strays() const;     // after parsing: words nobody took
  std::vector<OptionText> options() const;     // hidden ones too
  std::vector<Arguments> subcommands() const;  // hidden ones too

 private:
  CLI::App* app_;
};

// As an option would read it; false when it is not one. int and std::string.
template <typename Value>
bool read_value(const std::string& text, Value& value);

// "a,b" as a and b. An empty text is one empty word.
std::vector<std::string> split(const std::string& text, char between);

}  // namespace esp::app
