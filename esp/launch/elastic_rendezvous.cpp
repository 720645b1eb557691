#include "esp/launch/elastic_rendezvous.h"

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

// Resolves the host name of the endpoint. Retries until the name has an address or the deadline passes.
net::SocketAddress resolve_endpoint(const std::string& endpoint, Deadline deadline) {
  const net::HostPort at = net::parse_endpoint("tcp://" + endpoint);
  for (;;) {
    if (const auto found = net::resolve(at.host, at.port); !found.empty()) return found.front();
    if (deadline.passed())
      throw CommError(
          CommError::Kind::timeout, -1,
          fmt::format("--rdzv-endpoint {}: cannot resolve the host name. Check its spelling and the DNS", endpoint));
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

int Epoch::member_index(int host) const {
  const auto at = std::find(members.begin(), members.end(), host);
  return at == members.end() ? -1 : static_cast<int>(at - members.begin());
}

std::string encode(const Epoch& epoch) {
  return Json{{"number", epoch.number}, {"members", epoch.members}, {"endpoint", epoch.endpoint}}.dump();
}

Epoch parse_epoch(const std::string& text) {
  return read_message(text, "the list of hosts from host 0", [](const Json& json) {
    Epoch epoch{int_of(json.at("number")), {}, json.at("endpoint")};
    if (!json.at("members").is_array())
      throw IoError(fmt::format("members: got {}; expected a list", json.at("members").type_name()));
    for (const Json& member : json.at("members")) epoch.members.push_back(int_of(member));
    return epoch;
  });
}

std::string wait_for_first_host(const std::function<std::string(Deadline)>& get, Duration timeout) {
  try {
    return get(Deadline::after(timeout));
  } catch (const CommError& error) {
    if (error.kind() != CommError::Kind::timeout) throw;
    throw CommError(CommError::Kind::timeout, 0,
                    fmt::format("host 0 has not started the ranks within {:g} s (--rdzv-timeout). Check its output",
                                std::chrono::duration<double>(timeout).count()));
  }
}

ElasticRendezvous::ElasticRendezvous(const ElasticRendezvousOptions& options, Deadline deadline) {
  const net::SocketAddress at = resolve_endpoint(options.endpoint, deadline);
  address_ = at.text();
  const std::string job = options.job + "/rendezvous";
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
  // A host only uses the hub's key-value store; it does not join a world of ranks.
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
  if (!options.first) host_number_ = static_cast<int>(store_->add(kArrived, 1));
}

int ElasticRendezvous::num_hosts() const {
  return 1 + static_cast<int>(store_->add(kArrived, 0));
}

void ElasticRendezvous::publish_epoch(const Epoch& epoch) {
  store_->set(epoch_key(epoch.number), encode(epoch));
}

void ElasticRendezvous::request_change(int epoch) {
  store_->set(change_key(epoch), "");
}

bool ElasticRendezvous::change_requested(int epoch) const {
  return store_->try_get(change_key(epoch)).has_value();
}

Epoch ElasticRendezvous::wait_for_epoch(int epoch, Duration timeout) {
  return parse_epoch(
      wait_for_first_host([&](Deadline deadline) { return store_->get(epoch_key(epoch), deadline); }, timeout));
}

}  // namespace esp::launch
