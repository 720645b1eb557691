#include "apps/espalier/lab_context_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "esp/autograd/functions/attention.h"
#include "esp/base/clock.h"
#include "esp/comm/communicator.h"
#include "esp/kernel/elementwise.h"
#include "esp/net/inproc/threads.h"
#include "esp/parallel/cp/ring.h"
#include "esp/parallel/cp/strided_rows.h"
#include "esp/parallel/cp/ulysses.h"

namespace esp::app {
namespace {

using autograd::Variable;
using parallel::ContextGroup;
using parallel::ContextLayout;
using tensor::Tensor;

// Memory and one thread of a rank, and a tape.
struct Desk {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
  autograd::Tape tape{context};

  Tensor random(const tensor::Shape& shape, uint64_t seed, DType dtype) {
    Tensor x = tensor::empty(context, shape, dtype, device::MemoryCategory::other);
    kernel::fill_normal(x.data(), 0, 1, seed, 0, 0, x.count(), dtype, context.stream);
    return x;
  }
};

// The whole sequence: inputs, and outputs as written by the ranks. Each writes its own rows.
struct Whole {
  Desk desk;
  Tensor qkv, d_o, o, dqkv;

  explicit Whole(const ContextCase& it) {
    const int64_t q = it.heads * it.head_dim, row = q + 2 * it.kv_heads * it.head_dim;
    qkv = desk.random({it.batch, it.length, row}, 1, it.dtype);
    d_o = desk.random({it.batch, it.length, q}, 2, it.dtype);
    o = tensor::zeros(desk.context, d_o.shape(), it.dtype, device::MemoryCategory::other);
    dqkv = tensor::zeros(desk.context, qkv.shape(), it.dtype, device::MemoryCategory::other);
  }
};

void move_tokens(const Tensor& held, const Tensor& all, const nn::TokenMap& tokens, bool back) {
  const int64_t width = all.dim(2), T = tokens.count();
  for (int64_t b = 0; b < all.dim(0); ++b) {
    int64_t token = 0;
    for (const nn::TokenRun& run : tokens.runs) {
      const parallel::StridedRows here{held, (b * T + token) * width, width};
      const parallel::StridedRows there{all, (b * tokens.length + run.first) * width, width};
      parallel::copy_rows(back ? there : here, back ? here : there, run.count, width, {});
      token += run.count;
    }
  }
}

uint64_t sent_by(comm::Communicator* comm) {
  uint64_t bytes = 0;
  if (comm)
    for (const comm::CallStats& row : comm->stats())
      if (row.op != comm::Op::barrier) bytes += row.bytes_sent;
  return bytes;
}

// From the ring's trace: work and time of every step, forward and backward.
void read_steps(ContextRank& rank, const obs::TraceRow& row, int num_ranks) {
  for (int way = 0; way < 2; ++way) {
    rank.pairs[way].assign(static_cast<size_t>(num_ranks), 0);
    rank.step_ms[way].assign(static_cast<size_t>(num_ranks), 0);
  }
  for (const obs::SpanRecord& record : row.records()) {
    if (std::strcmp(record.category, "compute") != 0) continue;
    const int way = std::strcmp(record.name, "attention") == 0 ? 0 : 1;
    const auto step = static_cast<size_t>(record.args[0].value);
    rank.pairs[way].at(step) = record.args[1].value;
    rank.step_ms[way].at(step) = static_cast<double>(record.end_ns - record.begin_ns) * 1e-6;
  }
}

ContextRank run_rank(const ContextCase& it, Whole& whole, ContextGroup group, ContextMethod method, int rounds) {
  Desk desk;
  ContextRank rank;
  autograd::AttentionArgs options;
  options.heads = it.heads;
  options.kv_heads = it.kv_heads;
  options.head_dim = it.head_dim;
  options.causal = it.causal;
  rank.tokens = group.tokens(group.rank());
  const Tensor x = desk.random({it.batch, rank.tokens.count(), whole.qkv.dim(2)}, 3, it.dtype);
  const Tensor dy = desk.random({it.batch, rank.tokens.count(), whole.d_o.dim(2)}, 4, it.dtype);
  move_tokens(x, whole.qkv, rank.tokens, false);
  move_tokens(dy, whole.d_o, rank.tokens, false);
  desk.account.reset_peaks();
  for (int round = 0; round < rounds; ++round) {
    obs::TraceRow trace("attention", 64 + 8 * static_cast<size_t>(group.size()));
    ContextRank now = rank;
    now.waited_ms = 0;
    group.trace = &trace;
    group.waited_ms = &now.waited_ms;
    const Variable leaf = desk.tape.leaf(x);
    if (group.comm) group.comm->barrier();
    const uint64_t before = sent_by(group.comm);
    int64_t begun = now_ns();
    const Variable y = method == ContextMethod::ring ? parallel::ring_attention(desk.tape, leaf, options, group)
                                                     : parallel::ulysses_attention(desk.tape, leaf, options, group);
    now.ms[0] = static_cast<double>(now_ns() - begun) * 1e-6;
    const uint64_t between = sent_by(group.comm);
    desk.tape.seed(y, dy);
    begun = now_ns();
    desk.tape.backward();
    now.ms[1] = static_cast<double>(now_ns() - begun) * 1e-6;
    const Tensor dx = desk.tape.take_gradient(leaf);
    now.sent[0] = between - before;
    now.sent[1] = sent_by(group.comm) - between;
    read_steps(now, trace, group.size());
    if (round == 0 || now.ms[0] + now.ms[1] < rank.ms[0] + rank.ms[1]) rank = now;
    move_tokens(y.value(), whole.o, rank.tokens, true);
    move_tokens(dx, whole.dqkv, rank.tokens, true);
    desk.tape.clear();
  }
  rank.peak_bytes = desk.account.use(device::MemoryTier::device).peak;
  return rank;
}

double distance(const Tensor& got, const Tensor& want) {
  double apart = 0, size = 0;
  for (int64_t i = 0; i < got.count(); ++i) {
    const double a = tensor::item(got, i), b = tensor::item(want, i);
    apart += (a - b) * (a - b);
    size += b * b;
  }
  return std::sqrt(apart / size);
}

}  // namespace

ContextRank run_on_one(const ContextCase& it, int rounds) {
  Whole whole(it);
  ContextGroup alone;
  alone.length = it.length;
  return run_rank(it, whole, alone, ContextMethod::ring, rounds);
}

ContextRun run_context(const ContextCase& it, ContextMethod method, ContextLayout layout, int rounds) {
  Whole shared(it), plain(it);
  ContextRun run;
  run.name = method == ContextMethod::ulysses ? "ulysses" : fmt::format("ring, {}", name_of(layout));
  run.ranks.resize(static_cast<size_t>(it.num_ranks));
  net::run_threads(it.num_ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = std::chrono::seconds(120);
    const auto comm = comm::make_communicator(world, world.everyone(), options);
    ContextGroup group;
    group.comm = comm.get();
    group.layout = layout;
    group.length = it.length;
    group.timeout = options.timeout;
    run.ranks[static_cast<size_t>(comm->rank())] = run_rank(it, shared, group, method, rounds);
  });
  ContextGroup alone;
  alone.length = it.length;
  run_rank(it, plain, alone, ContextMethod::ring, 1);
  run.error = std::max(distance(shared.o, plain.o), distance(shared.dqkv, plain.dqkv));
  return run;
}

}  // namespace esp::app
