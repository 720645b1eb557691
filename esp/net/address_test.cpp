#include "esp/net/address.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/net/host.h"

namespace esp::net {
namespace {

TEST(Address, ParsesEndpoints) {
  EXPECT_EQ(parse_endpoint("tcp://node-1:29500").host, "node-1");
  EXPECT_EQ(parse_endpoint("10.0.0.1:0").port, 0);
  EXPECT_EQ(parse_endpoint("tcp://[fe80::1%eth0]:80").host, "fe80::1%eth0");
  for (const char* bad : {"", "tcp://", "host", "host:", ":80", "host:65536", "host:-1", "host:8x", "::1:80", "a/b:80"})
    EXPECT_THROW(parse_endpoint(bad), UsageError) << bad;
}

TEST(Address, RecognisesLoopbackAndWildcard) {
  EXPECT_TRUE(is_loopback(numeric_address("127.1.2.3", 1)));
  EXPECT_TRUE(is_loopback(numeric_address("::1", 1)));
  EXPECT_TRUE(is_loopback(numeric_address("::ffff:127.0.0.1", 1)));
  EXPECT_FALSE(is_loopback(numeric_address("10.0.0.1", 1)));
  EXPECT_TRUE(is_wildcard(numeric_address("0.0.0.0", 1)));
  EXPECT_TRUE(is_wildcard(numeric_address("::", 1)));
  EXPECT_FALSE(is_wildcard(numeric_address("::1", 1)));
  EXPECT_THROW(numeric_address("localhost", 1), UsageError);
}

TEST(Address, FindsInterfaceByNameCidrAndAddress) {
  EXPECT_EQ(interface_address("lo"), "127.0.0.1");
  EXPECT_EQ(interface_address("127.0.0.0/8"), "127.0.0.1");
  EXPECT_EQ(interface_address("127.0.0.1"), "127.0.0.1");
  EXPECT_THROW(interface_address("127.0.0.0/33"), UsageError);
  EXPECT_THROW(interface_address("203.0.113.0/24"), UsageError);
  try {
    interface_address("eth77");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("lo 127.0.0.1"), std::string::npos)
        << "the error must list the known interfaces";
  }
}

TEST(Address, RouteToLoopbackHasLoopbackSource) {
  EXPECT_EQ(route_source(numeric_address("127.0.0.1", 9)), "127.0.0.1");
}

TEST(Host, IdentityIsStableAndDependsOnName) {
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_NE(host_identity("a"), host_identity("b"));
  EXPECT_EQ(host_identity("a").rfind("a#", 0), 0u);
}

}  // namespace
}  // namespace esp::net
