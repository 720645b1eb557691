// A fixture runs the tests of the conformance suite on one transport: it runs a test body on a number of ranks. To add
// a fixture, write a function of the type of FixtureRow::run and add a row to the table in fixtures.cpp.
//
// The body runs once per rank. A rank is a thread, a forked process, or this process (under mpirun, where all ranks run
// the same tests in the same order). Each rank checks its own expectations. Ranks exchange data only through the
// transport.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "esp/net/transport.h"

namespace esp::net {

using Body = std::function<void(const World& world, const Group& group)>;

struct FixtureRow {
  std::string_view transport;  // name of a row in transports.cpp, or "auto"
  // Runs the body on `size` ranks. Returns false if the fixture cannot have that many ranks; the test is then reported
  // as skipped. Each run has a new PeerStatus, so that a loss in one test does not affect the next. A rank that fails
  // an expectation or throws makes the test fail.
  bool (*run)(int size, const Body& body);
  bool processes;  // true if ranks are processes, so that each can count its descriptors and threads
};
std::span<const FixtureRow> fixtures();

}  // namespace esp::net
