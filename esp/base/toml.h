// toml++ with its assumptions checked. Version 3.3 assumes, without looking, that a table header begins with a letter
// of a key; "[{" breaks that, and in an optimised build the compiler may do anything with it. Here a broken assumption
// is an exception like any other syntax error.
#pragma once

#include <stdexcept>

namespace esp {

struct TomlAssumption : std::logic_error {
  using std::logic_error::logic_error;
};
[[noreturn]] inline void broken_toml_assumption(const char* what) {
  throw TomlAssumption(what);
}

}  // namespace esp

#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) (static_cast<bool>(expr) ? void() : ::esp::broken_toml_assumption(#expr))
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")
