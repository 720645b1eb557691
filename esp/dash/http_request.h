// The head of an HTTP/1.x request, as the dashboard understands it: GET and HEAD, no body, 8 KiB at most.
//
// Strict rather than helpful: what a browser never sends (a folded header, two Host lines, a body, a control character,
// a broken escape) is refused with the status that says so. Pure; the bytes may come from anybody on the machine.
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
  std::vector<std::pair<std::string, std::string>> query, headers;  // decoded; header names in lower case

  const std::string* header(std::string_view name) const;      // null: not there
  std::string parameter(std::string_view name) const;          // of the query; empty: not there
  double number(std::string_view name, double without) const;  // finite, or `without`
};

struct ParsedRequest {
  int status = 0;  // 0: understood; else what to answer
  Request request;
};

// Where the head ends (behind its empty line), or npos.
size_t request_end(std::string_view text);
ParsedRequest parse_request(std::string_view head);

}  // namespace esp::dash
