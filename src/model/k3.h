// One pass of up to max_chunk tokens of one sequence through all layers (k3.cpp).
#pragma once

#include <string>

#include "model/model.h"
#include "model/scratch.h"

namespace halfbyte {

class Forward {
 public:
  // `tokens` ids of the sequence's next positions are in scratch.ids, in device memory.
  Forward(const Model& model, const PassScratch& scratch, Sequence& sequence, int64_t tokens,
          Trace* trace);

  void run();  // leaves the normed output of the last layer in scratch.normed

 private:
  void layer(int i);
  void kda(const KdaLayerWeights& w, Sequence::LayerCache& cache, TensorView x, TensorView out);
  void mla(const MlaLayerWeights& w, Sequence::LayerCache& cache, TensorView x, TensorView out);
  void mlp(const GatedMlpWeights& w, const MlpScratch& s, TensorView x, TensorView out);
  void moe(const MoeLayerWeights& w, TensorView x, TensorView out);

  TensorView mix(const float* score_weight);
  bool starts_block(int layer) const;
  TensorView first(const TensorView& view) const { return view.row_slice(0, tokens_); }
  TensorView residual(int block) const;
  void trace(const char* name, const TensorView& view);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Device& device_;
  Ops& ops_;
  PassScratch s_;
  Sequence& sequence_;
  int64_t tokens_;
  Trace* trace_;
  std::string trace_prefix_;
  int snapshots_ = 0;  // the running prefix lies behind them
};

}  // namespace halfbyte
