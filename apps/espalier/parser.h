// Parses the command line with CLI11. Owns the objects that Arguments and Argument refer to.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "apps/espalier/arguments.h"

namespace esp::app {

class Parser {
 public:
  struct About {
    std::string name, help, footer;
    std::function<std::string()> version;
    std::string version_help;
  };
  struct ParseResult {
    enum class Kind { parsed, printed, rejected };  // printed: --help or --version was printed
    Kind kind = Kind::parsed;
    int exit_code = 0;            // set if kind is printed
    std::string error;            // message; set if kind is rejected
    bool unparsed_words = false;  // true if kind is rejected because words match no option
  };

  explicit Parser(const About& about);
  ~Parser();
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  Arguments root() const;
  ParseResult parse(int argc, char** argv);
  std::string help() const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace esp::app
