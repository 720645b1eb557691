#include "esp/data/loader.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"

namespace esp::data {

// The ring: slots [taken, made) are ready, the slot before `taken` is lent to the caller, the rest are free. The thread
// fills a free slot without the lock; a seek meanwhile raises `course`, and what was begun on an older course is
// dropped.
struct Loader::State {
  State(const Objective& what, const LoaderOptions& how)
      : objective(what), options(how), ring(static_cast<size_t>(how.depth) + 1), next_base(how.first_sample) {}

  void run();
  bool fill(uint64_t base, Batch& batch) const;  // false: no sample left for this rank

  const Objective& objective;
  const LoaderOptions options;
  std::vector<Batch> ring;

  std::mutex mutex;  // guards what follows
  std::condition_variable work, ready;
  uint64_t made = 0, taken = 0;
  uint64_t next_base;  // where the thread goes on
  uint64_t course = 0;
  uint64_t consumed_base = 0;
  bool ended = false, stop = false, lent = false;
  std::exception_ptr error;

  std::thread thread;
};

bool Loader::State::fill(uint64_t base, Batch& batch) const {
  const uint64_t rows = static_cast<uint64_t>(options.B);
  const uint64_t first = base + static_cast<uint64_t>(options.rank) * rows;
  if (first >= options.end_sample) return false;
  fill_batch(objective, first, static_cast<int64_t>(std::min(rows, options.end_sample - first)), batch);
  return true;
}

void Loader::State::run() {
  pthread_setname_np(pthread_self(), "esp-data");
  const uint64_t stride = static_cast<uint64_t>(options.B) * static_cast<uint64_t>(options.world);
  std::unique_lock lock(mutex);
  while (true) {
    auto may_fill = [&] { return !ended && !error && made - taken + (lent ? 1 : 0) < ring.size(); };
    work.wait(lock, [&] { return stop || may_fill(); });  // ends with the destructor at the latest
    if (stop) return;
    const uint64_t base = next_base, begun_on = course;
    Batch& slot = ring[made % ring.size()];
    lock.unlock();
    bool filled = false;
    std::exception_ptr failure;
    try {
      filled = fill(base, slot);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (course != begun_on) continue;
    if (failure) {
      error = failure;
    } else if (!filled) {
      ended = true;
    } else {
      ++made;
      next_base = base + stride;
    }
    ready.notify_one();
  }
}

Loader::Loader(const Objective& objective, const LoaderOptions& options) {
  ESP_CHECK(options.B > 0 && options.depth > 0 && options.world > 0 && options.rank >= 0 &&
            options.rank < options.world);
  state_ = std::make_unique<State>(objective, options);
  state_->consumed_base = options.first_sample;
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Loader::~Loader() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->work.notify_one();
  state_->thread.join();
}

const Batch* Loader::next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.lent) {
    state.lent = false;
    state.work.notify_one();
  }
  auto arrived = [&] { return state.made > state.taken || state.error || state.ended; };
  if (!state.ready.wait_until(lock, Clock::now() + state.options.timeout, arrived))
    throw IoError(
        fmt::format("no batch at sample {} after {:.0f} s: the disk or file server that holds the data does not answer",
                    state.consumed_base, std::chrono::duration<double>(state.options.timeout).count()));
  // Batches made before the failure are still good.
  if (state.made == state.taken && state.error) std::rethrow_exception(state.error);
  if (state.made == state.taken) return nullptr;
  Batch& batch = state.ring[state.taken % state.ring.size()];
  ++state.taken;
  state.lent = true;
  state.consumed_base += static_cast<uint64_t>(state.options.B) * static_cast<uint64_t>(state.options.world);
  return &batch;
}

void Loader::seek(uint64_t first_sample) {
  State& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    ++state.course;
    state.next_base = state.consumed_base = first_sample;
    state.made = state.taken;
    state.ended = false;
    state.error = nullptr;
  }
  state.work.notify_one();
}

uint64_t Loader::position() const {
  std::lock_guard lock(state_->mutex);
  return state_->consumed_base;
}

}  // namespace esp::data
