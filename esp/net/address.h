// Addresses: numeric IPv4 and IPv6 as text, names resolved, this host's interfaces, and the choice of the one address
// a process listens on.
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
  std::string text() const;  // without the port
  int port() const;
};

SocketAddress numeric_address(const std::string& address, int port);  // UsageError when it is no address
SocketAddress local_address(int fd);                                  // of a bound or connected socket
SocketAddress remote_address(int fd);                                 // of a connected socket
bool is_loopback(const SocketAddress& address);
bool is_wildcard(const SocketAddress& address);

// Every address a name has now, IPv4 first; empty when it has none (yet).
std::vector<SocketAddress> resolve(const std::string& host, int port);

// "tcp://host:port", "host:port", "tcp://[::1]:port". UsageError otherwise.
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
std::vector<Interface> interfaces();  // those that are up

// The address of the interface called so, of the first one inside a CIDR ("10.1.0.0/16"), or the address itself.
// UsageError lists what there is. `family`: AF_UNSPEC takes IPv4 first.
std::string interface_address(const std::string& name_or_cidr, int family = AF_UNSPEC);

// The address this host would use to talk to `address`, by its routes; empty when there is no route. Sends nothing.
std::string route_source(const SocketAddress& address);

}  // namespace esp::net
