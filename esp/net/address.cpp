#include "esp/net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/socket.h"

namespace esp::net {
namespace {

SocketAddress copy_of(const sockaddr* address, socklen_t length) {
  SocketAddress copy;
  std::memcpy(&copy.storage, address, length);
  copy.length = length;
  return copy;
}

std::vector<SocketAddress> look_up(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return {};
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(list, freeaddrinfo);
  std::vector<SocketAddress> found;
  for (addrinfo* item = list; item; item = item->ai_next) found.push_back(copy_of(item->ai_addr, item->ai_addrlen));
  std::stable_sort(found.begin(), found.end(), [](const SocketAddress& a, const SocketAddress& b) {
    return (a.family() == AF_INET) > (b.family() == AF_INET);
  });
  return found;
}

std::string_view raw_bytes(const SocketAddress& address) {
  if (address.family() == AF_INET) {
    auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    return {reinterpret_cast<const char*>(&v4->sin_addr), 4};
  }
  auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  return {reinterpret_cast<const char*>(&v6->sin6_addr), 16};
}

std::optional<int> to_int(std::string_view text) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

bool inside(const SocketAddress& address, const SocketAddress& net, int bits) {
  if (address.family() != net.family()) return false;
  auto a = raw_bytes(address), n = raw_bytes(net);
  for (int bit = 0; bit < bits; ++bit) {
    int mask = 0x80 >> (bit % 8);
    if ((a[static_cast<size_t>(bit / 8)] ^ n[static_cast<size_t>(bit / 8)]) & mask) return false;
  }
  return true;
}

}  // namespace

std::string SocketAddress::text() const {
  char host[NI_MAXHOST] = "";
  getnameinfo(get(), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

int SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

SocketAddress numeric_address(const std::string& address, int port) {
  auto found = look_up(address, port, AI_NUMERICHOST);
  if (found.empty())
    throw UsageError(fmt::format("address: got \"{}\"; expected a numeric IPv4 or IPv6 address", address));
  return found.front();
}

SocketAddress local_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (getsockname(fd, address.get(), &address.length) != 0)
    throw CommError(CommError::Kind::lost, -1,
                    fmt::format("cannot read the local address of a socket: {}", errno_text(errno)));
  return address;
}

SocketAddress remote_address(int fd) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (getpeername(fd, address.get(), &address.length) != 0)
    throw CommError(CommError::Kind::lost, -1,
                    fmt::format("cannot read the remote address of a connection: {}", errno_text(errno)));
  return address;
}

bool is_loopback(const SocketAddress& address) {
  auto bytes = raw_bytes(address);
  if (address.family() == AF_INET) return bytes[0] == 127;
  auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) return bytes[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

bool is_wildcard(const SocketAddress& address) {
  auto bytes = raw_bytes(address);
  return std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
}

std::vector<SocketAddress> resolve(const std::string& host, int port) {
  return look_up(host, port, 0);
}

HostPort parse_endpoint(std::string_view endpoint) {
  std::string_view rest = endpoint;
  if (rest.substr(0, 6) == "tcp://") rest.remove_prefix(6);
  auto colon = rest.rfind(':');
  auto port = colon == std::string_view::npos ? std::nullopt : to_int(rest.substr(colon + 1));
  std::string_view host = rest.substr(0, colon);
  bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  bool ambiguous = !bracketed && host.find(':') != std::string_view::npos;
  if (!port || *port < 0 || *port > 65535 || host.empty() || ambiguous || host.find('/') != std::string_view::npos)
    throw UsageError(fmt::format(
        "endpoint: got \"{}\"; expected tcp://host:port, tcp://[ipv6]:port or file:///directory", endpoint));
  return {std::string(host), *port};
}

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> guard(list, freeifaddrs);
  std::vector<Interface> found;
  for (ifaddrs* item = list; item; item = item->ifa_next) {
    if (!item->ifa_addr || !(item->ifa_flags & IFF_UP)) continue;
    int family = item->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    auto address = copy_of(item->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    found.push_back({item->ifa_name, address.text(), (item->ifa_flags & IFF_LOOPBACK) != 0});
  }
  std::stable_sort(found.begin(), found.end(), [](const Interface& a, const Interface& b) {
    return (a.address.find(':') == std::string::npos) > (b.address.find(':') == std::string::npos);
  });
  return found;
}

std::string interface_address(const std::string& name_or_cidr, int family) {
  auto all = interfaces();
  auto slash = name_or_cidr.find('/');
  auto net = look_up(name_or_cidr.substr(0, slash), 0, AI_NUMERICHOST);
  auto bits = slash == std::string::npos ? std::nullopt : to_int(std::string_view(name_or_cidr).substr(slash + 1));
  for (const Interface& each : all) {
    auto address = numeric_address(each.address, 0);
    if (family != AF_UNSPEC && address.family() != family) continue;
    bool fits = each.name == name_or_cidr;
    if (!net.empty()) {
      int width = static_cast<int>(raw_bytes(net.front()).size()) * 8;
      bool sane = slash == std::string::npos || (bits && *bits >= 0 && *bits <= width);
      fits |= sane && inside(address, net.front(), bits.value_or(width));
    }
    if (fits) return each.address;
  }
  std::string known;
  for (const Interface& each : all) known += fmt::format("{}{} {}", known.empty() ? "" : ", ", each.name, each.address);
  throw UsageError(fmt::format("interface: got \"{}\"; expected the name, address or CIDR range of one of: {}",
                               name_or_cidr, known));
}

std::string route_source(const SocketAddress& address) {
  // connect() on a datagram socket queries the routing table and sends nothing.
  Socket probe(socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || connect(probe.fd(), address.get(), address.length) != 0) return {};
  return local_address(probe.fd()).text();
}

}  // namespace esp::net
