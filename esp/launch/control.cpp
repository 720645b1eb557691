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
constexpr size_t kMaxMessageBytes = 4096;

int parse_variable(const Environment& environment, const char* name) {
  const auto at = environment.find(name);
  if (at == environment.end()) return 0;
  int value = -1;
  const char* end = at->second.data() + at->second.size();
  if (const auto [stop, error] = std::from_chars(at->second.data(), end, value); error != std::errc() || stop != end)
    throw UsageError(fmt::format("{}: got \"{}\"; expected an integer", name, at->second));
  return value;
}

}  // namespace

std::string encode(const NextRound& next) {
  return Json{{"go_on", next.proceed}, {"round", next.round}, {"job", next.job}, {"store", next.store}}.dump();
}

NextRound parse_next_round(const std::string& text) {
  return read_message(text, "the launcher's message", [](const Json& json) {
    return NextRound{json.at("go_on"), int_of(json.at("round")), json.at("job"), json.at("store")};
  });
}

NextRoundAction next_round_action(const NextRound& next, int round) {
  if (!next.proceed) return NextRoundAction::stop;
  return next.round <= round ? NextRoundAction::ignore : NextRoundAction::join;
}

std::string encode(const RankMessage& word) {
  return fmt::format("{} {}{}{}", kNames[static_cast<size_t>(word.kind)], word.round, word.text.empty() ? "" : " ",
                     word.text);
}

std::optional<RankMessage> parse_rank_message(const std::string& text) {
  for (size_t kind = 0; kind < std::size(kNames); ++kind) {
    if (!text.starts_with(kNames[kind]) || text.size() < kNames[kind].size() + 2) continue;
    RankMessage word{static_cast<RankMessage::Kind>(kind)};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + kNames[kind].size() + 1, end, word.round);
    const bool speaks = word.kind == RankMessage::Kind::resumed && stop != end && *stop == ' ';
    if (error != std::errc() || (stop != end && !speaks)) continue;
    if (stop != end) word.text.assign(stop + 1, end);
    return word;
  }
  return std::nullopt;
}

std::optional<ControlChannel> ControlChannel::from(const Environment& environment) {
  if (!environment.contains("ESPALIER_CONTROL_FD")) return std::nullopt;
  const int fd = parse_variable(environment, "ESPALIER_CONTROL_FD");
  // FD_CLOEXEC keeps the channel out of the rank's own child processes.
  if (fd < 0 || ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    throw UsageError(fmt::format("ESPALIER_CONTROL_FD: got {}; expected an open descriptor", fd));
  return ControlChannel(fd, parse_variable(environment, "ESPALIER_ROUND"));
}

void ControlChannel::send(RankMessage::Kind kind, const std::string& what) {
  const std::string text = encode(RankMessage{kind, round_, what});
  // A failed send means that the launcher is gone. Then the parent-death signal ends this process too.
  if (::send(line_.fd(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return;
}

std::optional<NextRound> ControlChannel::await_next_round(Deadline deadline) {
  send(RankMessage::Kind::waiting);
  while (!deadline.passed()) {
    pollfd waiting{line_.fd(), POLLIN, 0};
    // a signal interrupted poll, or the deadline has passed
    if (::poll(&waiting, 1, deadline.left_ms()) <= 0) continue;
    std::string text(kMaxMessageBytes, '\0');
    const ssize_t got = ::recv(line_.fd(), text.data(), text.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    text.resize(static_cast<size_t>(got));
    NextRound next = parse_next_round(text);
    const NextRoundAction action = next_round_action(next, round_);
    if (action == NextRoundAction::stop) return std::nullopt;
    if (action == NextRoundAction::ignore) continue;
    round_ = next.round;
    return next;
  }
  return std::nullopt;
}

}  // namespace esp::launch
