// Parser for the head of an HTTP/1.x request: GET or HEAD, no body, at most 8 KiB.
//
// The parser is strict. It rejects input that browsers never send, and returns the matching HTTP status: a folded
// header, two Host lines, a body, a control character, a broken escape. Pure. The bytes are untrusted, because any
// local process can connect.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace esp::dash {

inline constexpr size_t kMaxRequestBytes = 8192;

struct Request {
  std::string method;                                               // "GET" or "HEAD"
  std::string path;                                                 // decoded, begins with '/'
  std::vector<std::pair<std::string, std::string>> query, headers;  // both decoded; header names are in lower case

  const std::string* header(std::string_view name) const;  // null: no such header
  std::string parameter(std::string_view name) const;      // value of a query parameter; empty: not given
  // value of a query parameter; `fallback` if it is not given or not a finite number
  double number(std::string_view name, double fallback) const;
};

struct ParsedRequest {
  int status = 0;  // 0: valid; otherwise the HTTP status of the error response
  Request request;
};

// Position after the empty line that ends the head, or npos.
size_t request_end(std::string_view text);
ParsedRequest parse_request(std::string_view head);

}  // namespace esp::dash
