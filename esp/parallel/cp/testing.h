// Test support: runs one attention on a single device or on context-parallel ranks and gathers results and gradients.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "esp/autograd/functions/attention.h"
#include "esp/autograd/testing.h"
#include "esp/comm/test_options.h"
#include "esp/net/inproc/threads.h"
#include "esp/parallel/cp/context_group.h"
#include "esp/parallel/cp/strided_rows.h"

namespace esp::parallel {

using Attention = autograd::Variable (*)(autograd::Tape&, const autograd::Variable&, const autograd::AttentionArgs&,
                                         const ContextGroup&);

struct AttentionCase {
  int64_t B = 2, T = 40;
  autograd::AttentionArgs options;
  std::vector<int32_t> lengths;  // empty: no padding
  DType dtype = DType::f64;
  double scale = 1;  // scale of the random inputs

  int64_t q_width() const { return options.heads * options.head_dim; }
  int64_t row() const { return q_width() + 2 * options.kv_heads * options.head_dim; }
};

inline AttentionCase problem(int64_t T, int64_t heads, int64_t kv_heads, bool causal, DType dtype = DType::f64) {
  AttentionCase p;
  p.T = T;
  p.options.heads = heads;
  p.options.kv_heads = kv_heads;
  p.options.head_dim = 8;
  p.options.causal = causal;
  p.options.key = {3, 9};
  p.dtype = dtype;
  return p;
}

// Results for the whole sequence, as doubles.
struct AttentionResult {
  std::vector<double> o, dqkv;
};

// Traffic and peak memory of one rank.
struct AttentionTrace {
  std::vector<comm::CallStats> forward, both;  // counters since the communicator was created
  uint64_t peak_bytes = 0;
};

inline uint64_t sent(const std::vector<comm::CallStats>& stats) {
  uint64_t bytes = 0;
  for (const comm::CallStats& row : stats) bytes += row.bytes_sent;
  return bytes;
}

// Copies the rows of the local tokens from `all` to `held`; with `put`, from `held` to `all`.
inline void pick_tokens(const tensor::Tensor& held, const tensor::Tensor& all, const nn::TokenMap& tokens, bool put) {
  const int64_t width = all.dim(2), T = tokens.count();
  for (int64_t b = 0; b < all.dim(0); ++b) {
    int64_t token = 0;
    for (const nn::TokenRun& run : tokens.runs) {
      const StridedRows here{held, (b * T + token) * width, width},
          there{all, (b * tokens.length + run.first) * width, width};
      copy_rows(put ? there : here, put ? here : there, run.count, width, {});
      token += run.count;
    }
  }
}

inline std::vector<double> doubles(const tensor::Tensor& x) {
  std::vector<double> values;
  for (int64_t i = 0; i < x.count(); ++i) values.push_back(tensor::item(x, i));
  return values;
}

// `num_ranks` = 0 runs plain self attention on one device.
inline AttentionResult attend(
    const AttentionCase& p, int num_ranks, Attention attention, ContextLayout layout,
    std::vector<AttentionTrace>* traces = nullptr,
    const std::function<autograd::Variable(autograd::Tape&, const autograd::Variable&, const autograd::AttentionArgs&,
                                           const ContextGroup&)>& instead = nullptr) {
  autograd::TapeFixture whole;
  const tensor::Tensor qkv = whole.random({p.B, p.T, p.row()}, 1, p.scale, p.dtype);
  const tensor::Tensor d_o = whole.random({p.B, p.T, p.q_width()}, 2, 1, p.dtype);
  const tensor::Tensor o = whole.random(d_o.shape(), 3, 1, p.dtype), dqkv = whole.random(qkv.shape(), 4, 1, p.dtype);
  std::mutex gathering;  // guards o, dqkv and traces
  if (traces) traces->resize(static_cast<size_t>(std::max(num_ranks, 1)));
  auto body = [&](comm::Communicator* comm) {
    ContextGroup group;
    group.comm = comm;
    group.layout = layout;
    group.length = p.T;
    group.timeout = std::chrono::seconds(60);
    const nn::TokenMap tokens = group.tokens(group.rank());
    autograd::TapeFixture rig;
    autograd::AttentionArgs options = p.options;
    if (!p.lengths.empty()) options.key_lengths = rig.ids({p.B}, p.lengths);
    const tensor::Tensor x = rig.random({p.B, tokens.count(), p.row()}, 5, 1, p.dtype);
    const tensor::Tensor dy = rig.random({p.B, tokens.count(), p.q_width()}, 6, 1, p.dtype);
    pick_tokens(x, qkv, tokens, false);
    pick_tokens(dy, d_o, tokens, false);
    const autograd::Variable leaf = rig.tape.leaf(x);
    rig.account.reset_peaks();
    const autograd::Variable y = num_ranks == 0 ? autograd::self_attention(rig.tape, leaf, options)
                                 : instead      ? instead(rig.tape, leaf, options, group)
                                                : attention(rig.tape, leaf, options, group);
    AttentionTrace trace;
    if (comm) trace.forward = comm->stats();
    rig.tape.seed(y, dy);
    rig.tape.backward();
    const tensor::Tensor dx = rig.tape.take_gradient(leaf);
    if (comm) trace.both = comm->stats();
    trace.peak_bytes = rig.account.use(device::MemoryTier::device).peak;
    const std::lock_guard lock(gathering);
    pick_tokens(y.value(), o, tokens, true);
    pick_tokens(dx, dqkv, tokens, true);
    if (traces) (*traces)[static_cast<size_t>(group.rank())] = trace;
  };
  if (num_ranks <= 1)
    body(nullptr);
  else
    net::run_threads(num_ranks, [&](net::World& world) {
      auto comm = comm::make_communicator(world, world.world_group(), comm::test_options("inproc"));
      body(comm.get());
    });
  return {doubles(o), doubles(dqkv)};
}

}  // namespace esp::parallel
