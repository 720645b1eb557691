// Who may ask: only somebody who was given the address, from a page that is ours or from the address bar.
//
// The server listens on the loopback alone, but every page a browser shows can send requests there. So: the Host must
// be the loopback by name or number, with our port (a name of somebody else's that was made to mean 127.0.0.1, DNS
// rebinding, has another Host); an Origin, where there is one, must be ours; what the browser says comes from another
// site (Sec-Fetch-Site) is refused; and the path begins with a random token, compared in constant time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "esp/dash/http_request.h"

namespace esp::dash {

struct Refusal {
  int status = 403;
  std::string why;
};

class Gate {
 public:
  // `token` is what the path begins with; see random_token.
  Gate(std::string token, int port);
  const std::string& token() const { return token_; }
  // What is behind the token in the path, beginning with '/'; or the refusal.
  std::optional<Refusal> refusal(const Request& request, std::string& inner_path) const;

 private:
  bool is_ours(std::string_view host) const;

  std::string token_;
  int port_;
};

std::string random_token();  // 192 bits of the system's randomness, in letters that a URL carries unchanged

}  // namespace esp::dash
