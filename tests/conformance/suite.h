// Base class of the transport tests. Each test runs once per row of fixtures.cpp.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "tests/conformance/fixture.h"
#include "tests/conformance/test_transfers.h"

namespace esp::net {

class TransportSuite : public ::testing::TestWithParam<FixtureRow> {
 protected:
  void run(int size, const Body& body) {
    if (!GetParam().run(size, body)) GTEST_SKIP() << GetParam().transport << ": cannot start " << size << " ranks";
  }
  // Opens the transport under test on a group.
  std::unique_ptr<Transport> open(const World& world, const Group& group) {
    auto transport = open_transport(GetParam().transport, world, group);
    if (GetParam().transport != "auto") {
      EXPECT_EQ(transport->name(), GetParam().transport);
    }
    EXPECT_EQ(transport->rank(), group.rank);
    EXPECT_EQ(transport->size(), group.size());
    return transport;
  }
  // Returns another group of the same job with the same members.
  static Group second_group(Group group, uint64_t which) {
    group.id = group.id * 1000 + which + 1;
    return group;
  }
};

inline std::string fixture_name(const ::testing::TestParamInfo<FixtureRow>& info) {
  return std::string(info.param.transport);
}

}  // namespace esp::net

#define ESP_INSTANTIATE_FOR_ALL_TRANSPORTS(suite) \
  INSTANTIATE_TEST_SUITE_P(Transports, suite, ::testing::ValuesIn(esp::net::fixtures()), esp::net::fixture_name)
