#include "esp/launch/control.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/launch/message.h"

namespace esp::launch {
namespace {

constexpr std::string_view kNames[] = {"waiting", "ready", "formed", "resumed"};
constexpr size_t kMostBytes = 4096;

int number_in(const Environment& environment, const char* name) {
  const auto at = environment.find(name);
  if (at == environment.end()) return 0;
  int value = -1;
  const char* end = at->second.data() + at->second.size();
  if (const auto [stop, error] = std::from_chars(at->second.data(), end, value); error != std::errc() || stop != end)
    throw UsageError(fmt::format("{} is \"{}\", which is no number", name, at->second));
  return value;
}

}  // namespace

std::string text_of(const NextRound& next) {
  return Json{{"go_on", next.go_on}, {"round", next.round}, {"job", next.job}, {"store", next.store}}.dump();
}

NextRound next_round_of(const std::string& text) {
  return read_message(text, "the launcher's message", [](const Json& json) {
    return NextRound{json.at("go_on"), int_of(json.at("round")), json.at("job"), json.at("store")};
  });
}

Meaning meaning_of(const NextRound& next, int round) {
  if (!next.go_on) return Meaning::end;
  return next.round <= round ? Meaning::old : Meaning::come;
}

std::string text_of(const Word& word) {
  return fmt::format("{} {}{}{}", kNames[static_cast<size_t>(word.kind)], word.round, word.text.empty() ? "" : " ",
                     word.text);
}

std::optional<Word> word_of(const std::string& text) {
  for (size_t kind = 0; kind < std::size(kNames); ++kind) {
    if (!text.starts_with(kNames[kind]) || text.size() < kNames[kind].size() + 2) continue;
    Word word{static_cast<Word::Kind>(kind)};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kNames[kind].size() + 1, end, word.round);
    const bool speaks = word.kind == Word::Kind::resumed && stop != end && *stop == ' ';
    if (error != std::errc() || (stop != end && !speaks)) continue;
    if (stop != end) word.text.assign(stop + 1, end);
    return word;
  }
  return std::nullopt;
}

std::optional<Control> Control::from(const Environment& environment) {
  if (!environment.contains("ESPALIER_CONTROL_FD")) return std::nullopt;
  const int fd = number_in(environment, "ESPALIER_CONTROL_FD");
  // What this process starts has no business on the line.
  if (fd < 0 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    throw UsageError(fmt::format("ESPALIER_CONTROL_FD is {}, which is not an open descriptor", fd));
  return Control(fd, number_in(environment, "ESPALIER_ROUND"));
}

void Control::say(Word::Kind kind, const std::string& what) {
  const std::string text = text_of(Word{kind, round_, what});
  // A launcher that is gone takes us along: nothing to do about it here.
  if (::send(line_.fd(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return;
}

std::optional<NextRound> Control::await(Deadline deadline) {
  say(Word::Kind::waiting);
  while (!deadline.passed()) {
    pollfd waiting{line_.fd(), POLLIN, 0};
    if (::poll(&waiting, 1, deadline.left_ms()) <= 0) continue;  // a signal, or the deadline
    std::string text(kMostBytes, '\0');
    const ssize_t got = ::recv(line_.fd(), text.data(), text.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    text.resize(static_cast<size_t>(got));
    NextRound next = next_round_of(text);
    const Meaning meaning = meaning_of(next, round_);
    if (meaning == Meaning::end) return std::nullopt;
    if (meaning == Meaning::old) continue;
    round_ = next.round;
    return next;
  }
  return std::nullopt;
}

}  // namespace esp::launch
