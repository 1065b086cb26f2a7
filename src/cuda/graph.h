// Work captured once and replayed as one launch, and the time between two points of a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

namespace halfbyte {

// A CUDA graph, ready to launch.
class CudaGraph {
 public:
  // Captures what `work` queues on `stream` (not the default stream). What `work` throws is thrown
  // again, with the stream out of its capture. Kernels should have run once before.
  CudaGraph(cudaStream_t stream, const std::function<void()>& work);
  CudaGraph(CudaGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  CudaGraph& operator=(CudaGraph&&) = delete;
  ~CudaGraph();

  void launch(cudaStream_t stream) const;

 private:
  cudaGraphExec_t graph_ = nullptr;
};

// A point in a stream.
class CudaEvent {
 public:
  CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&&) = delete;
  ~CudaEvent();

  void record(cudaStream_t stream);
  void wait() const;                                   // on the host
  double seconds_since(const CudaEvent& begin) const;  // both recorded, this one waited for

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace halfbyte
