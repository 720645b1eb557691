// Terminal colours. They are used only on a terminal, and never if NO_COLOR or TERM=dumb is set.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "esp/base/log.h"

namespace esp::app {

class Style {
 public:
  explicit Style(std::FILE* stream);
  std::string bold(std::string_view text) const { return wrap("1", text); }
  std::string dim(std::string_view text) const { return wrap("2", text); }
  std::string red(std::string_view text) const { return wrap("31", text); }
  std::string green(std::string_view text) const { return wrap("32", text); }
  std::string yellow(std::string_view text) const { return wrap("33", text); }

 private:
  std::string wrap(std::string_view code, std::string_view text) const;
  bool on_;
};

int terminal_columns(std::FILE* stream);  // 80 if the width is unknown
Log make_log();                           // log at the level of ESPALIER_LOG; by default warnings and errors

}  // namespace esp::app
