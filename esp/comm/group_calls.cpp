#include "esp/comm/group_calls.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace esp::comm {

void GroupScope::add(Communicator& communicator, const Call& call) {
  auto found =
      std::find_if(sets_.begin(), sets_.end(), [&](const Set& set) { return set.communicator == &communicator; });
  if (found == sets_.end()) found = sets_.insert(sets_.end(), Set{&communicator, {}});
  found->calls.push_back(call);
}

std::vector<Work> GroupScope::start() {
  std::vector<Work> works;
  for (const Set& set : std::exchange(sets_, {})) works.push_back(set.communicator->start_group(set.calls));
  return works;
}

void GroupScope::end(Deadline deadline) {
  std::exception_ptr first;
  for (const Work& work : start()) {
    try {
      work.wait(deadline);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace esp::comm
