#include "esp/dash/http_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "esp/dash/json_text.h"

namespace esp::dash {
namespace {

constexpr size_t kMaxHeaders = 64, kMaxParameters = 32;

bool is_token(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Percent-decodes. nullopt: a broken escape, bytes that are not UTF-8, or NUL; in a path, also any control character. A
// query value may have control characters, because names of run folders may.
std::optional<std::string> decoded(std::string_view text, bool in_query) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && in_query) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex(text[i + 1]), low = hex(text[i + 2]);
      if (high < 0 || low < 0 || 16 * high + low < (in_query ? 1 : 0x20)) return std::nullopt;
      out += static_cast<char>(16 * high + low);
      i += 2;
    }
  }
  if (!is_utf8(out)) return std::nullopt;
  return out;
}

bool read_query(std::string_view text, Request& request) {
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    const auto name = decoded(pair.substr(0, equals), true);
    const auto value = decoded(pair.substr(std::min(pair.size(), equals + 1)), true);
    if (!name || !value || request.query.size() == kMaxParameters) return false;
    request.query.emplace_back(*name, *value);
  }
  return true;
}

int read_first_line(std::string_view line, Request& request) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return 400;
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return version.starts_with("HTTP/") ? 505 : 400;
  if (method.empty() || !std::all_of(method.begin(), method.end(), is_token)) return 400;
  if (method != "GET" && method != "HEAD") return 405;
  // The target must be a path. Other forms, such as absolute URLs, are for proxies.
  if (target.empty() || target[0] != '/') return 400;
  for (const char c : target)
    if (c <= 0x20 || c >= 0x7f || c == '#') return 400;
  const size_t question = std::min(target.find('?'), target.size());
  const auto path = decoded(target.substr(0, question), false);
  if (!path || !read_query(target.substr(std::min(target.size(), question + 1)), request)) return 400;
  request.method = method;
  request.path = *path;
  return 0;
}

int read_header(std::string_view line, Request& request) {
  const size_t colon = line.find(':');
  if (colon == 0 || colon == std::string_view::npos) return 400;
  std::string name(line.substr(0, colon));
  // also rejects folded header lines, which begin with a space
  if (!std::all_of(name.begin(), name.end(), is_token)) return 400;
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  std::string_view value = line.substr(colon + 1);
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
  while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.remove_suffix(1);
  for (const char c : value)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) return 400;
  // Headers that decide about access, or declare a body, must not occur twice.
  if ((name == "host" || name == "origin" || name == "content-length") && request.header(name)) return 400;
  if (name == "transfer-encoding" || (name == "content-length" && value != "0")) return 413;
  if (request.headers.size() == kMaxHeaders) return 431;
  request.headers.emplace_back(std::move(name), std::string(value));
  return 0;
}

}  // namespace

const std::string* Request::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return &value;
  return nullptr;
}

std::string Request::parameter(std::string_view name) const {
  for (const auto& [key, value] : query)
    if (key == name) return value;
  return {};
}

double Request::number(std::string_view name, double fallback) const {
  const std::string text = parameter(name);
  double value = fallback;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size() && std::isfinite(value) ? value
                                                                                                           : fallback;
}

size_t request_end(std::string_view text) {
  const size_t at = text.find("\r\n\r\n");
  return at == std::string_view::npos ? at : at + 4;
}

ParsedRequest parse_request(std::string_view head) {
  ParsedRequest parsed;
  if (head.size() > kMaxRequestBytes) return {431, {}};
  if (request_end(head) != head.size()) return {400, {}};
  head.remove_suffix(2);
  bool first = true;
  while (!head.empty()) {
    const size_t end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    if (line.find('\r') != std::string_view::npos || line.find('\n') != std::string_view::npos) return {400, {}};
    parsed.status = first ? read_first_line(line, parsed.request) : read_header(line, parsed.request);
    if (parsed.status != 0) return {parsed.status, {}};
    first = false;
  }
  return parsed;
}

}  // namespace esp::dash
