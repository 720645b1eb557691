// Attention computed from blocks of queries and keys must match attention computed in one call. Each block function
// must match its reference kernel (ref).
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "esp/kernel/attention.h"
#include "esp/kernel/test_arrays.h"

namespace esp::kernel {
namespace {

struct Block {
  int64_t query, num_queries, key, num_keys;
};

// Inputs of a test case: q and d_o [B, T, H·D], and packed keys and values [k | v] [B, T, 2·G·D].
struct Whole {
  int64_t B = 2, T, H, G, D;
  DType dtype;
  AttentionShape shape;
  std::vector<int32_t> lengths;
  Array q, kv, d_o;

  Whole(int64_t tokens, int64_t heads, int64_t groups, int64_t head_dim, bool causal, DType type)
      : T(tokens), H(heads), G(groups), D(head_dim), dtype(type) {
    q = Array::random(B * T * H * D, dtype, 1, 2);
    kv = Array::random(B * T * 2 * G * D, dtype, 2, 2);
    d_o = Array::random(B * T * H * D, dtype, 3, 2);
    shape.batch = B, shape.num_queries = shape.num_keys = T;
    shape.heads = H, shape.kv_heads = G, shape.head_dim = D;
    shape.q = shape.o = {T * H * D, H * D};
    shape.k = shape.v = {T * 2 * G * D, 2 * G * D};
    shape.causal = causal;
    shape.scale = 1 / std::sqrt(static_cast<double>(D));
    shape.key = {.seed = 5, .purpose = uint64_t{7} << 33};
  }

  const void* keys() const { return kv.data(); }
  const void* values() const { return at(kv.data(), G * D, dtype); }

  // The shape of one block. `block_lengths` stores its key lengths.
  AttentionShape part(const Block& block, std::vector<int32_t>& block_lengths) const {
    AttentionShape s = shape;
    s.num_queries = block.num_queries, s.num_keys = block.num_keys;
    s.causal_offset = block.query - block.key;
    s.lse_row = T;
    s.first_query = block.query, s.all_queries = T;
    s.first_key = block.key, s.all_keys = T;
    block_lengths.clear();
    for (int32_t length : lengths) block_lengths.push_back(length - static_cast<int32_t>(block.key));
    s.key_lengths = lengths.empty() ? nullptr : block_lengths.data();
    return s;
  }
};

struct Result {
  Array o, lse, dq, dkv;
};

// Reference result, computed in one call.
Result at_once(const Whole& w) {
  const DType sums = accumulator_of(w.dtype);
  Result r{Array(w.q.count(), w.dtype), Array(w.B * w.H * w.T, sums), Array(w.q.count(), w.dtype),
           Array(w.kv.count(), w.dtype)};
  AttentionShape s = w.shape;
  if (!w.lengths.empty()) s.key_lengths = w.lengths.data();
  ref::attention_forward(r.o.data(), r.lse.data(), w.q.data(), w.keys(), w.values(), s, w.dtype);
  ref::attention_backward(r.dq.data(), r.dkv.data(), at(r.dkv.data(), w.G * w.D, w.dtype), w.d_o.data(), r.o.data(),
                          w.q.data(), w.keys(), w.values(), r.lse.data(), s, w.dtype);
  return r;
}

// Computes attention block by block. Backward reads o and lse from `finished`, or, if it is null, from the forward
// results computed here. o and the gradients are in the accumulation type.
Result by_blocks(const Whole& w, const std::vector<Block>& blocks, bool by_ref, int num_threads,
                 const Result* finished = nullptr) {
  const Threads threads(num_threads);
  const DType sums = accumulator_of(w.dtype);
  Result r{Array(w.q.count(), sums), Array(w.B * w.H * w.T, sums), Array(w.q.count(), sums), Array(w.kv.count(), sums)};
  // o starts as NaN, because forward must not read rows that have no previous block.
  r.o.fill([](int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
  r.lse.fill([](int64_t) { return -std::numeric_limits<double>::infinity(); });
  std::vector<int32_t> lengths;
  auto query_at = [&](const Block& b) { return b.query * w.H * w.D; };
  auto key_at = [&](const Block& b) { return b.key * 2 * w.G * w.D; };
  for (const Block& b : blocks) {
    const AttentionShape s = w.part(b, lengths);
    const void* q = at(w.q.data(), query_at(b), w.dtype);
    const void *k = at(w.keys(), key_at(b), w.dtype), *v = at(w.values(), key_at(b), w.dtype);
    void *o = at(r.o.data(), query_at(b), sums), *lse = at(r.lse.data(), b.query, sums);
    if (by_ref)
      ref::attention_forward_block(o, lse, q, k, v, s, w.dtype);
    else
      attention_forward_block(o, lse, q, k, v, s, w.dtype, threads);
  }
  Array o(w.q.count(), w.dtype);  // in storage type, because a layer saves o in this type
  const Array& sums_of_o = finished ? finished->o : r.o;
  const Array& all_lse = finished ? finished->lse : r.lse;
  o.fill([&](int64_t i) { return sums_of_o[i]; });
  for (const Block& b : blocks) {
    const AttentionShape s = w.part(b, lengths);
    const AttentionSums to{at(r.dq.data(), query_at(b), sums),
                           at(r.dkv.data(), key_at(b), sums),
                           at(r.dkv.data(), key_at(b) + w.G * w.D, sums),
                           w.shape.q,
                           w.shape.k,
                           w.shape.v};
    const void *q = at(w.q.data(), query_at(b), w.dtype), *d_o = at(w.d_o.data(), query_at(b), w.dtype);
    const void *k = at(w.keys(), key_at(b), w.dtype), *v = at(w.values(), key_at(b), w.dtype);
    const void *out = at(o.data(), query_at(b), w.dtype), *lse = at(all_lse.data(), b.query, sums);
    std::vector<std::byte> workspace(static_cast<size_t>(attention_workspace_bytes(s, w.dtype, threads)));
    if (by_ref)
      ref::attention_backward_block(to, d_o, out, q, k, v, lse, s, w.dtype);
    else
      attention_backward_block(to, d_o, out, q, k, v, lse, workspace.data(), s, w.dtype, threads);
  }
  return r;
}

// Splits queries × keys into six blocks, with the key blocks out of order. Every query row gets its keys in three
// blocks.
std::vector<Block> tiling(int64_t T) {
  const int64_t q = T / 3, k = T / 4, l = T - T / 5;
  return {{0, q, k, l - k},     {q, T - q, k, l - k}, {0, q, 0, k},
          {q, T - q, l, T - l}, {0, q, l, T - l},     {q, T - q, 0, k}};
}

void expect_all_near(const Result& got, const Result& want, double places, const std::string& where) {
  expect_near(got.o, want.o, places, 1, "o, " + where);
  expect_near(got.lse, want.lse, 8, 4, "lse, " + where);
  expect_near(got.dq, want.dq, 8 * places, 8, "dq, " + where);
  expect_near(got.dkv, want.dkv, 8 * places, 8, "dk and dv, " + where);
}

std::vector<Whole> problems(DType dtype) {
  std::vector<Whole> list;
  for (bool causal : {false, true}) {
    list.emplace_back(133, 2, 2, 16, causal, dtype);
    list.emplace_back(70, 4, 2, 24, causal, dtype);
    list.back().shape.dropout = 0.25;
    list.back().shape.first_head = 3, list.back().shape.all_heads = 9;
    list.emplace_back(90, 3, 1, 32, causal, dtype);
    list.back().lengths = {17, 80};
    list.emplace_back(12, 2, 1, 5, causal, dtype);
    list.back().lengths = {0, 12};
  }
  return list;
}

TEST(AttentionBlocks, CombineToFullAttention) {
  for_each_target([](const std::string& target) {
    for (DType dtype : {DType::f64, DType::f32})
      for (const Whole& w : problems(dtype)) {
        const std::string where = fmt::format("{} {} T {} causal {}", target, name_of(dtype), w.T, w.shape.causal);
        expect_all_near(by_blocks(w, tiling(w.T), false, 1), at_once(w), 64, where);
      }
  });
}

TEST(AttentionBlocks, BlockFunctionsMatchRef) {
  for_each_target([](const std::string& target) {
    for (DType dtype : kFloating)
      for (const Whole& w : problems(dtype)) {
        const std::string where = fmt::format("{} {} T {} causal {}", target, name_of(dtype), w.T, w.shape.causal);
        const Result want = by_blocks(w, tiling(w.T), true, 1), got = by_blocks(w, tiling(w.T), false, 1, &want);
        expect_all_near(got, want, 64, where);
      }
  });
}

TEST(AttentionBlocks, ResultsAreBitIdenticalForAnyNumberOfThreads) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Whole& w : problems(dtype)) {
      const Result one = by_blocks(w, tiling(w.T), false, 1);
      for (int threads : {2, 5}) {
        const Result many = by_blocks(w, tiling(w.T), false, threads);
        EXPECT_TRUE(many.o.same_bits(one.o) && many.lse.same_bits(one.lse) && many.dq.same_bits(one.dq) &&
                    many.dkv.same_bits(one.dkv))
            << w.T << " tokens, " << threads << " threads";
      }
    }
}

// With add_q = add_kv = false the gradients are overwritten. Their strides differ from the strides of q, k and v, and
// the gaps between rows are not written.
TEST(AttentionBlocks, WriteGradientsWithGivenStrides) {
  const Whole w(40, 2, 2, 8, true, DType::f32);
  const Result want = by_blocks(w, {{0, 40, 0, 40}}, false, 1);
  const int64_t width = w.H * w.D, gap = 5, token = width + gap;
  Array dq(w.B * w.T * token, DType::f32), dk = dq, dv = dq;
  for (Array* x : {&dq, &dk, &dv}) x->fill([](int64_t) { return 77.0; });
  AttentionSums to{dq.data(), dk.data(), dv.data(), {w.T * token, token}, {w.T * token, token}, {w.T * token, token}};
  to.add_q = to.add_kv = false;
  std::vector<std::byte> workspace(static_cast<size_t>(attention_workspace_bytes(w.shape, DType::f32, {})));
  attention_backward_block(to, w.d_o.data(), want.o.data(), w.q.data(), w.keys(), w.values(), want.lse.data(),
                           workspace.data(), w.shape, DType::f32, {});
  for (int64_t row = 0; row < w.B * w.T; ++row)
    for (int64_t i = 0; i < token; ++i) {
      EXPECT_EQ(dq[row * token + i], i < width ? want.dq[row * width + i] : 77.0);
      EXPECT_EQ(dk[row * token + i], i < width ? want.dkv[row * 2 * width + i] : 77.0);
      EXPECT_EQ(dv[row * token + i], i < width ? want.dkv[row * 2 * width + width + i] : 77.0);
    }
}

}  // namespace
}  // namespace esp::kernel
