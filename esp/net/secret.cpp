#include <string.h>
#include <sys/random.h>

#include "esp/base/error.h"
#include "esp/net/world.h"

namespace esp::net {

Secret Secret::random() {
  std::string bytes(32, '\0');
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) throw IoError("getrandom failed");
  return Secret(std::move(bytes));
}

// explicit_bzero: a plain fill of memory about to be freed may be optimised away.
Secret::~Secret() {
  explicit_bzero(bytes_.data(), bytes_.size());
}

}  // namespace esp::net
