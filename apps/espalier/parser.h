// Reads the program's arguments. Owns what every Arguments and Argument refers to; CLI11 does the reading.
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
  struct Outcome {
    enum class Kind { read, answered, refused };  // answered: --help or --version, already printed
    Kind kind = Kind::read;
    int exit_code = 0;      // of answered
    std::string complaint;  // of refused
    bool strays = false;    // of refused: for words that nobody took
  };

  explicit Parser(const About& about);
  ~Parser();
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  Arguments root() const;
  Outcome parse(int argc, char** argv);
  std::string help() const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace esp::app
