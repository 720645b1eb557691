// Access control: accepts requests only from this dashboard's own page, or from a user who has its URL.
//
// The server listens on loopback only, but every web page in the browser can send requests to it. A request must
// satisfy all of these:
//   - Host is a loopback name or address with this port. This blocks DNS rebinding: a foreign name that resolves to
//     127.0.0.1.
//   - Origin, if present, is this server.
//   - Sec-Fetch-Site, if present, is same-origin or none.
//   - The path begins with a random token, which is compared in constant time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "esp/dash/http_request.h"

namespace esp::dash {

struct AccessDenial {
  int status = 403;
  std::string reason;
};

class AccessGuard {
 public:
  // `token` is the first part of the path; see random_token.
  AccessGuard(std::string token, int port);
  const std::string& token() const { return token_; }
  // If the request is accepted, sets inner_path to the path after the token, beginning with '/'. Otherwise returns why
  // it is rejected.
  std::optional<AccessDenial> check(const Request& request, std::string& inner_path) const;

 private:
  bool is_ours(std::string_view host) const;

  std::string token_;
  int port_;
};

std::string random_token();  // 192 random bits from getrandom, in URL-safe characters

}  // namespace esp::dash
