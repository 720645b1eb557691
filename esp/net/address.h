// IP addresses and interfaces: numeric IPv4 and IPv6 text, name resolution, the interfaces of this host, and the choice
// of the address a process listens on.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

namespace esp::net {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  std::string text() const;  // the address without its port
  int port() const;
};

SocketAddress numeric_address(const std::string& address, int port);  // throws UsageError for any other text
SocketAddress local_address(int fd);   // address and port of this end of a bound or connected socket
SocketAddress remote_address(int fd);  // address and port of the peer of a connected socket
bool is_loopback(const SocketAddress& address);
bool is_wildcard(const SocketAddress& address);

// All current addresses of a host name, IPv4 first. Empty if the name does not resolve (yet).
std::vector<SocketAddress> resolve(const std::string& host, int port);

// Parses "tcp://host:port", "host:port" or "tcp://[::1]:port"; UsageError for anything else.
struct HostPort {
  std::string host;
  int port = 0;
};
HostPort parse_endpoint(std::string_view endpoint);

struct Interface {
  std::string name;
  std::string address;
  bool loopback = false;
};
std::vector<Interface> interfaces();  // interfaces that are up

// Address of the interface with this name, or of the first interface inside a CIDR range ("10.1.0.0/16"), or the given
// address itself. UsageError lists the interfaces. With `family` AF_UNSPEC, IPv4 comes first.
std::string interface_address(const std::string& name_or_cidr, int family = AF_UNSPEC);

// The source address that this host's routing table selects for packets to `address`; empty without a route. Sends
// nothing.
std::string route_source(const SocketAddress& address);

}  // namespace esp::net
