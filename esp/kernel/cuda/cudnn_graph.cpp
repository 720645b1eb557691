#include "esp/kernel/cuda/cudnn_graph.h"

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::kernel::cuda {

void cudnn_failed(cudnnStatus_t status, const char* call, const char* file, int line) {
  throw DeviceError(fmt::format("cuDNN call {} failed at {}:{}: {}", call, file, line, cudnnGetErrorString(status)));
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t made = nullptr;
  ESP_CUDNN_CHECK(cudnnBackendCreateDescriptor(type, &made));
  one_ = std::shared_ptr<void>(made, [](void* one) { cudnnBackendDestroyDescriptor(one); });
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                     const void* values) {
  ESP_CUDNN_CHECK(cudnnBackendSetAttribute(get(), name, type, count, values));
}
void Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& other) {
  const cudnnBackendDescriptor_t one = other.get();
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one);
}
void Descriptor::set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}
void Descriptor::set(cudnnBackendAttributeName_t name, int64_t value) {
  set(name, CUDNN_TYPE_INT64, 1, &value);
}
void Descriptor::set(cudnnBackendAttributeName_t name, bool value) {
  set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
}
cudnnStatus_t Descriptor::finalize() {
  return cudnnBackendFinalize(get());
}

GraphTensor CudnnGraph::make(int64_t id, cudnnDataType_t type, const Shape4& dims, const Shape4& strides,
                             bool is_virtual, bool by_value) {
  GraphTensor made{Descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR), id, dims, strides};
  made.descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  made.descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  made.descriptor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data());
  made.descriptor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  made.descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16});
  made.descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual);
  made.descriptor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value);
  ESP_CUDNN_CHECK(made.descriptor.finalize());
  kept_.push_back(made.descriptor);
  return made;
}

GraphTensor CudnnGraph::tensor(int64_t id, cudnnDataType_t type, const Shape4& dims, const Shape4& strides) {
  return make(id, type, dims, strides, false, false);
}
GraphTensor CudnnGraph::value(int64_t id, cudnnDataType_t type) {
  return make(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
}
GraphTensor CudnnGraph::virtual_tensor(const Shape4& dims, cudnnDataType_t type) {
  return virtual_tensor(dims, {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1}, type);
}
GraphTensor CudnnGraph::virtual_tensor(const Shape4& dims, const Shape4& strides, cudnnDataType_t type) {
  return make(next_virtual_++, type, dims, strides, true, false);
}

void CudnnGraph::apply(cudnnPointwiseMode_t mode, const GraphTensor& y, const GraphTensor& x, const GraphTensor* b,
                       const GraphTensor* t, cudnnDataType_t compute, int64_t axis) {
  Descriptor what(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  what.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  what.set(CUDNN_ATTR_POINTWISE_MATH_PREC, compute);
  if (axis >= 0) what.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  ESP_CUDNN_CHECK(what.finalize());
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.descriptor);
  if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->descriptor);
  if (t) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->descriptor);
  ESP_CUDNN_CHECK(operation.finalize());
  kept_.push_back(what);
  operations_.push_back(operation);
}

GraphTensor CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const GraphTensor& x, const GraphTensor& b) {
  GraphTensor y = virtual_tensor(x.dims);
  apply(mode, y, x, &b);
  return y;
}
GraphTensor CudnnGraph::pointwise(cudnnPointwiseMode_t mode, const GraphTensor& x) {
  GraphTensor y = virtual_tensor(x.dims);
  apply(mode, y, x);
  return y;
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t op, const GraphTensor& y, const GraphTensor& x) {
  Descriptor what(CUDNN_BACKEND_REDUCTION_DESCRIPTOR), operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  what.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
  what.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  ESP_CUDNN_CHECK(what.finalize());
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, what);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor);
  ESP_CUDNN_CHECK(operation.finalize());
  kept_.push_back(what);
  operations_.push_back(operation);
}

void CudnnGraph::matmul(const GraphTensor& c, const GraphTensor& a, const GraphTensor& b, const Lengths& lengths) {
  Descriptor what(CUDNN_BACKEND_MATMUL_DESCRIPTOR), operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  what.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  ESP_CUDNN_CHECK(what.finalize());
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, what);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor);
  if (lengths.m) operation.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, lengths.m->descriptor);
  if (lengths.n) operation.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, lengths.n->descriptor);
  if (lengths.k) operation.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, lengths.k->descriptor);
  ESP_CUDNN_CHECK(operation.finalize());
  kept_.push_back(what);
  operations_.push_back(operation);
}

void CudnnGraph::reshape(const GraphTensor& y, const GraphTensor& x) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor);
  ESP_CUDNN_CHECK(operation.finalize());
  operations_.push_back(operation);
}

std::optional<CudnnPlan> CudnnGraph::plan() {
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR), heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const Descriptor& one : operations_) operations.push_back(one.get());
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(operations.size()),
            operations.data());
  if (graph.finalize() != CUDNN_STATUS_SUCCESS) return std::nullopt;
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (heuristic.finalize() != CUDNN_STATUS_SUCCESS) return std::nullopt;

  constexpr int64_t kCandidates = 8;
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < kCandidates; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(configs.back().get());
  }
  int64_t found = 0;
  if (cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                               kCandidates, &found, raw.data()) != CUDNN_STATUS_SUCCESS)
    return std::nullopt;
  for (int64_t i = 0; i < std::min(found, kCandidates); ++i) {
    CudnnPlan made;
    made.plan_ = Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    made.plan_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
    made.plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[static_cast<size_t>(i)]);
    if (made.plan_.finalize() != CUDNN_STATUS_SUCCESS) continue;
    int64_t count = 0;
    ESP_CUDNN_CHECK(cudnnBackendGetAttribute(made.plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                             CUDNN_TYPE_INT64, 1, &count, &made.workspace_bytes_));
    made.kept_ = kept_;
    made.kept_.insert(made.kept_.end(), operations_.begin(), operations_.end());
    made.kept_.push_back(graph);
    made.kept_.push_back(configs[static_cast<size_t>(i)]);
    return made;
  }
  return std::nullopt;
}

void CudnnPlan::run(cudnnHandle_t handle, const std::vector<int64_t>& ids, const std::vector<void*>& addresses,
                    void* workspace) const {
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const auto count = static_cast<int64_t>(ids.size());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  ESP_CUDNN_CHECK(pack.finalize());
  ESP_CUDNN_CHECK(cudnnBackendExecute(handle, plan_.get(), pack.get()));
}

}  // namespace esp::kernel::cuda
