// The reference form of every op without weights: scalar, one thread, statistics in double, written
// from the formulas of the model specification to be obviously right. The oracle of the
// differential test. Argument blocks and their shapes: kernels/op_args.h.
#pragma once

#include "base/result.h"
#include "device/device.h"
#include "kernels/op_args.h"

namespace nibble::kernels::reference {

Result<void> sparse_attention(const SparseAttentionArgs& args, device::Stream& stream);
Result<void> indexer_score(const IndexerScoreArgs& args, device::Stream& stream);
Result<void> top_k(const TopKArgs& args, device::Stream& stream);
Result<void> rms_norm(const RmsNormArgs& args, device::Stream& stream);
Result<void> rope(const RopeArgs& args, device::Stream& stream);
Result<void> hyper_pre(const HyperPreArgs& args, device::Stream& stream);
Result<void> hyper_post(const HyperPostArgs& args, device::Stream& stream);
Result<void> hyper_head(const HyperHeadArgs& args, device::Stream& stream);
Result<void> compress(const CompressArgs& args, device::Stream& stream);
Result<void> select_experts(const SelectExpertsArgs& args, device::Stream& stream);
Result<void> swiglu(const SwigluArgs& args, device::Stream& stream);
Result<void> combine_experts(const CombineExpertsArgs& args, device::Stream& stream);
Result<void> embed(const EmbedArgs& args, device::Stream& stream);

}  // namespace nibble::kernels::reference
