#include "cuda/graph.h"

#include "cuda/check.h"

namespace halfbyte {

CudaGraph::CudaGraph(cudaStream_t stream, const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  HB_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // an invalidated capture leaves its error behind
    throw;
  }
  HB_CUDA(cudaStreamEndCapture(stream, &graph));
  const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  HB_CUDA(made);
}

CudaGraph::~CudaGraph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

void CudaGraph::launch(cudaStream_t stream) const { HB_CUDA(cudaGraphLaunch(graph_, stream)); }

CudaEvent::CudaEvent() { HB_CUDA(cudaEventCreate(&event_)); }

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void CudaEvent::record(cudaStream_t stream) { HB_CUDA(cudaEventRecord(event_, stream)); }

void CudaEvent::wait() const { HB_CUDA(cudaEventSynchronize(event_)); }

double CudaEvent::seconds_since(const CudaEvent& begin) const {
  float milliseconds = 0;
  HB_CUDA(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
  return double{milliseconds} * 1e-3;
}

}  // namespace halfbyte
