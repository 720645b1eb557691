#include "esp/launch/lobby.h"

#include <algorithm>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/launch/message.h"
#include "esp/net/address.h"
#include "esp/net/handshake.h"

namespace esp::launch {
namespace {

constexpr const char* kArrived = "arrived";
constexpr auto kPause = std::chrono::milliseconds(50);

std::string epoch_key(int number) {
  return fmt::format("epoch/{}", number);
}
std::string change_key(int number) {
  return fmt::format("change/{}", number);
}

// The endpoint's host as it resolves now, and again until it does.
net::SocketAddress resolved(const std::string& endpoint, Deadline deadline) {
  const net::HostPort at = net::parse_endpoint("tcp://" + endpoint);
  for (;;) {
    if (const auto found = net::resolve(at.host, at.port); !found.empty()) return found.front();
    if (deadline.passed())
      throw CommError(
          CommError::Kind::timeout, -1,
          fmt::format("--rdzv-endpoint {}: the name has no address. Check its spelling and the DNS", endpoint));
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

int Epoch::place_of(int host) const {
  const auto at = std::find(members.begin(), members.end(), host);
  return at == members.end() ? -1 : static_cast<int>(at - members.begin());
}

std::string text_of(const Epoch& epoch) {
  return Json{{"number", epoch.number}, {"members", epoch.members}, {"endpoint", epoch.endpoint}}.dump();
}

Epoch epoch_of(const std::string& text) {
  return read_message(text, "the first host's list of hosts", [](const Json& json) {
    Epoch epoch{int_of(json.at("number")), {}, json.at("endpoint")};
    if (!json.at("members").is_array()) throw IoError("members: expected a list");
    for (const Json& member : json.at("members")) epoch.members.push_back(int_of(member));
    return epoch;
  });
}

std::string word_of_first_host(const std::function<std::string(Deadline)>& get, Duration timeout) {
  try {
    return get(Deadline::after(timeout));
  } catch (const CommError& error) {
    if (error.kind() != CommError::Kind::timeout) throw;
    throw CommError(CommError::Kind::timeout, 0,
                    fmt::format("host 0 has not started the ranks within {:g} s (--rdzv-timeout). Look at its output",
                                std::chrono::duration<double>(timeout).count()));
  }
}

Lobby::Lobby(const LobbyOptions& options, Deadline deadline) {
  const net::SocketAddress at = resolved(options.endpoint, deadline);
  address_ = at.text();
  const std::string job = options.job + "/lobby";
  if (options.first) {
    net::HubOptions opening;
    opening.address = options.net.bind_any ? (at.text().find(':') == std::string::npos ? "0.0.0.0" : "::") : at.text();
    opening.port = at.port();
    opening.job = job;
    opening.secret = options.secret;
    opening.link_timeout = options.net.link_timeout;
    opening.member = "host";
    opening.log = options.log;
    hub_ = std::make_unique<net::Hub>(opening);
  }
  // Nobody joins here: hosts only read and write what is written down.
  net::Socket line;
  try {
    line = net::connect_to(at.text(), at.port(), options.secret, {net::Role::store, 0, job, 0, 0}, "", deadline);
  } catch (const CommError& error) {
    if (error.kind() != CommError::Kind::timeout) throw;
    throw CommError(
        CommError::Kind::timeout, 0,
        fmt::format("host 0 did not answer at --rdzv-endpoint {} within {:g} s (--rdzv-timeout): {}", options.endpoint,
                    std::chrono::duration<double>(options.net.start_timeout).count(), error.what()));
  }
  const net::HubStore::Options store{options.net.start_timeout, options.net.link_timeout, "host 0"};
  store_ = std::make_unique<net::HubStore>(std::move(line), store, deadline);
  if (!options.first) number_ = static_cast<int>(store_->add(kArrived, 1));
}

int Lobby::num_arrived() const {
  return 1 + static_cast<int>(store_->add(kArrived, 0));
}

void Lobby::call(const Epoch& epoch) {
  store_->set(epoch_key(epoch.number), text_of(epoch));
}

void Lobby::say_change_is_due(int epoch) {
  store_->set(change_key(epoch), "");
}

bool Lobby::change_is_due(int epoch) const {
  return store_->try_get(change_key(epoch)).has_value();
}

Epoch Lobby::await(int epoch, Duration timeout) {
  return epoch_of(
      word_of_first_host([&](Deadline deadline) { return store_->get(epoch_key(epoch), deadline); }, timeout));
}

}  // namespace esp::launch
