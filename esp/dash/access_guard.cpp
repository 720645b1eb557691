#include "esp/dash/access_guard.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::dash {
namespace {

// Compares in constant time, so that the duration does not show how many characters match.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return differ == 0;
}

}  // namespace

AccessGuard::AccessGuard(std::string token, int port) : token_(std::move(token)), port_(port) {}

bool AccessGuard::is_ours(std::string_view host) const {
  for (const std::string_view name : {"127.0.0.1", "localhost", "[::1]"})
    if (host == fmt::format("{}:{}", name, port_)) return true;
  return false;
}

std::optional<AccessDenial> AccessGuard::check(const Request& request, std::string& inner_path) const {
  const std::string* host = request.header("host");
  if (!host || !is_ours(*host))
    return AccessDenial{421, fmt::format("this server answers to 127.0.0.1:{} and localhost:{} only", port_, port_)};
  if (const std::string* origin = request.header("origin"))
    if (!origin->starts_with("http://") || !is_ours(std::string_view(*origin).substr(7)))
      return AccessDenial{403, "request from a page of another origin"};
  if (const std::string* site = request.header("sec-fetch-site"))
    if (*site != "same-origin" && *site != "none")
      return AccessDenial{403, "request from a link on another site; paste the address into the address bar instead"};
  const size_t slash = request.path.find('/', 1);
  if (slash == std::string::npos || !equal_in_constant_time(request.path.substr(1, slash - 1), token_))
    return AccessDenial{403, "the address has no valid token; use the address that `espalier dash` printed"};
  inner_path = request.path.substr(slash);
  return std::nullopt;
}

std::string random_token() {
  std::array<unsigned char, 32> bytes{};
  for (size_t have = 0; have < bytes.size();) {
    const ssize_t got = ::getrandom(bytes.data() + have, bytes.size() - have, 0);
    if (got < 0 && errno != EINTR)
      throw IoError(fmt::format("cannot read random bytes for the token: {}", std::strerror(errno)));
    if (got > 0) have += static_cast<size_t>(got);
  }
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string token;
  // there are 64 letters and 64 divides 256, so all letters are equally likely
  for (const unsigned char byte : bytes) token += kLetters[byte % kLetters.size()];
  return token;
}

}  // namespace esp::dash
