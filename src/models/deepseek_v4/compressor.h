// The compressors of a layer (spec 3.5): projections of the pass's tokens become entries in the
// page pools.
#pragma once

#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4 {

// Adds ape to the gates in `projections`, forms every entry that the batch completes, stores it,
// and keeps the last rows for the next pass.   projections: [m, compressor row + Hi] f32, output of
// compressor_projections
Result<void> run_compressors(Pass& pass,
                             const AttentionWeights& weights,
                             const LayerState& layer,
                             const Batch& batch,
                             const TensorView& projections);

}  // namespace nibble::models::deepseek_v4
