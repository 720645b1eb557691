#include "esp/tensor/tensor.h"

#include <gtest/gtest.h>

namespace esp::tensor {
namespace {

constexpr auto kActivation = device::MemoryCategory::activation;

struct TensorTest : testing::Test {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  Context context{{}, &pool};
};

TEST_F(TensorTest, LastHandleReleasesMemory) {
  Tensor x = empty(context, {2, 3}, DType::f32, kActivation);
  Tensor row = x.slice(1, 2).reshape({3});
  EXPECT_FALSE(x.unique());
  x = {};
  EXPECT_TRUE(row.unique());
  EXPECT_EQ(account.use(kActivation).current, 24u);
  row = {};
  EXPECT_EQ(account.use(kActivation).current, 0u);
}

TEST_F(TensorTest, SlicesAndShapesShareElements) {
  Tensor x = zeros(context, {4, 3}, DType::f64, kActivation);
  x.slice(2, 4).as<double>()[4] = 7;  // element (3, 1) of x, because the slice begins at row 2
  EXPECT_EQ(item(x, 10), 7);
  EXPECT_EQ(item(x.reshape({2, 6}).slice(1, 2), 4), 7);
  EXPECT_EQ(x.shape().with_last(5).text(), "[4, 5]");
  EXPECT_EQ(Shape().count(), 1);
}

TEST_F(TensorTest, CastToBf16RoundsToNearestEvenAndKeepsShape) {
  Tensor x = zeros(context, {3}, DType::f32, kActivation);
  x.as<float>()[1] = 1.00390625f;  // halfway between two bf16 values: rounds to even
  Tensor y = cast_to(context, x, DType::bf16, kActivation);
  EXPECT_EQ(item(y, 1), 1.0);
  EXPECT_EQ(y.bytes(), 6u);
  EXPECT_EQ(y.shape(), x.shape());
}

TEST_F(TensorTest, BorrowedMemoryIsNotFreed) {
  float data[4] = {1, 2, 3, 4};
  { Tensor x = Tensor::borrow(data, {2, 2}, DType::f32); }
  EXPECT_EQ(account.use(kActivation).current, 0u);
  EXPECT_EQ(data[3], 4);
}

}  // namespace
}  // namespace esp::tensor
