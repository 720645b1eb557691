#include "esp/data/data_loader.h"

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

// Ring of batches. Slots [taken, made) are ready, the slot before `taken` is in use by the caller, the others are free.
// The thread fills a free slot without holding the lock. seek() increments `generation`; a batch that was started in an
// older generation is dropped.
struct DataLoader::State {
  State(const Objective& what, const DataLoaderOptions& how)
      : objective(what), options(how), ring(static_cast<size_t>(how.depth) + 1), next_base(how.first_sample) {}

  void run();
  bool fill(uint64_t base, Batch& batch) const;  // returns false if this rank has no samples left

  const Objective& objective;
  const DataLoaderOptions options;
  std::vector<Batch> ring;

  std::mutex mutex;  // guards the members below
  std::condition_variable work, ready;
  uint64_t made = 0, taken = 0;
  uint64_t next_base;  // first sample of the next batch that the thread makes
  uint64_t generation = 0;
  uint64_t consumed_base = 0;
  bool ended = false, stop = false, in_use = false;
  std::exception_ptr error;

  std::thread thread;
};

bool DataLoader::State::fill(uint64_t base, Batch& batch) const {
  const uint64_t rows = static_cast<uint64_t>(options.B);
  const uint64_t first = base + static_cast<uint64_t>(options.rank) * rows;
  if (first >= options.end_sample) return false;
  fill_batch(objective, first, static_cast<int64_t>(std::min(rows, options.end_sample - first)), batch);
  return true;
}

void DataLoader::State::run() {
  pthread_setname_np(pthread_self(), "esp-data");
  const uint64_t stride = static_cast<uint64_t>(options.B) * static_cast<uint64_t>(options.world);
  std::unique_lock lock(mutex);
  while (true) {
    auto may_fill = [&] { return !ended && !error && made - taken + (in_use ? 1 : 0) < ring.size(); };
    work.wait(lock, [&] { return stop || may_fill(); });  // the destructor sets `stop`, which ends this wait
    if (stop) return;
    const uint64_t base = next_base, generation_at_start = generation;
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
    if (generation != generation_at_start) continue;
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

DataLoader::DataLoader(const Objective& objective, const DataLoaderOptions& options) {
  ESP_CHECK(options.B > 0 && options.depth > 0 && options.world > 0 && options.rank >= 0 &&
            options.rank < options.world);
  state_ = std::make_unique<State>(objective, options);
  state_->consumed_base = options.first_sample;
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

DataLoader::~DataLoader() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->work.notify_one();
  state_->thread.join();
}

const Batch* DataLoader::next() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.in_use) {
    state.in_use = false;
    state.work.notify_one();
  }
  auto arrived = [&] { return state.made > state.taken || state.error || state.ended; };
  if (!state.ready.wait_until(lock, Clock::now() + state.options.timeout, arrived))
    throw IoError(
        fmt::format("data loader: got no batch at sample {} after {:.0f} s: the disk or file server that holds the "
                    "data does not answer",
                    state.consumed_base, std::chrono::duration<double>(state.options.timeout).count()));
  // Batches made before the error are valid and are returned first.
  if (state.made == state.taken && state.error) std::rethrow_exception(state.error);
  if (state.made == state.taken) return nullptr;
  Batch& batch = state.ring[state.taken % state.ring.size()];
  ++state.taken;
  state.in_use = true;
  state.consumed_base += static_cast<uint64_t>(state.options.B) * static_cast<uint64_t>(state.options.world);
  return &batch;
}

void DataLoader::seek(uint64_t first_sample) {
  State& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    ++state.generation;
    state.next_base = state.consumed_base = first_sample;
    state.made = state.taken;
    state.ended = false;
    state.error = nullptr;
  }
  state.work.notify_one();
}

uint64_t DataLoader::position() const {
  std::lock_guard lock(state_->mutex);
  return state_->consumed_base;
}

}  // namespace esp::data
