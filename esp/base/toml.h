// toml++ 3.3 with checked assertions. That version assumes that a table header begins with a key character. The text
// "[{" violates this, which is undefined behaviour in optimised builds. Here a violated assertion throws an exception,
// like a syntax error.
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
