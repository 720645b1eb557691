// A small cuDNN operation graph: tensors, operations, and the execution plan that cuDNN builds from them.
//
// Tensors have ids. Virtual tensors exist only inside the fused kernel. The other tensors get their addresses when a
// plan runs. Not thread-safe.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace esp::kernel::cuda {

[[noreturn]] void cudnn_failed(cudnnStatus_t status, const char* call, const char* file, int line);
#define ESP_CUDNN_CHECK(call)                                                        \
  do {                                                                               \
    if (const cudnnStatus_t esp_status = (call); esp_status != CUDNN_STATUS_SUCCESS) \
      ::esp::kernel::cuda::cudnn_failed(esp_status, #call, __FILE__, __LINE__);      \
  } while (0)

using Shape4 = std::array<int64_t, 4>;

// A cuDNN backend descriptor. It is reference-counted, because operations, graphs and plans refer to the descriptors
// they were made from.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);
  void set(cudnnBackendAttributeName_t name, const Descriptor& other);
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value);
  void set(cudnnBackendAttributeName_t name, int64_t value);
  void set(cudnnBackendAttributeName_t name, bool value);
  cudnnStatus_t finalize();
  cudnnBackendDescriptor_t get() const { return one_.get(); }

 private:
  std::shared_ptr<void> one_;
};

struct GraphTensor {
  Descriptor descriptor;
  int64_t id = 0;
  Shape4 dims{}, strides{};
};

class CudnnPlan {
 public:
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // addresses[i] is the address of tensor ids[i]: a host address for a scalar passed from the host, else a device
  // address.
  void run(cudnnHandle_t handle, const std::vector<int64_t>& ids, const std::vector<void*>& addresses,
           void* workspace) const;

 private:
  friend class CudnnGraph;
  std::vector<Descriptor> kept_;
  Descriptor plan_;
  int64_t workspace_bytes_ = 0;
};

class CudnnGraph {
 public:
  explicit CudnnGraph(cudnnHandle_t handle) : handle_(handle) {}

  GraphTensor tensor(int64_t id, cudnnDataType_t type, const Shape4& dims, const Shape4& strides);
  GraphTensor value(int64_t id, cudnnDataType_t type);  // a scalar passed from the host
  GraphTensor virtual_tensor(const Shape4& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  GraphTensor virtual_tensor(const Shape4& dims, const Shape4& strides, cudnnDataType_t type);

  void apply(cudnnPointwiseMode_t mode, const GraphTensor& y, const GraphTensor& x, const GraphTensor* b = nullptr,
             const GraphTensor* t = nullptr, cudnnDataType_t compute = CUDNN_DATA_FLOAT, int64_t axis = -1);
  // Like apply, but creates the result: a virtual tensor with x's dimensions.
  GraphTensor pointwise(cudnnPointwiseMode_t mode, const GraphTensor& x, const GraphTensor& b);
  GraphTensor pointwise(cudnnPointwiseMode_t mode, const GraphTensor& x);
  void reduce(cudnnReduceTensorOp_t op, const GraphTensor& y, const GraphTensor& x);
  // Per-sequence lengths for a matmul. If given, they replace the dimensions m, n or k of the tensors.
  struct Lengths {
    const GraphTensor *m = nullptr, *n = nullptr, *k = nullptr;
  };
  void matmul(const GraphTensor& c, const GraphTensor& a, const GraphTensor& b, const Lengths& lengths);
  void reshape(const GraphTensor& y, const GraphTensor& x);

  // Builds the plan with the first engine that works, in the order of cuDNN's heuristic. Returns nullopt if cuDNN has
  // no kernel for the graph.
  std::optional<CudnnPlan> plan();

 private:
  GraphTensor make(int64_t id, cudnnDataType_t type, const Shape4& dims, const Shape4& strides, bool is_virtual,
                   bool by_value);
  cudnnHandle_t handle_;
  int64_t next_virtual_ = 1000;
  std::vector<Descriptor> kept_, operations_;
};

}  // namespace esp::kernel::cuda
