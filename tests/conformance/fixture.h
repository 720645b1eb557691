// What a transport needs to be held to the suite: a way to run a body on some ranks. To add one: a function here of the
// shape of FixtureRow::run, and one line in the table of fixtures.cpp.
//
// The body runs once per rank, in whatever a rank is for this transport: a thread, a forked process, or the one rank
// this process itself is (a launcher started all of them on the same test, in the same order). It speaks for itself
// only: expectations are checked on the rank that made them, and nothing is shared but what the transport carries.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "esp/net/transport.h"

namespace esp::net {

using Body = std::function<void(const World& world, const Group& group)>;

struct FixtureRow {
  std::string_view transport;  // a row of transports.cpp, or "auto"
  // Runs the body on `size` ranks; false when it cannot have that many, and the test is then skipped aloud. Each run
  // has a Fate of its own, so that a loss in one test is not remembered in the next. A rank that fails an expectation
  // or throws makes the test fail.
  bool (*run)(int size, const Body& body);
  bool processes;  // ranks are processes: each can count its own descriptors and threads
};
std::span<const FixtureRow> fixtures();

}  // namespace esp::net
