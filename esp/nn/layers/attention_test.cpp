// Compares attention with the textbook formula.
#include "esp/nn/layers/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "esp/autograd/functions/attention.h"
#include "esp/autograd/testing.h"

namespace esp::nn {
namespace {

using autograd::TapeFixture;
using autograd::Variable;
using Matrix = std::vector<std::vector<double>>;

Matrix make(size_t rows, size_t cols) {
  return Matrix(rows, std::vector<double>(cols));
}
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c = make(a.size(), b[0].size());
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t k = 0; k < b.size(); ++k)
      for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
  return c;
}
Matrix transposed(const Matrix& a) {
  Matrix t = make(a[0].size(), a.size());
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}
Matrix softmax_rows(Matrix a) {
  for (auto& row : a) {
    double sum = 0;
    for (double& v : row) sum += v = std::exp(v);
    for (double& v : row) v /= sum;
  }
  return a;
}
Matrix scaled(Matrix a, double by) {
  for (auto& row : a)
    for (double& v : row) v *= by;
  return a;
}
// Columns [first, first + cols) of every row of x.
Matrix columns(const tensor::Tensor& x, int64_t first, int64_t cols) {
  Matrix m = make(static_cast<size_t>(x.rows()), static_cast<size_t>(cols));
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t c = 0; c < cols; ++c)
      m[static_cast<size_t>(r)][static_cast<size_t>(c)] = x.as<double>()[r * x.dim(-1) + first + c];
  return m;
}

// Three ways to compute the same attention: tokens as rows, softmax(QKᵀ/√d)V; tokens as columns, V·softmax(KᵀQ/√d); and
// autograd::self_attention.
TEST(Attention, RowWiseAndColumnWiseFormulasMatch) {
  TapeFixture rig;
  constexpr int64_t T = 5, D = 4;
  const tensor::Tensor qkv = rig.random({1, T, 3 * D}, 1);
  const Matrix q = columns(qkv, 0, D), k = columns(qkv, D, D), v = columns(qkv, 2 * D, D);
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  const Matrix weights = softmax_rows(scaled(product(q, transposed(k)), scale));
  for (const auto& row : weights) {
    double sum = 0;
    for (double w : row) sum += w;
    EXPECT_NEAR(sum, 1, 1e-14);
  }
  const Matrix row_form = product(weights, v);
  const Matrix down = transposed(softmax_rows(transposed(scaled(product(k, transposed(q)), scale))));
  const Matrix column_form = transposed(product(transposed(v), down));

  autograd::AttentionArgs o;
  o.heads = o.kv_heads = 1;
  o.head_dim = D;
  const Matrix ours = columns(autograd::self_attention(rig.tape, qkv, o).value(), 0, D);
  for (size_t t = 0; t < T; ++t)
    for (size_t d = 0; d < D; ++d) {
      EXPECT_NEAR(row_form[t][d], column_form[t][d], 1e-14);
      EXPECT_NEAR(ours[t][d], row_form[t][d], 1e-14);
    }
}

TEST(Attention, OutputProjectionIsSumOverHeads) {
  TapeFixture rig;
  ParameterList list;
  AttentionOptions o;
  o.dim = 6;
  o.heads = o.kv_heads = 3;
  o.head_dim = 2;
  o.bias = false;
  o.init = o.out_init = Init::normal(0.5);
  const SelfAttention layer(list, "a", o);
  list.materialize(rig.context, DType::f64, false);
  list.initialise(1, rig.context.stream);
  ForwardContext pass;
  pass.tape = &rig.tape;
  const tensor::Tensor x = rig.random({1, 4, 6}, 2);
  const tensor::Tensor y = layer(pass, x, {}).value();

  const Matrix qkv = product(columns(x, 0, 6), columns(list.find("a.qkv.weight").weight.value, 0, 18));
  const Matrix w = columns(list.find("a.out.weight").weight.value, 0, 6);
  Matrix sum = make(4, 6);
  for (size_t h = 0; h < 3; ++h) {
    const auto part = [&](size_t first) {
      Matrix m = make(4, 2);
      for (size_t t = 0; t < 4; ++t)
        for (size_t d = 0; d < 2; ++d) m[t][d] = qkv[t][first + 2 * h + d];
      return m;
    };
    const Matrix head =
        product(softmax_rows(scaled(product(part(0), transposed(part(6))), 1 / std::sqrt(2.0))), part(12));
    const Matrix projected = product(head, {w[2 * h], w[2 * h + 1]});
    for (size_t t = 0; t < 4; ++t)
      for (size_t c = 0; c < 6; ++c) sum[t][c] += projected[t][c];
  }
  const Matrix ours = columns(y, 0, 6);
  for (size_t t = 0; t < 4; ++t)
    for (size_t c = 0; c < 6; ++c) EXPECT_NEAR(ours[t][c], sum[t][c], 1e-13);
}

// Measures the 5×5 causal mask through the gradients: output i depends on value j if and only if j ≤ i.
TEST(Attention, CausalMaskIsLowerTriangular) {
  TapeFixture rig;
  constexpr int64_t T = 5;
  autograd::AttentionArgs o;
  o.heads = o.kv_heads = 1;
  o.head_dim = 2;
  o.causal = true;
  for (int64_t i = 0; i < T; ++i) {
    const Variable qkv = rig.tape.leaf(rig.random({1, T, 6}, 1));
    const tensor::Tensor probe = tensor::zeros(rig.context, {1, T, 2}, DType::f64, device::MemoryCategory::other);
    probe.as<double>()[i * 2] = 1;
    rig.tape.seed(autograd::self_attention(rig.tape, qkv, o), probe);
    rig.tape.backward();
    const Matrix d = columns(rig.tape.take_gradient(qkv), 0, 6);
    for (int64_t j = 0; j < T; ++j) {
      const auto& row = d[static_cast<size_t>(j)];
      if (j <= i) {
        EXPECT_NE(row[4], 0) << i << j;
      } else {
        EXPECT_EQ(row, std::vector<double>(6, 0)) << i << j;
      }
    }
    rig.tape.clear();
  }
}

}  // namespace
}  // namespace esp::nn
