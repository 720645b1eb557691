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

// State of one rank: memory, one compute thread and the autograd tape.
struct AttentionState {
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

// Inputs and outputs of the full sequence. Each rank writes its own rows.
struct FullSequence {
  AttentionState state;
  Tensor qkv, d_o, o, dqkv;

  explicit FullSequence(const ContextCase& spec) {
    const int64_t q = spec.heads * spec.head_dim, row = q + 2 * spec.kv_heads * spec.head_dim;
    qkv = state.random({spec.batch, spec.length, row}, 1, spec.dtype);
    d_o = state.random({spec.batch, spec.length, q}, 2, spec.dtype);
    o = tensor::zeros(state.context, d_o.shape(), spec.dtype, device::MemoryCategory::other);
    dqkv = tensor::zeros(state.context, qkv.shape(), spec.dtype, device::MemoryCategory::other);
  }
};

void move_tokens(const Tensor& held, const Tensor& all, const nn::TokenMap& tokens, bool back) {
  const int64_t width = all.dim(2), T = tokens.count();
  for (int64_t b = 0; b < all.dim(0); ++b) {
    int64_t token = 0;
    for (const nn::TokenRun& run : tokens.runs) {
      const parallel::StridedRows own{held, (b * T + token) * width, width};
      const parallel::StridedRows other{all, (b * tokens.length + run.first) * width, width};
      parallel::copy_rows(back ? other : own, back ? own : other, run.count, width, {});
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

// Reads the work and the time of every ring step, forward and backward, from the rank's trace.
void read_steps(ContextRank& rank, const obs::TraceRow& row, int num_ranks) {
  for (int direction = 0; direction < 2; ++direction) {
    rank.pairs[direction].assign(static_cast<size_t>(num_ranks), 0);
    rank.step_ms[direction].assign(static_cast<size_t>(num_ranks), 0);
  }
  for (const obs::SpanRecord& record : row.records()) {
    if (std::strcmp(record.category, "compute") != 0) continue;
    const int direction = std::strcmp(record.name, "attention") == 0 ? 0 : 1;
    const auto step = static_cast<size_t>(record.args[0].value);
    rank.pairs[direction].at(step) = record.args[1].value;
    rank.step_ms[direction].at(step) = static_cast<double>(record.end_ns - record.begin_ns) * 1e-6;
  }
}

ContextRank run_rank(const ContextCase& spec, FullSequence& whole, ContextGroup group, ContextMethod method,
                     int rounds) {
  AttentionState state;
  ContextRank rank;
  autograd::AttentionArgs options;
  options.heads = spec.heads;
  options.kv_heads = spec.kv_heads;
  options.head_dim = spec.head_dim;
  options.causal = spec.causal;
  rank.tokens = group.tokens(group.rank());
  const Tensor x = state.random({spec.batch, rank.tokens.count(), whole.qkv.dim(2)}, 3, spec.dtype);
  const Tensor dy = state.random({spec.batch, rank.tokens.count(), whole.d_o.dim(2)}, 4, spec.dtype);
  move_tokens(x, whole.qkv, rank.tokens, false);
  move_tokens(dy, whole.d_o, rank.tokens, false);
  state.account.reset_peaks();
  for (int round = 0; round < rounds; ++round) {
    obs::TraceRow trace("attention", 64 + 8 * static_cast<size_t>(group.size()));
    ContextRank now = rank;
    now.waited_ms = 0;
    group.trace = &trace;
    group.waited_ms = &now.waited_ms;
    const Variable leaf = state.tape.leaf(x);
    if (group.comm) group.comm->barrier();
    const uint64_t before = sent_by(group.comm);
    int64_t begun = now_ns();
    const Variable y = method == ContextMethod::ring ? parallel::ring_attention(state.tape, leaf, options, group)
                                                     : parallel::ulysses_attention(state.tape, leaf, options, group);
    now.ms[0] = static_cast<double>(now_ns() - begun) * 1e-6;
    const uint64_t between = sent_by(group.comm);
    state.tape.seed(y, dy);
    begun = now_ns();
    state.tape.backward();
    now.ms[1] = static_cast<double>(now_ns() - begun) * 1e-6;
    const Tensor dx = state.tape.take_gradient(leaf);
    now.sent[0] = between - before;
    now.sent[1] = sent_by(group.comm) - between;
    read_steps(now, trace, group.size());
    if (round == 0 || now.ms[0] + now.ms[1] < rank.ms[0] + rank.ms[1]) rank = now;
    move_tokens(y.value(), whole.o, rank.tokens, true);
    move_tokens(dx, whole.dqkv, rank.tokens, true);
    state.tape.clear();
  }
  rank.peak_bytes = state.account.use(device::MemoryTier::device).peak;
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

ContextRank run_on_one(const ContextCase& spec, int rounds) {
  FullSequence whole(spec);
  ContextGroup alone;
  alone.length = spec.length;
  return run_rank(spec, whole, alone, ContextMethod::ring, rounds);
}

ContextRun run_context(const ContextCase& spec, ContextMethod method, ContextLayout layout, int rounds) {
  FullSequence shared(spec), plain(spec);
  ContextRun run;
  run.name = method == ContextMethod::ulysses ? "ulysses" : fmt::format("ring, {}", name_of(layout));
  run.ranks.resize(static_cast<size_t>(spec.num_ranks));
  net::run_threads(spec.num_ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    options.timeout = std::chrono::seconds(120);
    const auto comm = comm::make_communicator(world, world.world_group(), options);
    ContextGroup group;
    group.comm = comm.get();
    group.layout = layout;
    group.length = spec.length;
    group.timeout = options.timeout;
    run.ranks[static_cast<size_t>(comm->rank())] = run_rank(spec, shared, group, method, rounds);
  });
  ContextGroup alone;
  alone.length = spec.length;
  run_rank(spec, plain, alone, ContextMethod::ring, 1);
  run.error = std::max(distance(shared.o, plain.o), distance(shared.dqkv, plain.dqkv));
  return run;
}

}  // namespace esp::app
