// Compares cuDNN, the tile kernels and the decoding kernel with the reference kernels (ref), for different masks, head
// groups, key lengths and strides.
#include "esp/kernel/attention.h"

#include "esp/kernel/cuda/attention_settings.h"
#include "esp/kernel/cuda/test_gpu.h"

namespace esp::kernel {
namespace {

class AttentionOnGpu : public GpuTest {
 protected:
  // q, k and v in one buffer with rows [q | k | v], as a projection writes them.
  static AttentionShape packed(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads,
                               int64_t head_dim) {
    AttentionShape s;
    s.batch = batch, s.num_queries = queries, s.num_keys = keys;
    s.heads = heads, s.kv_heads = kv_heads, s.head_dim = head_dim;
    s.scale = 1 / std::sqrt(static_cast<double>(head_dim));
    const int64_t row = (heads + 2 * kv_heads) * head_dim, length = std::max(queries, keys);
    s.q = s.k = s.v = {length * row, row};
    s.o = {queries * heads * head_dim, heads * head_dim};
    return s;
  }

  void check(AttentionShape s, DType dtype, const std::vector<int32_t>& lengths = {}, bool backward = true) {
    const int64_t rows = s.batch * std::max(s.num_queries, s.num_keys), D = s.head_dim;
    const std::string where =
        fmt::format("{} B{} Tq{} Tk{} H{}/{} D{}{}{}{}{}", name_of(dtype), s.batch, s.num_queries, s.num_keys, s.heads,
                    s.kv_heads, D, s.causal ? " causal" : "", s.causal_offset ? " offset" : "",
                    lengths.empty() ? "" : " lengths", s.dropout > 0 ? " dropout" : "");
    const DType wide = accumulator_of(dtype);
    Array x = Array::random(rows * s.q.token, dtype, 1, 2), o(s.batch * s.o.batch, dtype);
    Array lse(s.batch * s.heads * s.num_queries, wide), d_o = Array::random(o.count(), dtype, 2);
    GpuVector<int32_t> on_lengths(*this, lengths);
    GpuArray on_x(*this, x), on_o(*this, o), on_lse(*this, lse), on_do(*this, d_o);
    auto part = [&](void* base, int64_t heads) { return at(base, heads * D, dtype); };
    AttentionShape on = s;
    if (!lengths.empty()) s.key_lengths = lengths.data(), on.key_lengths = on_lengths;
    attention_forward(on_o, on_lse, on_x, part(on_x, s.heads), part(on_x, s.heads + s.kv_heads), on, dtype, stream);
    ref::attention_forward(o.data(), lse.data(), x.data(), part(x.data(), s.heads),
                           part(x.data(), s.heads + s.kv_heads), s, dtype);
    // Tolerance of two roundings: the kernel rounds probabilities to storage type before multiplying them by the
    // values.
    expect_close(on_o.fetch(), o, 2 * rounding(dtype), where + " o");
    expect_close(on_lse.fetch(), lse, std::max(rounding(wide), dtype == DType::f64 ? 0 : 1e-5), where + " lse");
    if (!backward) return;
    Array dx(x.count(), dtype);
    dx.fill([](int64_t) { return 7.0; });
    GpuArray on_dx(*this, dx), back_o(*this, o), back_lse(*this, lse);
    const int64_t bytes = attention_workspace_bytes(on, dtype, stream);
    GpuBuffer workspace(*this, std::vector<std::byte>(static_cast<size_t>(bytes)).data(), static_cast<size_t>(bytes),
                        0);
    auto run = [&](void* to) {
      attention_backward(to, part(to, s.heads), part(to, s.heads + s.kv_heads), on_do, back_o, on_x,
                         part(on_x, s.heads), part(on_x, s.heads + s.kv_heads), back_lse, workspace.data(), on, dtype,
                         stream);
    };
    run(on_dx);
    ref::attention_backward(dx.data(), part(dx.data(), s.heads), part(dx.data(), s.heads + s.kv_heads), d_o.data(),
                            o.data(), x.data(), part(x.data(), s.heads), part(x.data(), s.heads + s.kv_heads),
                            lse.data(), s, dtype);
    // Also compares element by element, to detect a gradient that was written to the wrong query or key.
    const Array got = on_dx.fetch();
    expect_close(got, dx, (dtype == DType::bf16 || dtype == DType::f16 ? 3 : 10) * rounding(dtype),
                 where + " backward");
    run(on_dx);
    if (cuda::attention_settings(stream).deterministic) {
      EXPECT_TRUE(on_dx.fetch().same_bits(got)) << where << " backward is not deterministic";
    }
  }

  void check_shapes(DType dtype) {
    for (bool causal : {false, true})
      for (auto [B, T, H, G, D] : {std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>{2, 64, 2, 2, 64},
                                   {1, 200, 4, 2, 64},
                                   {2, 129, 3, 1, 128},
                                   {1, 33, 2, 2, 32},
                                   {2, 50, 1, 1, 24},
                                   {1, 40, 2, 2, 20},
                                   {1, 7, 2, 1, 7}}) {
        AttentionShape s = packed(B, T, T, H, G, D);
        s.causal = causal;
        check(s, dtype);
      }
  }
};

TEST_F(AttentionOnGpu, MatchesRefInSixteenBitTypes) {
  check_shapes(DType::bf16);
  check_shapes(DType::f16);
}

TEST_F(AttentionOnGpu, MatchesRefWithoutCudnn) {
  cuda::set_attention({.cudnn = false}, stream);
  for (DType dtype : kFloating) check_shapes(dtype);
}

TEST_F(AttentionOnGpu, MatchesRefWhenNonDeterministic) {
  cuda::set_attention({.deterministic = false}, stream);
  check_shapes(DType::bf16);
}

TEST_F(AttentionOnGpu, MatchesRefWithCausalOffsets) {
  for (DType dtype : {DType::bf16, DType::f32}) {
    AttentionShape s = packed(2, 48, 112, 2, 2, 64);
    check(s, dtype);
    s.causal = true;
    check(s, dtype);
    s.causal_offset = 64;
    check(s, dtype);
    s.causal_offset = 10;
    check(s, dtype);
    s.causal_offset = -5;  // queries 0 to 4 have no visible keys
    check(s, dtype);
  }
}

TEST_F(AttentionOnGpu, MatchesRefWithKeyLengths) {
  for (DType dtype : {DType::bf16, DType::f32})
    for (bool causal : {false, true}) {
      AttentionShape s = packed(4, 96, 96, 4, 2, 64);
      s.causal = causal;
      check(s, dtype, {96, 1, 50, 33});
    }
}

TEST_F(AttentionOnGpu, MatchesRefWhenSequenceHasNoKeys) {
  for (DType dtype : {DType::bf16, DType::f32}) check(packed(3, 64, 64, 2, 2, 64), dtype, {64, 0, 20});
}

TEST_F(AttentionOnGpu, DropoutMaskMatchesCpu) {
  for (DType dtype : {DType::bf16, DType::f32}) {
    AttentionShape s = packed(2, 40, 40, 2, 1, 32);
    s.causal = true;
    s.dropout = 0.3;
    s.key = {5, 9};
    s.first_batch = 3;
    check(s, dtype);
  }
}

TEST_F(AttentionOnGpu, MatchesRefWhenDecoding) {
  for (DType dtype : kFloating)
    for (auto [B, queries, keys, H, G, D] :
         {std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t>{2, 1, 700, 4, 4, 64},
          {3, 1, 1500, 8, 2, 128},
          {1, 2, 3000, 4, 1, 64}}) {
      AttentionShape s = packed(B, queries, keys, H, G, D);
      check(s, dtype, {}, false);
      s.causal = true;
      s.causal_offset = keys - queries - 3;
      check(s, dtype, {}, false);
      std::vector<int32_t> lengths(static_cast<size_t>(B), 600);
      lengths[0] = 5;
      check(s, dtype, lengths, false);
    }
}

TEST_F(AttentionOnGpu, KeyBlocksCombineToFullAttention) {
  for (DType dtype : kFloating) {
    AttentionShape s = packed(2, 70, 70, 4, 2, 32);
    const DType wide = accumulator_of(dtype);
    const int64_t D = s.head_dim, row = s.q.token;
    Array x = Array::random(s.batch * 70 * row, dtype, 1, 2), o(s.batch * s.o.batch, wide),
          lse(s.batch * s.heads * 70, wide);
    lse.fill([](int64_t) { return -std::numeric_limits<double>::infinity(); });
    GpuArray on_x(*this, x), on_o(*this, o), on_lse(*this, lse);
    auto part = [&](void* base, int64_t heads, int64_t first) { return at(base, heads * D + first * row, dtype); };
    Array d_o = Array::random(o.count(), dtype, 3), dx(x.count(), wide);
    Array narrow_o(o.count(), dtype);
    GpuArray on_do(*this, d_o), on_dx(*this, dx);
    auto block = [&](int64_t first, int64_t keys) {
      AttentionShape b = s;
      b.num_keys = keys, b.causal = true, b.causal_offset = -first;
      return b;
    };
    for (auto [first, keys] : {std::pair<int64_t, int64_t>{0, 40}, {40, 30}}) {
      const AttentionShape b = block(first, keys);
      attention_forward_block(on_o, on_lse, on_x, part(on_x, s.heads, first), part(on_x, s.heads + s.kv_heads, first),
                              b, dtype, stream);
      ref::attention_forward_block(o.data(), lse.data(), x.data(), part(x.data(), s.heads, first),
                                   part(x.data(), s.heads + s.kv_heads, first), b, dtype);
    }
    expect_close(on_o.fetch(), o, rounding(dtype), "o");
    expect_close(on_lse.fetch(), lse, dtype == DType::f64 ? 1e-12 : 1e-6, "lse");
    narrow_o.fill([&](int64_t i) { return o[i]; });
    GpuArray back_o(*this, narrow_o), back_lse(*this, lse);
    for (auto [first, keys] : {std::pair<int64_t, int64_t>{0, 40}, {40, 30}}) {
      const AttentionShape b = block(first, keys);
      const int64_t bytes = attention_workspace_bytes(b, dtype, stream);
      GpuBuffer workspace(*this, std::vector<std::byte>(static_cast<size_t>(bytes)).data(), static_cast<size_t>(bytes),
                          0);
      auto sums = [&, first = first](void* base) {
        return AttentionSums{base,
                             at(base, s.heads * D + first * row, wide),
                             at(base, (s.heads + s.kv_heads) * D + first * row, wide),
                             s.q,
                             s.k,
                             s.v,
                             true,
                             true};
      };
      attention_backward_block(sums(on_dx), on_do, back_o, on_x, part(on_x, s.heads, first),
                               part(on_x, s.heads + s.kv_heads, first), back_lse, workspace.data(), b, dtype, stream);
      ref::attention_backward_block(sums(dx.data()), d_o.data(), narrow_o.data(), x.data(),
                                    part(x.data(), s.heads, first), part(x.data(), s.heads + s.kv_heads, first),
                                    lse.data(), b, dtype);
    }
    expect_close(on_dx.fetch(), dx, 10 * rounding(wide), "gradients");
  }
}

}  // namespace
}  // namespace esp::kernel
