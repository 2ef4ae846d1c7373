// The indexer of ratio-4 layers (spec 3.6): which compressed entries each token sees.
#pragma once

#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4 {

// Fills workspace.num_selected for every row: kAllEntries where the candidates are no more than
// index_topk, else a count, with that many rows of the entry pool in workspace.selected, in entry
// order. Replayed decisions replace scores.   qr: [m, q_lora_rank] normalised; projections: as
// run_compressors, whose entries must be stored.
Result<void> select_entries(Pass& pass,
                            const AttentionWeights& weights,
                            int32_t layer_index,
                            const Batch& batch,
                            const TensorView& qr,
                            const TensorView& projections);

}  // namespace nibble::models::deepseek_v4
